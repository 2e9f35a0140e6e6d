"""The exceptions of pymtp: everything that pymtp raises on purpose is a PymtpError."""

from collections.abc import Sequence
from copy import copy
from typing import TypeVar


class PymtpError(Exception):
    """The base class of all errors of this package.

    completions: if one of several prompts of a call failed, the Completion or the error of each prompt, in the
        order of the prompts.
    """

    completions: Sequence[object] = ()


class ModelLoadError(PymtpError):
    """A model file that is missing, truncated, not a GGUF, or not a model that pymtp runs."""


class InvalidRequestError(PymtpError, ValueError):
    """An invalid argument or field: the message names it and says which values are valid.

    param: the name of the argument or field; None if the error is not about a single one.
    """

    def __init__(self, message: object = "", param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextFullError(InvalidRequestError):
    """A prompt, or a saved prefix, of more than n_ctx tokens."""


class ClosedError(PymtpError):
    """A call on an object that was closed."""


class NativeError(PymtpError):
    """A failure inside llama.cpp.

    The sequences of the failed call were emptied. The model and all other sequences can still be used, unless the
    message says that the context cannot be used.
    """


class CancelledError(PymtpError):
    """A native call that cancel() ended. The sequences of the call were emptied."""


Error = TypeVar("Error", bound=PymtpError)


def copied(error: Error) -> Error:
    """Return a copy of an error, with its fields and its cause, and without its traceback."""
    other = copy(error)
    other.__cause__ = error.__cause__
    return other
