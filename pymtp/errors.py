"""What can go wrong, as a small tree: everything pymtp raises on purpose is a PymtpError."""


class PymtpError(Exception):
    """Base of all errors of this package."""


class ModelLoadError(PymtpError):
    """The file is missing, not a GGUF, truncated, or no model that pymtp runs."""


class InvalidRequestError(PymtpError, ValueError):
    """The caller asked for something that cannot be: the message says what, and what would be right."""


class ContextFullError(InvalidRequestError):
    """More tokens than n_ctx."""


class ClosedError(PymtpError):
    """The object was closed."""


class NativeError(PymtpError):
    """llama.cpp failed. The model lives on; the context was emptied. After a failed assertion of llama.cpp the context
    refuses all further calls: close it and make a new one."""


class CancelledError(PymtpError):
    """A native call was cancelled from another thread. The context was emptied."""
