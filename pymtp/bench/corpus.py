"""Text from which benches cut their prompts: the source of the standard library, or any other text."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

# folders of tests, and of files that are mostly tables
_EXCLUDED = {"test", "tests", "idle_test", "site-packages", "__pycache__", "lib2to3", "pydoc_data", "encodings"}
# Each pass through the texts skips this many more tokens at its start, so that slices are cut at other places. It is a
# prime so that it rarely divides the number of tokens, in which case passes would repeat.
_STRIDE = 997


def stdlib_files() -> list[Path]:
    """List the source files of Python's standard library in sorted order, without tests and large tables."""
    found: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - _EXCLUDED  # not entered: site-packages may have many times more files
        found += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


def stdlib_texts() -> Iterator[str]:
    """Yield the text of each source file of Python's standard library, about 9 MB in total."""
    for path in stdlib_files():
        yield path.read_text(encoding="utf-8", errors="ignore")


class TokenSource:
    """A stream of tokens from texts, which never yields the same slice twice.

    Texts are read only as far as needed. After the last text, the stream continues in the first one, but skips some of
    its first tokens.
    """

    def __init__(self, tokenize: Callable[[str], list[int]], texts: Callable[[], Iterable[str]]) -> None:
        """Make a stream of tokens.

        tokenize: converts a text to tokens.
        texts: returns all texts; it is called again when all have been used. `take` raises InvalidRequestError if the
            texts are empty.
        """
        self._tokenize = tokenize
        self._texts = texts
        self._tokens = self._read()

    @classmethod
    def of(cls, model: Model, text: str | None = None) -> TokenSource:
        """Make a stream of a model's tokens from a text; None for Python's standard library."""
        texts = stdlib_texts if text is None else lambda: iter([text])
        return cls(lambda part: model.tokenize(part, add_special=False), texts)

    def take(self, n: int) -> list[int]:
        """Return the next n tokens."""
        return list(islice(self._tokens, n))

    def _read(self) -> Iterator[int]:
        skip = 0
        for n_pass in count(1):
            n_tokens = 0
            for text in self._texts():
                tokens = self._tokenize(text)
                yield from tokens[max(0, skip - n_tokens) :]
                n_tokens += len(tokens)
            if n_tokens == 0:
                raise InvalidRequestError("there is no text to cut prompts from")
            skip = n_pass * _STRIDE % n_tokens
