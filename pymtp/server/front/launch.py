"""Starting the workers of a front's models, with options that fit into what the models share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymtp.options import LLMOptions
from pymtp.server.front.config import FrontConfig
from pymtp.server.front.pool import PooledModel
from pymtp.server.front.worker import ModelWorker, private_config
from pymtp.server.memory import HOST, fit_options, free_memory, local_options, plan_bytes
from pymtp.server.metrics.logs import log
from pymtp.server.process.model_source import ModelSource

LOADED_SHARE = 0.9  # the share of the free host memory that all models may take if no limit is given
CACHE_SHARE = 0.25  # the share of a model's part of the memory that its prefix cache may take by default


def memory_limits(config: FrontConfig) -> dict[str, int]:
    """Return the bytes that all models of a front may take together, by device."""
    limits = free_memory()
    if config.models_memory is not None:
        limits[HOST] = config.models_memory
    elif HOST in limits:
        limits[HOST] = int(LOADED_SHARE * limits[HOST])
    return limits


class Launcher:
    """Plans the memory of models, and starts their workers."""

    def __init__(self, config: FrontConfig, limits: Mapping[str, int], folder: Path) -> None:
        """folder: the folder of the workers' sockets, which only this user can enter."""
        self.models = [
            PooledModel[ModelWorker](each.settings.served_names or (_default_name(each.llm),)) for each in config.models
        ]
        self._folder = folder
        self._sources = {
            model: ModelSource(private_config(each, i))
            for i, (model, each) in enumerate(zip(self.models, config.models, strict=True))
        }
        self._locks = {model: asyncio.Lock() for model in self.models}
        at_once = min(len(config.models), config.models_max or len(config.models))
        self._shares = {name: limit // at_once for name, limit in limits.items()}
        self._planned: dict[PooledModel[ModelWorker], tuple[object, LLMOptions, Mapping[str, int]]] = {}

    async def plan(self, model: PooledModel[ModelWorker]) -> Mapping[str, int]:
        """Return the bytes that a model takes, by device. Also chooses its options that fit into its share."""
        async with self._locks[model]:
            return await asyncio.to_thread(self._plan, model)

    async def plan_early(self, model: PooledModel[ModelWorker]) -> None:
        """Plan a model whose file is on this machine, so that the first request for it need not wait for the plan."""
        if _stat(self._sources[model].next_config().llm.model) is not None:
            await self.plan(model)

    def launch(self, model: PooledModel[ModelWorker]) -> ModelWorker:
        """Start a worker of a model that `plan` has planned."""
        config = self._sources[model].next_config()
        _, chosen, need = self._planned[model]
        llm = replace(config.llm, n_ctx=chosen.n_ctx, n_seq_max=chosen.n_seq_max, cache_bytes=chosen.cache_bytes)
        worker = ModelWorker(self._sources[model], replace(config, llm=llm, fit=()), self._folder)
        fields: dict[str, Any] = {"model": model.name, "worker": worker.pid, "mib": round(need[HOST] / 2**20)}
        if config.fit:
            fields["chosen"] = " ".join(config.fit)
        log.info("loading the model", extra={"fields": fields})
        return worker

    def _plan(self, model: PooledModel[ModelWorker]) -> Mapping[str, int]:
        config = self._sources[model].next_config()
        key = config.llm.model, _stat(config.llm.model)
        known = self._planned.get(model)
        if known is None or known[0] != key:
            with local_options(config.llm) as local:
                if local.cache_bytes is None and HOST in self._shares:
                    local = replace(local, cache_bytes=int(CACHE_SHARE * self._shares[HOST]))
                chosen = fit_options(local, config.fit, free=self._shares)
                known = self._planned[model] = key, chosen, plan_bytes(chosen)
        return known[2]


def _default_name(options: LLMOptions) -> str:
    """Return the name of a model that was given without one."""
    return "demo" if options.model is None else Path(str(options.model)).stem


def _stat(model: Any) -> object:
    """Return what changes when a file is replaced; None for the shipped model and for one of the hub."""
    try:
        found = os.stat(model)
    except (OSError, TypeError):
        return None
    return found.st_mtime_ns, found.st_size
