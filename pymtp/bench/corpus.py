"""The text that prompts of benches are cut from: the standard library's own source, or any other."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from pymtp.errors import InvalidRequestError

_EXCLUDED = {"test", "tests", "idle_test", "site-packages", "__pycache__", "lib2to3", "pydoc_data", "encodings"}
# a prime: another turn through the same text is cut elsewhere
_STRIDE = 997


def stdlib_files() -> list[Path]:
    """Every source file of the standard library but tests and tables, in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(p for p in root.rglob("*.py") if not _EXCLUDED & set(p.relative_to(root).parts))


def stdlib_texts() -> Iterator[str]:
    """The source of each file, about 9 MB together."""
    for path in stdlib_files():
        yield path.read_text(encoding="utf-8", errors="ignore")


class TokenSource:
    """Tokens of texts, read as far as they are asked for, and never the same slice twice: after the last text it goes
    on with the first, from another token on."""

    def __init__(self, tokenize: Callable[[str], list[int]], texts: Callable[[], Iterable[str]]) -> None:
        """texts: called for each turn through them. InvalidRequestError comes from `take` when they hold no token."""
        self._tokenize = tokenize
        self._texts = texts
        self._tokens = self._read()

    def take(self, n: int) -> list[int]:
        """The next n tokens."""
        return list(islice(self._tokens, n))

    def _read(self) -> Iterator[int]:
        skip = 0
        for turn in count(1):
            n = 0
            for text in self._texts():
                tokens = self._tokenize(text)
                yield from tokens[max(0, skip - n) :]
                n += len(tokens)
            if n == 0:
                raise InvalidRequestError("there is no text to cut prompts from")
            skip = turn * _STRIDE % n
