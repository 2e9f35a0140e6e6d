"""Errors for requests that are valid, but that the server cannot answer."""

from __future__ import annotations

from pymtp.errors import PymtpError


class RetryLaterError(PymtpError):
    """The request cannot be answered now, but perhaps later.

    retry_after: the number of seconds after which the client should retry.
    """

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(RetryLaterError):
    """The queue of waiting requests is full."""


class UnavailableError(RetryLaterError):
    """The model is being loaded, the server is shutting down, or it is overloaded."""


def cancelled_error() -> UnavailableError:
    """Return the error of a request that the server cancels."""
    return UnavailableError("the server cancelled the request", retry_after=5)


class RequestTimeoutError(PymtpError):
    """The request took longer than its timeout."""


class UnknownModelError(PymtpError):
    """The request names a model that the server does not serve."""


class UnknownResponseError(PymtpError):
    """The request names a previous response (previous_response_id) that is not stored."""


class NotEnabledError(PymtpError):
    """The request is for an endpoint that the options of the server switch off."""


class ClientDisconnectedError(Exception):
    """The client disconnected before the response was complete."""
