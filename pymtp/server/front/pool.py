"""The models of a front: which are loaded, which one goes when another needs its memory, and who waits for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic

from pymtp.errors import InvalidRequestError, PymtpError
from pymtp.server.errors import UnavailableError, UnknownModelError
from pymtp.server.front.pooled_model import Description, PooledModel, Status, W
from pymtp.server.metrics.logs import log
from pymtp.server.process.supervisor import doubled_delay
from pymtp.validation import shown

LOAD_WAIT = 300.0  # the most seconds that a request waits for its model
# Seconds that a load waits for a loaded model to become idle by itself. After that, new requests for one of the loaded
# models wait, so that it becomes idle; without this, a model that is always busy would keep the others out for ever.
PATIENCE = 5.0
MAX_RETRY_DELAY = 30.0  # the most seconds after a failed load until the next one may begin


class ModelPool(Generic[W]):
    """Models that are loaded on demand. As many stay loaded as may; the least recently used one goes first.

    A model with requests is never unloaded. All methods belong to one event loop.
    """

    def __init__(
        self,
        models: Sequence[PooledModel[W]],
        launch: Callable[[PooledModel[W]], W],
        plan: Callable[[PooledModel[W]], Awaitable[Mapping[str, int]]],
        describe: Callable[[PooledModel[W]], Awaitable[Description]],
        *,
        limits: Mapping[str, int],
        strict: bool = False,
        models_max: int = 0,
        idle_seconds: float = 0.0,
        autoload: bool = True,
        load_wait: float = LOAD_WAIT,
        patience: float = PATIENCE,
        any_name: bool = False,
    ) -> None:
        """Set up the pool.

        launch: starts a worker of a model. Raises OSError if the system cannot.
        plan: returns the bytes that a model takes, by device. Raises PymtpError or OSError for a model without a plan.
        describe: returns what can be told of a model that is not loaded. Raises the same errors as `plan`.
        limits: the bytes that all loaded models may take together, by device. A model may take more if it is alone.
        strict: whether a model may not even be loaded alone if it takes more than the limits.
        models_max: the most models that are loaded at a time, 0 for no limit.
        idle_seconds: the seconds without requests after which a model is unloaded, 0 for never.
        autoload: whether a request loads its model.
        load_wait: the most seconds that a request waits for its model.
        patience: see PATIENCE.
        any_name: whether requests may use any name, for a single model.
        """
        self.models = list(models)
        self.models_max, self.idle_seconds, self.autoload = models_max, idle_seconds, autoload
        self._launch, self._plan, self._describe, self._limits, self._strict = launch, plan, describe, limits, strict
        self._load_wait, self._patience, self._any_name = load_wait, patience, any_name
        self._by_name = {name: model for model in models for name in model.names}
        self._turn = asyncio.Lock()  # held by the one load that makes room; the others queue in the order of arrival
        self._changed = asyncio.Event()  # replaced after each change of a model's state
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False

    def find(self, name: str | None) -> PooledModel[W]:
        """Return the model of this name; without a name, the first model. Raises UnknownModelError."""
        if name is None or self._any_name:
            return self.models[0]
        name = name if name in self._by_name else name.removesuffix(":latest")  # Ollama's clients add it
        if name not in self._by_name:
            names = ", ".join(model.name for model in self.models)
            raise UnknownModelError(f"there is no model {shown(name)}; the models are {names}")
        return self._by_name[name]

    @asynccontextmanager
    async def use(self, model: PooledModel[W], *, wake: bool = True, wait: float = math.inf) -> AsyncIterator[W]:
        """Keep a model loaded in the context, which gets its worker. Loads the model first if it is not loaded.

        wake: False for requests of monitoring: they neither load a model nor keep it from going to sleep.
        wait: the most seconds that this request waits for its model, if that is less than for others.

        Raises UnavailableError if the model cannot be loaded (in time), or is not loaded and `wake` is False.
        """
        model.users += 1
        arrived = model.drains
        if wake:
            model.used_at = asyncio.get_running_loop().time()
        try:
            yield await self._ready(model, wake, arrived, min(self._load_wait, wait))
        finally:
            model.users -= 1
            if arrived < model.drains:
                model.leaving -= 1
            if wake:
                model.used_at = asyncio.get_running_loop().time()
            self._arm_idle(model)
            self._notify()

    async def describe(self, model: PooledModel[W]) -> Description:
        """Return what is known of a model. Of one that was not loaded yet, the header of its file is read.

        Raises UnavailableError for a file that cannot be read.
        """
        if model.description is None:
            try:
                found = await self._describe(model)
            except (PymtpError, OSError) as error:
                raise UnavailableError(f"the model {model.name} cannot be read: {error}", retry_after=5) from error
            model.description = model.description or found
        return model.description

    def load(self, model: PooledModel[W]) -> None:
        """Begin to load a model. Raises InvalidRequestError if it is loaded, or being loaded, already."""
        self._check_open()
        if model.status in ("loading", "loaded") or (model.task is not None and not model.task.done()):
            raise InvalidRequestError("model is already running", "model")
        model.wanted = True
        model.used_at = asyncio.get_running_loop().time()
        self._begin_load(model)

    def unload(self, model: PooledModel[W]) -> None:
        """Begin to unload a model: after its running requests; those that come later load it again.

        Raises InvalidRequestError if it is not loaded.
        """
        loading = model.task is not None and not model.task.done()
        if model.status not in ("loading", "loaded") and not loading:
            raise InvalidRequestError("model is not running", "model")
        if model.unloading is None or model.unloading.done():
            model.unloading = self._spawn(self._unload(model))

    def end(self) -> None:
        """Refuse further requests, and tell all workers to end after their running requests."""
        self._ending = True
        for model in self.models:
            if model.worker is not None:
                model.worker.terminate()
        self._notify()

    async def close(self) -> None:
        """End all workers."""
        self.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(model.worker.stop() for model in self.models if model.worker is not None))

    async def _ready(self, model: PooledModel[W], wake: bool, arrived: int, wait: float) -> W:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while model.status != "loaded" or model.worker is None or (model.draining and arrived == model.drains):
            self._check_open()
            if not wake:
                raise UnavailableError(f"the model {model.name} is not loaded", retry_after=5)
            if model.task is None or model.task.done():
                if (delay := model.retry_at - loop.time()) > 0:
                    raise UnavailableError(_failure(model), retry_after=math.ceil(delay))
                self._begin_load(model)
            assert model.task is not None
            task = model.task
            # not wait_for, which would cancel the load for the other requests that wait for it
            await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
            if not task.done():
                raise UnavailableError(
                    f"the model {model.name} is still waiting to be loaded"
                    if model.status != "loading"
                    else f"the model {model.name} is still being loaded",
                    retry_after=math.ceil(max(1.0, model.load_seconds)),
                )
            if not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, OSError) and model.failures == 1:
                    continue  # the worker died, perhaps by chance: one more load for those who wait
                raise UnavailableError(_failure(model), max(1, math.ceil(model.retry_at - loop.time()))) from error
        return model.worker

    def _check_open(self) -> None:
        if self._ending:
            raise UnavailableError("the server is shutting down", retry_after=5)

    def _begin_load(self, model: PooledModel[W]) -> None:
        model.task = self._spawn(self._load(model))

    async def _load(self, model: PooledModel[W]) -> None:
        loop = asyncio.get_running_loop()
        try:
            need = await self._plan(model)
            while model.status != "loading":
                if self._ending:
                    raise asyncio.CancelledError  # those who wait are told
                if _is_leaving(model):  # not in turn: others may load meanwhile
                    await self._change()
                    continue
                async with self._turn:
                    if _is_leaving(model):
                        continue
                    if model.status == "loaded":
                        return
                    await self._make_room(model, need)
                    self._set(model, "loading")
                    model.need = need
            begun = loop.time()
            worker = self._launch(model)
            model.worker = worker
            try:
                await worker.ready()
            except BaseException:
                model.worker = None
                await worker.stop()
                raise
        except (PymtpError, OSError) as error:
            model.failure, model.failures = str(error), model.failures + 1
            first_death = isinstance(error, OSError) and model.failures == 1
            model.retry_at = loop.time() + (0.0 if first_death else doubled_delay(model.failures - 2, MAX_RETRY_DELAY))
            if model.status == "loading":
                self._set(model, "unloaded")
            log.error("the model %s cannot be loaded: %s", model.name, error)
            raise
        except BaseException:
            if model.status == "loading":
                self._set(model, "unloaded")
            raise
        finally:
            model.wanted = False
        model.failure, model.failures, model.retry_at = "", 0, 0.0
        model.load_seconds, model.loads = loop.time() - begun, model.loads + 1
        model.used_at, model.description = loop.time(), worker.description
        if self._any_name:
            model.names = (worker.description.card["id"],)  # as without a front, and in the worker's metrics
        self._set(model, "loaded")
        self._spawn(self._watch(model, worker))
        self._arm_idle(model)

    async def _make_room(self, model: PooledModel[W], need: Mapping[str, int]) -> None:
        """Unload others until `model` fits. Raises CancelledError if nobody waits for it any more, or at shutdown."""
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._patience
        while not self._fits(model, need):
            if self._ending or not (model.users or model.wanted):
                raise asyncio.CancelledError
            loaded = sorted((m for m in self.models if m.status == "loaded"), key=lambda m: m.used_at)
            idle = [m for m in loaded if not m.users]
            if idle:
                await self._stop(idle[0])
            elif loaded and loop.time() >= patient_until:
                await self._drain(loaded[0], model)
            else:
                await self._change(max(0.0, patient_until - loop.time()) if loaded else None)

    async def _drain(self, victim: PooledModel[W], model: PooledModel[W]) -> None:
        """Unload a busy model after its running requests, unless nobody waits for `model` any more."""
        await self._leave(victim, lambda: not self._ending and bool(model.users or model.wanted))

    async def _unload(self, model: PooledModel[W]) -> None:
        if model.task is not None:
            await asyncio.wait({model.task})
        await self._leave(model, lambda: True)

    async def _leave(self, model: PooledModel[W], is_needed: Callable[[], bool]) -> None:
        """Unload a model after its present requests, unless it is no longer needed to go.

        Tasks that unload a model at the same time wait for the same requests: those that came later wait for them.
        """
        if not model.draining:
            model.drains, model.leaving = model.drains + 1, model.users
        model.draining += 1
        try:
            while model.leaving and model.status == "loaded" and is_needed():
                await self._change()
            if not model.leaving and model.status == "loaded":
                await self._stop(model)
        finally:
            model.draining -= 1
            self._notify()

    async def _stop(self, model: PooledModel[W]) -> None:
        worker = model.worker
        assert worker is not None
        self._set(model, "unloading")
        try:
            await worker.stop()
        finally:
            model.worker = None
            self._set(model, "unloaded")
        log.info("the model is unloaded", extra={"fields": {"model": model.name}})

    async def _watch(self, model: PooledModel[W], worker: W) -> None:
        """Note the end of a worker that ended by itself. The next request loads its model again."""
        reason = await worker.ended()
        if model.worker is worker and model.status == "loaded":
            model.worker = None
            self._set(model, "unloaded")
            await worker.stop()
            if not self._ending:
                log.error("the worker of %s failed: %s. The next request loads the model again", model.name, reason)

    def _fits(self, model: PooledModel[W], need: Mapping[str, int]) -> bool:
        others = [m for m in self.models if m is not model and m.status != "unloaded"]
        over = [
            (device, size, self._limits[device])
            for device in need
            if device in self._limits
            and (size := need[device] + sum(m.need.get(device, 0) for m in others)) > self._limits[device]
        ]
        if not others:
            if over and self._strict:
                device, size, limit = over[0]
                raise InvalidRequestError(
                    f"it needs {size / 2**20:,.0f} MiB of {device} memory, and all models may take {limit / 2**20:,.0f}"
                )
            return True
        return not over and not (self.models_max and len(others) >= self.models_max)

    def _arm_idle(self, model: PooledModel[W]) -> None:
        """Unload a model once it has been idle for long enough."""
        if model.timer is not None:
            model.timer.cancel()
            model.timer = None
        if not self.idle_seconds or model.status != "loaded" or model.users or self._ending:
            return
        loop = asyncio.get_running_loop()
        end = model.used_at + self.idle_seconds
        if loop.time() >= end:
            self._spawn(self._unload_idle(model))
        else:
            model.timer = loop.call_at(end, self._arm_idle, model)

    async def _unload_idle(self, model: PooledModel[W]) -> None:
        if model.status == "loaded" and not model.users:
            await self._stop(model)

    def _set(self, model: PooledModel[W], status: Status) -> None:
        model.status = status
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout: float | None = None) -> None:
        """Wait until something has changed, at most for `timeout` seconds."""
        waiting = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({waiting}, timeout=timeout)
        finally:
            waiting.cancel()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or isinstance(error := task.exception(), (PymtpError, OSError, type(None))):
            return
        log.error("a model cannot be loaded or unloaded", exc_info=error)


def _is_leaving(model: PooledModel[Any]) -> bool:
    return model.draining > 0 or model.status == "unloading"


def _failure(model: PooledModel[Any]) -> str:
    return f"the model {model.name} cannot be loaded: {model.failure}"
