"""An index of a text that finds where the end of the text occurred before, and guesses which tokens follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from pymtp.errors import InvalidRequestError
from pymtp.native import check, ffi, lib
from pymtp.native.process import refuse_copies
from pymtp.validation import read_int

MAX_GUESSES = 1024  # in one call; a round verifies 63 drafts at most
SEPARATOR = -1  # stands between two texts of an index


class Guess(NamedTuple):
    """A token that probably follows.

    length: the number of tokens before this guess that the longest earlier occurrence has, too.
    votes: the number of occurrences that continue with this token.
    of: the number of occurrences that agree with all guesses before this one and continue with any token.
    """

    token: int
    length: int
    votes: int
    of: int


class TextIndex:
    """The tokens of a text, or of several ones, and an index of their n-grams, see native/runtime/text_index.h.

    One thread at a time may use it.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.native: Any = ffi.gc(lib.pymtp_text_init(), lib.pymtp_text_free)
        if self.native == ffi.NULL:
            check(lib.PYMTP_FAILED)
        self.add(tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text. SEPARATOR ends one text and begins another: no match spans it.

        Raises InvalidRequestError, and appends nothing, for a number that is neither a token nor SEPARATOR; NativeError
        if there is too little memory.
        """
        array = _token_array("tokens", tokens)
        check(lib.pymtp_text_add(self.native, array, len(array)))

    def keep_last(self, n: int) -> None:
        """Forget all but the last n tokens. Raises InvalidRequestError for a negative n.

        Builds the index of these tokens anew, which takes some 0.1 µs a token.
        """
        check(lib.pymtp_text_keep_last(self.native, read_int("n", n, 0, 2**63 - 1)))

    def guess(self, drafts: Iterable[int] = (), *, n: int, other: TextIndex | None = None) -> list[Guess]:
        """Guess up to n tokens that follow the text and then `drafts`, from what followed their end before.

        other: earlier texts, which are searched, too.

        Raises InvalidRequestError for an n that is not from 0 to MAX_GUESSES, and for drafts that are no tokens.
        """
        n = read_int("n", n, 0, MAX_GUESSES)
        if other is not None and not isinstance(other, TextIndex):
            raise TypeError(f"other must be a TextIndex or None, not {type(other).__name__}")
        array = _token_array("drafts", drafts)
        columns = [ffi.new("int32_t[]", n) for _ in Guess._fields]
        earlier = ffi.NULL if other is None else other.native
        found = lib.pymtp_text_guess(self.native, earlier, array, len(array), n, *columns)
        if found < 0:
            check(found)
        return [Guess(*row) for row in zip(*(ffi.unpack(column, found) for column in columns), strict=True)]

    def __len__(self) -> int:
        """Return the number of tokens, separators included."""
        return int(lib.pymtp_text_size(self.native))

    @property
    def nbytes(self) -> int:
        """The bytes of host memory, reserved ones included."""
        return int(lib.pymtp_text_bytes(self.native))

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


def _token_array(name: str, tokens: Iterable[int]) -> Any:
    """Return a C array. Raises InvalidRequestError for a number outside of int32, and TypeError for no numbers."""
    try:
        return ffi.new("llama_token[]", tokens if isinstance(tokens, (list, tuple)) else list(tokens))
    except OverflowError as error:
        raise InvalidRequestError(f"{name} must be token numbers below 2**31: {error}", name) from error
