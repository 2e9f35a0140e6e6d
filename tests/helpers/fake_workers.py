"""A pool of models whose workers are scripts: they need no process and no model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from pymtp.server.front.pool import ModelPool
from pymtp.server.front.pooled_model import Description, PooledModel


class FakeWorker:
    """A worker that is ready at once, unless its model is held or wrong. answer: answers its requests."""

    def __init__(self, models: FakeModels, name: str) -> None:
        self.name, self._models = name, models
        self.description = describe(name, by="worker")
        self.headers: list[tuple[bytes, bytes]] = []
        self.transport = httpx.MockTransport(self._answer)
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        return await self._models.answer(self.name, request)

    async def ready(self) -> None:
        while self.name in self._models.held:
            await asyncio.sleep(0)
        if self.name in self._models.dying:
            self._models.dying.remove(self.name)
            raise OSError("the worker ended before it was ready, with signal 9 (SIGKILL)")
        if error := self._models.wrong.get(self.name):
            raise error

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def die(self) -> None:
        self._end.set_result("signal 9 (SIGKILL)")

    def terminate(self) -> None:
        self._models.events.append(("terminate", self.name))

    async def stop(self) -> None:
        self._models.events.append(("stop", self.name))
        await asyncio.sleep(0)
        if not self._end.done():
            self._end.set_result("exit code 0")


async def _echo(name: str, request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"worker": name})


def describe(name: str, *, by: str) -> Description:
    """Return what is told of a model. by: who tells it."""
    card = {"id": f"file of {name}", "max_model_len": 512, "meta": {"n_ctx": 512}}
    says: dict[str, Any] = {"/props": {"model_alias": name}, "/api/tags": {"models": [{"name": name, "size": 7}]}}
    says["/api/show"] = {"details": {"family": name}, "by": by}
    return Description(card, {path: json.dumps(answer).encode() for path, answer in says.items()})


class FakeModels:
    """Models of given sizes in a pool with 100 bytes of memory.

    events: what was done with workers, in order. held: the models whose load does not end.
    wrong: errors of loads. dying: the models whose next worker dies while it loads.
    """

    def __init__(self, sizes: Mapping[str, int], answer: Callable[..., Any] = _echo, **options: Any) -> None:
        self.events: list[tuple[str, str]] = []
        self.held: set[str] = set()
        self.dying: set[str] = set()
        self.wrong: dict[str, Exception] = {}
        self.answer = answer
        self._sizes = sizes
        self.models = {name: PooledModel[FakeWorker]((name,)) for name in sizes}
        limits = options.pop("limits", {"host": 100})
        self.pool = ModelPool(
            list(self.models.values()),
            self._launch,
            self._plan,
            self._describe,
            limits=limits,
            **{"patience": 0.0} | options,
        )

    def _launch(self, model: PooledModel[FakeWorker]) -> FakeWorker:
        self.events.append(("start", model.name))
        return FakeWorker(self, model.name)

    async def _plan(self, model: PooledModel[FakeWorker]) -> Mapping[str, int]:
        return {"host": self._sizes[model.name]}

    async def _describe(self, model: PooledModel[FakeWorker]) -> Description:
        if error := self.wrong.get(model.name):
            raise error
        return describe(model.name, by="file")

    @property
    def loaded(self) -> list[str]:
        return [name for name, model in self.models.items() if model.status == "loaded"]

    def worker(self, name: str) -> FakeWorker:
        worker = self.models[name].worker
        assert worker is not None
        return worker

    async def ask(self, *names: str) -> None:
        """Use models one after the other."""
        for name in names:
            async with self.pool.use(self.models[name]) as worker:
                assert worker.name == name

    def asking(self, name: str) -> tuple[asyncio.Task[None], asyncio.Event]:
        """Begin to use a model, until the event is set."""
        done = asyncio.Event()

        async def use() -> None:
            async with self.pool.use(self.models[name]) as worker:
                assert worker.name == name
                await done.wait()

        return asyncio.create_task(use()), done


async def settle(turns: int = 50) -> None:
    """Let all tasks run that need not wait."""
    for _ in range(turns):
        await asyncio.sleep(0)
