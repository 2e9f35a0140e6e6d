"""A replica of a Ray Serve application: the application of `pymtp serve`, with its model, and no socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from ray import serve
from starlette.types import Message

from pymtp.llm import LLM
from pymtp.load import load
from pymtp.ray.lead import Lead
from pymtp.ray.workers import given_cores
from pymtp.server.app import create_app
from pymtp.server.metrics import logs
from pymtp.server.settings import Settings


class Replica:
    """Answers what doors hand on. It is there once its model is loaded."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, model: str | None, prefix: str | None, llm: Mapping[str, Any], settings: Settings
    ) -> None:
        """model: a file, a name of the hub, or None for the shipped model. llm: further keywords of LLM. prefix: a file
        to go on from.

        Raises what LLM, LLM.load_prefix and LLM.from_pretrained raise.
        """
        logs.configure(settings.log_format, settings.log_level)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        loaded = asyncio.get_running_loop().create_future()

        def on_loaded(error: Exception | None) -> None:
            loaded.set_result(None) if error is None else loaded.set_exception(error)

        # the doors tell browsers which pages may ask
        own = replace(settings, replica=self._name, cors_origins=())
        loading = _loader(model, prefix, {"n_threads": given_cores(), **llm})
        self._app = create_app(own, loading, on_loaded)
        self._life = self._app.router.lifespan_context(self._app)  # which ends with the process
        await self._life.__aenter__()
        await loaded

    async def answer(self, scope: dict[str, Any], body: bytes, lead: Lead) -> AsyncIterator[list[Message]]:
        """What the application sends for a request, in ASGI's messages. A call that is cancelled is a client that left.

        lead: by which the router brought the request here.
        """
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        unread = [body]
        gone = asyncio.Event()

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        running = asyncio.ensure_future(self._app({**scope, "state": {}}, receive, sent.put))
        running.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            ended = False
            while not ended:
                came = [await sent.get()]
                while not sent.empty():
                    came.append(sent.get_nowait())
                ended = came[-1] is None
                if messages := [self._named(each) for each in came if each is not None]:
                    yield messages
            await running
        finally:
            gone.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _named(self, message: Message) -> Message:
        """With a header that says who answered."""
        if message["type"] != "http.response.start":
            return message
        return {**message, "headers": [*message["headers"], (b"x-pymtp-replica", self._name.encode())]}

    async def metrics(self) -> list[Metric]:
        """What /metrics tells, with the label `replica`."""
        told = list(self._app.state.metrics.registry.collect())
        for metric in told:
            metric.samples = [each._replace(labels={**each.labels, "replica": self._name}) for each in metric.samples]
        return told

    async def check_health(self) -> None:
        """Raises where the engine takes no more requests. It waits until the engine is between two steps, so one that
        hangs is found, too."""
        await self._app.state.service.check()


def _loader(model: str | None, prefix: str | None, llm: Mapping[str, Any]) -> Callable[[], LLM]:
    def loader() -> LLM:
        with logs.failures_held(logging.getLogger("pymtp.native")):
            return load(model, llm, None if prefix is None else Path(prefix))

    return loader
