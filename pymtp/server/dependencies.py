"""The dependency by which FastAPI passes the service to the routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from pymtp.server.errors import UnavailableError
from pymtp.server.service import Service


def get_service(request: Request) -> Service:
    """Return the service of the application.

    Raises UnavailableError while the model is being loaded, and after a signal to shut down.
    """
    state = request.app.state
    if state.ending:
        raise UnavailableError("the server is shutting down", retry_after=5)
    service = state.service
    if not isinstance(service, Service):
        raise UnavailableError("the model is being loaded", retry_after=1)
    return service


ServiceDep = Annotated[Service, Depends(get_service)]
