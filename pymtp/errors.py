"""What can go wrong, as a small tree: everything pymtp raises on purpose is a PymtpError."""

from collections.abc import Sequence


class PymtpError(Exception):
    """Base of all errors of this package.

    completions: where one of several prompts of a call failed, what came of each prompt: its Completion, or its error.
    """

    completions: Sequence[object] = ()


class ModelLoadError(PymtpError):
    """The file is missing, not a GGUF, truncated, or no model that pymtp runs."""


class InvalidRequestError(PymtpError, ValueError):
    """The caller asked for something that cannot be: the message says what, and what would be right.

    param: the argument or field that it is about, where it is about one.
    """

    def __init__(self, message: object = "", param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextFullError(InvalidRequestError):
    """More tokens than n_ctx."""


class ClosedError(PymtpError):
    """The object was closed."""


class NativeError(PymtpError):
    """llama.cpp failed. The model lives on, and so do other sequences; those of the call were emptied. The message says
    where a context cannot go on."""


class CancelledError(PymtpError):
    """A native call was cancelled from another thread. The sequences of the call were emptied."""
