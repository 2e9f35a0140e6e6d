"""Errors of the server for requests that are valid in themselves."""

from __future__ import annotations

from pymtp.errors import PymtpError


class RetryLaterError(PymtpError):
    """The request cannot be answered now; `retry_after` is the number of seconds until a retry makes sense."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RetryLaterError):
    """The queue of waiting requests is full."""


class UnavailableError(RetryLaterError):
    """The model is being loaded, the server is shutting down, or it is overloaded."""


class RequestTimeoutError(PymtpError):
    """The request took longer than its timeout."""


class UnknownModelError(PymtpError):
    """The request names a model that the server does not serve."""


class UnknownResponseError(PymtpError):
    """The response of previous_response_id is not stored."""


class ClientDisconnectedError(Exception):
    """The client has disconnected."""
