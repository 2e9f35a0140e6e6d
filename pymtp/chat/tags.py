"""The marks within an answer, such as `</parameter>`: what they look like, and where they stand in a text that comes
piece by piece. The grammar of answers and their reader take them from here, so that what one writes the other finds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

LONGEST = 4096  # characters of a mark: what goes on longer is none

SPACE = re.compile(r"[ \t\r\n]")
NAME = re.compile(r"[^<>\n]")


class Item(NamedTuple):
    """A character of a mark: that one, or each that matches. repeated: any number of them, or none."""

    character: str | re.Pattern[str]
    repeated: bool = False

    def matches(self, character: str) -> bool:
        if isinstance(self.character, str):
            return character == self.character
        return self.character.match(character) is not None


class Mark:
    """Texts that end something, or begin it.

    way: how it is written, where " " stands for any whitespace and "NAME" for a name.
    at_start: whether it stands only where a watch begins.
    """

    def __init__(self, way: str, *, at_start: bool = False) -> None:
        self.way, self.at_start = way, at_start
        self.items: list[Item] = []
        for part in re.findall("NAME|.", way, re.DOTALL):
            if part == "NAME":
                self.items += [Item(NAME), Item(NAME, repeated=True)]
            else:
                self.items.append(Item(SPACE, repeated=True) if part == " " else Item(part))

    def __repr__(self) -> str:
        return f"Mark({self.way!r})"


Thread = tuple[int, int]  # a mark, and how many of its items have come


class Marks:
    """Several marks that are watched for at once."""

    def __init__(self, each: Sequence[Mark]) -> None:
        self.each = tuple(each)

    @cached_property
    def first(self) -> re.Pattern[str]:
        """A character with which a mark begins that may begin anywhere, unless the next one is none of it."""
        return re.compile("|".join({_first(mark): None for mark in self.each if not mark.at_start}) or "(?!)")

    def begin(self, after: str = "") -> list[Thread]:
        """Threads at the start of a watch. after: what is taken to stand before it."""
        found = [thread for i, mark in enumerate(self.each) if mark.at_start for thread in self.skip((i, 0))]
        inner: list[Thread] = []
        for character in after:
            inner = [thread for thread, _ in self.step(inner, character)]
        return [*found, *inner]

    def skip(self, thread: Thread) -> Iterator[Thread]:
        """The thread, and those that leave out what may be left out."""
        mark, n = thread
        items = self.each[mark].items
        yield mark, n
        while n < len(items) and items[n].repeated:
            n += 1
            yield mark, n

    def step(self, threads: Iterable[Thread], character: str) -> Iterator[tuple[Thread, Thread | None]]:
        """The threads after a character, each with the one that it comes from: None where a mark begins."""
        for thread in threads:
            mark, n = thread
            items = self.each[mark].items
            if n < len(items) and items[n].matches(character):
                for after in self.skip((mark, n if items[n].repeated else n + 1)):
                    yield after, thread
        for i, begun in enumerate(self.each):
            if not begun.at_start and begun.items[0].matches(character):
                for after in self.skip((i, 1)):
                    yield after, None


def _first(mark: Mark) -> str:
    """A regular expression for the first character of a mark, with a look at the second."""
    first, *rest = (item for item in mark.items[:2])
    own = re.escape(first.character) if isinstance(first.character, str) else first.character.pattern
    second = rest[0] if rest else first
    if not rest or second.repeated or not isinstance(second.character, str):
        return own
    return rf"{own}(?={re.escape(second.character)}|\Z)"


class Found(NamedTuple):
    mark: Mark
    start: int
    end: int


class Watch:
    """Looks for marks in a text that comes piece by piece. Positions are those of the whole text."""

    def __init__(self, marks: Marks, at: int, after: str = "") -> None:
        """at: where the watch begins. after: what is taken to stand before it."""
        self.marks = marks
        self.at = at
        self._threads = dict.fromkeys(marks.begin(after), at)

    @property
    def begun(self) -> list[int]:
        """Where each that may yet become a mark begins, the first one first."""
        return sorted({*self._threads.values()})

    @property
    def held(self) -> int:
        """Where the first of these begins; where the watch is, without one."""
        return min(self._threads.values(), default=self.at)

    def look(self, text: str, offset: int, counts: Callable[[Found], bool]) -> Found | None:
        """The first mark that counts, which the watch then ends with. text: from `offset` on, up to what has come."""
        end = offset + len(text)
        while self.at < end:
            if not self._threads:
                found = self.marks.first.search(text, self.at - offset)
                if not found:
                    self.at = end
                    return None
                self.at = offset + found.start()
            begun = self.at
            self.at += 1
            threads: dict[Thread, int] = {}
            complete: dict[int, int] = {}
            for (mark, n), before in self.marks.step(self._threads, text[begun - offset]):
                start = begun if before is None else self._threads[before]
                if n == len(self.marks.each[mark].items):
                    complete[mark] = min(start, complete.get(mark, start))
                else:
                    threads[mark, n] = min(start, threads.get((mark, n), start))
            if self.at - min(threads.values(), default=self.at) > LONGEST:
                threads = {thread: start for thread, start in threads.items() if self.at - start <= LONGEST}
            self._threads = threads
            for mark, start in sorted(complete.items(), key=lambda one: (one[1], one[0])):
                one = Found(self.marks.each[mark], start, self.at)
                if counts(one):
                    return one
        return None
