"""Why a server does not answer a request that is right in itself."""

from __future__ import annotations

from pymtp.errors import PymtpError


class RefusedError(PymtpError):
    """retry_after: seconds after which it may be tried again."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RefusedError):
    """As many requests wait as may wait."""


class UnavailableError(RefusedError):
    """The model is not loaded yet, or the server is about to end."""


class OverdueError(PymtpError):
    """The request took longer than it may."""


class UnknownModelError(PymtpError):
    """The server has no model of this name."""


class UnknownResponseError(PymtpError):
    """The response to go on with is not stored."""


class GoneError(Exception):
    """The client has left."""
