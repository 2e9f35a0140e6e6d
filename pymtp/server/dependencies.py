"""The service that answers, while there is one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from pymtp.server.errors import UnavailableError
from pymtp.server.service import Service


def current_service(request: Request) -> Service:
    """Raises UnavailableError while the model loads, and where no new requests are taken."""
    state = request.app.state
    if state.ending:
        raise UnavailableError("the server is about to end", retry_after=5)
    service = state.service
    if not isinstance(service, Service):
        raise UnavailableError("the model is being loaded", retry_after=1)
    return service


CurrentService = Annotated[Service, Depends(current_service)]
