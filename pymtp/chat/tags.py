"""Tags within the output, such as `</parameter>`: their patterns, and a scanner for text that arrives piece by piece.

The grammar and the parser of the output both take the tags from here, so that the parser finds exactly the tags that
the grammar writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

MAX_TAG_LENGTH = 4096  # characters; a longer text is not a tag

SPACE = re.compile(r"[ \t\r\n]")
NAME = re.compile(r"[^<>\n]")


class TagItem(NamedTuple):
    """One item of a tag's pattern.

    character: the character, or a regular expression that matches one character.
    repeated: whether the item stands for any number of such characters, or none.
    """

    character: str | re.Pattern[str]
    repeated: bool = False

    def matches(self, character: str) -> bool:
        """Return whether the item allows the character."""
        if isinstance(self.character, str):
            return character == self.character
        return self.character.match(character) is not None


class Tag:
    """The pattern of a tag, which begins or ends a part of the output.

    pattern: the text of the tag, in which " " stands for any whitespace and "NAME" for a name.
    at_start: whether the tag counts only at the position where a scan begins.
    """

    def __init__(self, pattern: str, *, at_start: bool = False) -> None:
        self.pattern, self.at_start = pattern, at_start
        self.items: list[TagItem] = []
        for part in re.findall("NAME|.", pattern, re.DOTALL):
            if part == "NAME":
                self.items += [TagItem(NAME), TagItem(NAME, repeated=True)]
            else:
                self.items.append(TagItem(SPACE, repeated=True) if part == " " else TagItem(part))

    def __repr__(self) -> str:
        return f"Tag({self.pattern!r})"


PartialMatch = tuple[int, int]  # the index of a tag in its TagSet, and how many items of the tag have matched


class TagSet:
    """A set of tags that are scanned for at once: a nondeterministic automaton whose states are partial matches."""

    def __init__(self, tags: Sequence[Tag]) -> None:
        self.tags = tuple(tags)

    @cached_property
    def first(self) -> re.Pattern[str]:
        """Return a regular expression for places where a tag may begin, with a lookahead to its second character."""
        return re.compile("|".join({_first_character(tag): None for tag in self.tags if not tag.at_start}) or "(?!)")

    def begin(self, after: str = "") -> list[PartialMatch]:
        """Return the partial matches at the start of a scan.

        after: the text that is assumed to come directly before the start.
        """
        at_start = [match for i, tag in enumerate(self.tags) if tag.at_start for match in self.skip((i, 0))]
        anywhere: list[PartialMatch] = []
        for character in after:
            anywhere = [match for match, _ in self.step(anywhere, character)]
        return [*at_start, *anywhere]

    def skip(self, match: PartialMatch) -> Iterator[PartialMatch]:
        """Yield the partial match, and the partial matches that skip the repeated items after it."""
        tag, n = match
        items = self.tags[tag].items
        yield tag, n
        while n < len(items) and items[n].repeated:
            n += 1
            yield tag, n

    def step(
        self, matches: Iterable[PartialMatch], character: str
    ) -> Iterator[tuple[PartialMatch, PartialMatch | None]]:
        """Yield the partial matches after a character, each with the match that it extends; None where a tag begins."""
        for match in matches:
            tag, n = match
            items = self.tags[tag].items
            if n < len(items) and items[n].matches(character):
                for after in self.skip((tag, n if items[n].repeated else n + 1)):
                    yield after, match
        for i, begun in enumerate(self.tags):
            if not begun.at_start and begun.items[0].matches(character):
                for after in self.skip((i, 1)):
                    yield after, None


def _first_character(tag: Tag) -> str:
    """Return a regular expression for the first character of a tag, with a lookahead to the second."""
    first, *rest = (item for item in tag.items[:2])
    own = re.escape(first.character) if isinstance(first.character, str) else first.character.pattern
    second = rest[0] if rest else first
    if not rest or second.repeated or not isinstance(second.character, str):
        return own
    return rf"{own}(?={re.escape(second.character)}|\Z)"


class TagMatch(NamedTuple):
    """A complete tag, and the positions where it starts and ends in the whole text."""

    tag: Tag
    start: int
    end: int


class TagScanner:
    """A scanner for tags in text that arrives piece by piece. Positions count from the beginning of the whole text."""

    def __init__(self, tags: TagSet, at: int, after: str = "") -> None:
        """Begin a scan.

        at: the position where the scan begins.
        after: the text that is assumed to come directly before that position.
        """
        self.tags = tags
        self.at = at
        self._matches = dict.fromkeys(tags.begin(after), at)

    @property
    def partial_starts(self) -> list[int]:
        """Return the positions, rising, where tags begin that are not complete yet."""
        return sorted({*self._matches.values()})

    @property
    def certain_end(self) -> int:
        """Return the position up to which the text belongs to no tag, whatever text follows."""
        return min(self._matches.values(), default=self.at)

    def scan(self, text: str, offset: int, accepts: Callable[[TagMatch], bool]) -> TagMatch | None:
        """Scan the text for the first tag that `accepts` accepts, and return it; None if there is none yet.

        text: all text from position `offset` on that has arrived.
        """
        end = offset + len(text)
        while self.at < end:
            if not self._matches:
                found = self.tags.first.search(text, self.at - offset)
                if not found:
                    self.at = end
                    return None
                self.at = offset + found.start()
            position = self.at
            self.at += 1
            matches: dict[PartialMatch, int] = {}
            complete: dict[int, int] = {}
            for (tag, n), before in self.tags.step(self._matches, text[position - offset]):
                start = position if before is None else self._matches[before]
                if n == len(self.tags.tags[tag].items):
                    complete[tag] = min(start, complete.get(tag, start))
                else:
                    matches[tag, n] = min(start, matches.get((tag, n), start))
            if self.at - min(matches.values(), default=self.at) > MAX_TAG_LENGTH:
                matches = {match: start for match, start in matches.items() if self.at - start <= MAX_TAG_LENGTH}
            self._matches = matches
            for tag, start in sorted(complete.items(), key=lambda item: (item[1], item[0])):
                match = TagMatch(self.tags.tags[tag], start, self.at)
                if accepts(match):
                    return match
        return None
