"""Tags within the output, such as `</parameter>`, and a scanner that finds them in text that arrives piece by piece.

The grammar and the parser of the output both take the tags from here, so that the parser finds exactly the tags that
the grammar writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

MAX_TAG_LENGTH = 4096  # characters; a longer text is not a tag
MAX_REPEATS = 8  # how often in succession a tag may stand where its pattern has "+"
SPACES = " \t\r\n"


class Tag(NamedTuple):
    """The pattern of a tag, which begins or ends a part of the output.

    pattern: the text of the tag, in which " " stands for any whitespace, "NAME" for a name, and ">+" for the end of a
        tag that may stand several times in succession, with whitespace between.
    at_start: whether the tag counts only at the position where a scan begins.
    """

    pattern: str
    at_start: bool = False

    @property
    def before_name(self) -> str:
        """Return the part of the pattern before its first name, in which no tag is repeated."""
        return self.pattern.replace(">+", ">").partition("NAME")[0]


def tag_regex(pattern: str) -> str:
    """Return a regular expression for a tag."""
    return "".join(_items(pattern))


def _partial_regex(pattern: str) -> str:
    """Return a regular expression for a tag that has begun and is not complete at the end of the text."""
    regex = ""
    for item in reversed(_items(pattern)[:-1]):
        regex = f"{item}(?:{regex})?" if regex else item
    return rf"{regex}\Z"


def _items(pattern: str) -> list[str]:
    """Return a regular expression for each character of a pattern, repetition, space or name."""
    known = {" ": f"[{SPACES}]*", "NAME": r"[^<>\n]+"}
    items = []
    for item in re.findall(r"NAME|<[^<>]*>\+|.", pattern, re.DOTALL):
        if item.endswith(">+"):
            tag = item[:-1]
            items += [f"(?:{re.escape(tag)}[{SPACES}]*){{0,{MAX_REPEATS - 1}}}", *map(re.escape, tag)]
        else:
            items.append(known.get(item) or re.escape(item))
    return items


class TagMatch(NamedTuple):
    """A complete tag, and the positions where it starts and ends in the whole text."""

    tag: Tag
    start: int
    end: int


class _Patterns:
    """The patterns of several tags.

    complete, partial: regular expressions for complete tags, a group for each, and for tags that the text cuts off.
    """

    def __init__(self, patterns: Mapping[Tag, str]) -> None:
        self.tags = tuple(patterns)
        first = "".join({pattern[0]: None for pattern in patterns.values()})
        # a lookahead makes the search fast
        begin = "(?!)" if not first else "" if " " in first else f"(?=[{re.escape(first)}])"
        self.complete = re.compile(f"{begin}(?:{'|'.join(f'({tag_regex(pattern)})' for pattern in patterns.values())})")
        self.partial = re.compile(f"{begin}(?:{'|'.join(map(_partial_regex, patterns.values()))})")


class TagSet:
    """A set of tags that are scanned for at once. Within a tag, another tag can only begin if both end together."""

    def __init__(self, tags: Sequence[Tag]) -> None:
        self._tags = tuple(tags)

    @cached_property
    def at_start(self) -> _Patterns:
        """Return the patterns of tags where a scan begins. This place counts as the beginning of a line."""
        return _Patterns(
            {tag: tag.pattern.removeprefix("\n") for tag in self._tags if tag.at_start or tag.pattern[0] == "\n"}
        )

    @cached_property
    def anywhere(self) -> _Patterns:
        """Return the patterns of tags at all other places."""
        return _Patterns({tag: tag.pattern for tag in self._tags if not tag.at_start})


class TagScanner:
    """A scanner for tags in text that arrives piece by piece. Positions count from the beginning of the whole text."""

    def __init__(self, tags: TagSet, start: int) -> None:
        """Begin a scan at the position `start`."""
        self._tags = tags
        self._start = self._at = start

    def scan(self, text: str, offset: int, accepts: Callable[[TagMatch], bool]) -> TagMatch | None:
        """Scan for the first tag that `accepts` accepts, and return it; None if there is none yet.

        text: all text from position `offset` on that has arrived and belongs to no earlier tag.
        """
        self._at = max(self._at, offset)
        while match := self._next_match(text, offset):
            if match.end - match.start <= MAX_TAG_LENGTH and accepts(match):
                return match
            self._at = match.start + 1
        return None

    def _next_match(self, text: str, offset: int) -> TagMatch | None:
        patterns, found = self._tags.at_start, None
        if self._at == self._start:
            found = patterns.complete.match(text, self._at - offset)
        if not found:
            patterns = self._tags.anywhere
            found = patterns.complete.search(text, self._at - offset)
        if not found or not found.lastindex:
            return None
        return TagMatch(patterns.tags[found.lastindex - 1], offset + found.start(), offset + found.end())

    def partial_starts(self, text: str, offset: int) -> Iterator[int]:
        """Yield the positions, rising, where tags begin that the end of the text cuts off. text, offset: see `scan`."""
        at = max(self._at, offset + len(text) - MAX_TAG_LENGTH)
        if at == self._start and self._tags.at_start.partial.match(text, at - offset):
            yield at
        while found := self._tags.anywhere.partial.search(text, at - offset):
            yield offset + found.start()
            at = offset + found.start() + 1
