"""A model of a front: its state, its worker, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

Status = Literal["unloaded", "loading", "loaded", "unloading"]


@dataclass(frozen=True)
class Description:
    """What a front tells of a model without asking its worker.

    card: the model's card in /v1/models. answers: what a worker of the model answers, by path.
    """

    card: Mapping[str, Any]
    answers: Mapping[str, bytes]


class Worker(Protocol):
    """A running worker of a model."""

    @property
    def description(self) -> Description:
        """Return the facts that the worker tells of its model, once it is ready."""

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises the error of a load that failed."""

    async def ended(self) -> str:
        """Wait until the worker has ended, and return why."""

    async def stop(self) -> None:
        """End the worker, and return when its memory is free."""

    def terminate(self) -> None:
        """Tell the worker to refuse new requests and to end after the running ones."""


W = TypeVar("W", bound=Worker)


@dataclass(eq=False)
class PooledModel(Generic[W]):
    """A model of a pool, and its state.

    names: all names by which requests may ask for the model; the first is the name in lists.
    users: the number of requests that wait for the model or run on it.
    used_at: the time when a request for it last arrived or ended.
    wanted: whether it is being loaded for a client that does not wait.
    draining: how many tasks wait to end the worker after the present requests; then new ones wait for the next worker.
    drains: how often it was drained. leaving: the present requests that have not ended since the last time.
    need: the bytes that the loaded model takes, by device.
    loads, load_seconds: the number of loads, and the seconds of the last one.
    description: what is known of the model, by its file or by its last worker; None before.
    task: its last load. unloading: its last unloading that a client asked for.
    failure: why the last load failed; "" if it did not. failures: loads that failed in succession.
    """

    names: tuple[str, ...]
    status: Status = "unloaded"
    worker: W | None = None
    users: int = 0
    used_at: float = 0.0
    wanted: bool = False
    draining: int = 0
    drains: int = 0
    leaving: int = 0
    need: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""
    failures: int = 0
    retry_at: float = 0.0
    loads: int = 0
    load_seconds: float = 0.0
    description: Description | None = None
    task: asyncio.Task[None] | None = None
    unloading: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """Return the first name."""
        return self.names[0]
