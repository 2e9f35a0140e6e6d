"""A replica of a Ray Serve application: the application of `pymtp serve` with its model, but without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from ray import serve
from starlette.types import Message

from pymtp.llm import LLM
from pymtp.load import load
from pymtp.options import LLMOptions
from pymtp.ray.routing import RoutingHint
from pymtp.ray.workers import assigned_cpus
from pymtp.server.app import create_app
from pymtp.server.metrics import logs
from pymtp.server.settings import ServerSettings


class Replica:
    """A deployment with a model. It answers the requests that fronts forward, once the model is loaded."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, llm: LLMOptions, prefix: str | None, settings: ServerSettings
    ) -> None:
        """Load the model.

        llm: options of the LLM. The default of n_threads is the number of CPUs that Ray assigned to the replica.
        prefix: path of a prefix file to load; None for none.
        settings: settings of the server.

        Raises the errors of LLM, LLM.load_prefix and LLM.from_pretrained.
        """
        logs.configure(settings.log_format, settings.log_level)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        loaded = asyncio.get_running_loop().create_future()

        def on_loaded(error: Exception | None) -> None:
            loaded.set_result(None) if error is None else loaded.set_exception(error)

        # without CORS, because the fronts add its headers
        own_settings = replace(settings, replica=self._name, cors_origins=())
        self._app = create_app(own_settings, lambda: _load(llm, prefix), on_loaded)
        # the lifespan is entered but never left: a replica ends with its process
        self._life = self._app.router.lifespan_context(self._app)
        await self._life.__aenter__()
        await loaded

    async def answer(self, scope: dict[str, Any], body: bytes, hint: RoutingHint) -> AsyncIterator[list[Message]]:
        """Run the application for a request, and yield the ASGI messages that it sends.

        If the call is cancelled, the application sees that the client has disconnected.

        scope, body: the request.
        hint: not used here; the router reads it from the arguments of the call.
        """
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        unread = [body]
        disconnected = asyncio.Event()

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        running = asyncio.ensure_future(self._app({**scope, "state": {}}, receive, sent.put))
        running.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            finished = False
            while not finished:
                batch = [await sent.get()]
                while not sent.empty():
                    batch.append(sent.get_nowait())
                finished = batch[-1] is None
                if messages := [self._with_name(message) for message in batch if message is not None]:
                    yield messages
            await running
        finally:
            disconnected.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _with_name(self, message: Message) -> Message:
        """Return an ASGI message; if it starts an answer, with a header that has the name of this replica."""
        if message["type"] != "http.response.start":
            return message
        return {**message, "headers": [*message["headers"], (b"x-pymtp-replica", self._name.encode())]}

    async def metrics(self) -> list[Metric]:
        """Return the metrics of this replica, with the label `replica`."""
        metrics = list(self._app.state.metrics.registry.collect())
        for metric in metrics:
            metric.samples = [s._replace(labels={**s.labels, "replica": self._name}) for s in metric.samples]
        return metrics

    async def check_health(self) -> None:
        """Raise an error if the engine accepts no more requests.

        The call waits until the engine is between two steps. So if the engine hangs, the call hangs too, and Ray's
        timeout of the health check ends the replica.
        """
        await self._app.state.service.check()


def _load(options: LLMOptions, prefix: str | None) -> LLM:
    with logs.hold_errors(logging.getLogger("pymtp.native")):
        own = options if options.n_threads is not None else replace(options, n_threads=assigned_cpus())
        return load(own, None if prefix is None else Path(prefix))
