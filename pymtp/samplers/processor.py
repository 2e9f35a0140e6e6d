"""Logits processors: functions of the caller that change each row of logits before a token is sampled from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import InvalidRequestError
from pymtp.native import ffi
from pymtp.native.process import in_processor
from pymtp.validation import shown

LogitsProcessor = Callable[[NDArray[np.int32], NDArray[np.float32]], NDArray[np.float32] | None]
NAME = "logits_processor"


def read_processors(value: object) -> tuple[LogitsProcessor, ...] | None:
    """Return the functions of a logits_processor: a function, or a sequence of functions; None for anything else."""
    several: Sequence[Any] = (
        value if isinstance(value, Sequence) else (value,)
    )  # before callable: a list of others may be callable
    return tuple(several) if several and all(map(callable, several)) else None


class RowProcessor:
    """Calls the logits processors of one request for its rows of logits, and keeps the first error.

    error: the first error; None before. After an error, `run` calls nothing any more.
    """

    def __init__(self, functions: Sequence[LogitsProcessor]) -> None:
        self._functions = functions
        self.error: InvalidRequestError | None = None

    def run(self, logits: Any, n_vocab: int, prefix: Any, n: int) -> bool:
        """Process a native row in place. Return False if a processor failed.

        logits: a float *, the row of n_vocab logits. prefix: an int32_t *, the n tokens before the row's token.
        """
        if self.error is not None:
            return False
        row = np.frombuffer(ffi.buffer(logits, 4 * n_vocab), np.float32)
        if not math.isfinite(row.max()):  # a fault of the model, which the sampler reports
            return True
        tokens = np.frombuffer(ffi.buffer(prefix, 4 * n), np.int32) if n else np.empty(0, np.int32)
        try:
            row[:] = self.process(tokens, row)
        except InvalidRequestError as error:
            # the traceback would keep the arrays, whose memory is the sampler's
            self.error = error.with_traceback(None)
        return self.error is None

    def process(self, tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the processed row of logits. The functions get copies, so that they may keep them.

        Raises InvalidRequestError, from the error of the function, if a function raises; and for a result that is no
        row of float32, or has NaN, positive infinity or no finite number.
        """
        row = logits.copy()
        for function in self._functions:
            row = _call(function, tokens.copy(), row)
            if not isinstance(row, np.ndarray) or row.shape != logits.shape or row.dtype != np.float32:
                raise InvalidRequestError(
                    f"{NAME} must return None or a NumPy array of float32 with the shape {logits.shape}, not "
                    f"{_described(row)}",
                    NAME,
                )
            row = np.ascontiguousarray(row)  # also of a subclass, such as a masked array
            if not math.isfinite(highest := row.max()):
                found = {-math.inf: "-inf for every token"}.get(float(highest), str(highest))
                raise InvalidRequestError(
                    f"{NAME} must leave numbers below inf, one finite at least: got {found}", NAME
                )
        return row


def _call(function: LogitsProcessor, tokens: NDArray[np.int32], row: NDArray[np.float32]) -> NDArray[np.float32]:
    """Call a processor, and return its row; the given row if it returns None."""
    try:
        with in_processor:
            result = function(tokens, row)
    except BaseException as error:  # no exception may pass through native code
        trace = error.__traceback__
        cause = error.with_traceback(trace and trace.tb_next)  # without this frame
        raise InvalidRequestError(f"{NAME} raised {type(error).__name__}{_text_of(error)}", NAME) from cause
    return row if result is None else result


def _text_of(error: BaseException) -> str:
    with suppress(Exception):  # __str__ may raise, too
        return f": {error}" if str(error) else ""
    return ""


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype} with the shape {value.shape}"
    return shown(value)
