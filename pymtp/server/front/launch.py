"""Starting the workers of a front's models, with options that fit into what the models share; describing the models."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pymtp.chat.sampling_defaults import read_sampling_defaults
from pymtp.context.options import whole_ctx
from pymtp.options import LLMOptions
from pymtp.server.facts import ModelFacts
from pymtp.server.front.config import FrontConfig
from pymtp.server.front.pooled_model import Description, PooledModel
from pymtp.server.front.worker import ModelWorker, private_config
from pymtp.server.info import model_card, model_props
from pymtp.server.memory import HOST, fit_options, free_memory, local_options, open_header, plan_bytes
from pymtp.server.ollama.models import model_details, model_tags
from pymtp.server.process.model_source import ModelSource
from pymtp.server.process.supervisor import log_load
from pymtp.server.settings import ServerSettings
from pymtp.validation import is_hub_name

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
        self.models = [PooledModel[ModelWorker](each.model_names) for each in config.models]
        self._folder = folder
        self._sources = {
            model: ModelSource(private_config(each, i))
            for i, (model, each) in enumerate(zip(self.models, config.models, strict=True))
        }
        self._locks = {model: asyncio.Lock() for model in self.models}
        at_once = min(len(config.models), config.models_max or len(config.models))
        self._shares = {name: limit // at_once for name, limit in limits.items()}
        self._planned: dict[PooledModel[ModelWorker], _Plan] = {}

    async def plan(self, model: PooledModel[ModelWorker]) -> Mapping[str, int]:
        """Return the bytes that a model takes, by device. Also chooses its options that fit into its share."""
        async with self._locks[model]:
            return (await asyncio.to_thread(self._plan, model)).need

    async def describe(self, model: PooledModel[ModelWorker]) -> Description:
        """Return what can be told of a model that is not loaded. Of one on the hub, only headers are downloaded."""
        async with self._locks[model]:
            return (await asyncio.to_thread(self._plan, model)).description

    def is_here(self, model: PooledModel[ModelWorker]) -> bool:
        """Return whether the file of a model is on this machine, so that it can be planned before it is asked for."""
        return not _is_remote(self._sources[model].next_config().llm)

    def launch(self, model: PooledModel[ModelWorker]) -> ModelWorker:
        """Start a worker of a model that `plan` has planned."""
        config = self._sources[model].next_config()
        chosen, need = self._planned[model].options, self._planned[model].need
        llm = replace(config.llm, n_ctx=chosen.n_ctx, n_seq_max=chosen.n_seq_max, cache_bytes=chosen.cache_bytes)
        worker = ModelWorker(self._sources[model], replace(config, llm=llm, fit=()), self._folder)
        chosen_by_fit = {"chosen": " ".join(config.fit)} if config.fit else {}
        log_load(model.name, worker.pid, mib=round(need[HOST] / 2**20), **chosen_by_fit)
        return worker

    def _plan(self, model: PooledModel[ModelWorker]) -> _Plan:
        config = self._sources[model].next_config()
        key = config.llm.model, _stat(config.llm.model)
        known = self._planned.get(model)
        if known is None or known.key != key:
            with local_options(config.llm) as local:
                if local.cache_bytes is None and HOST in self._shares:
                    local = replace(local, cache_bytes=int(CACHE_SHARE * self._shares[HOST]))
                chosen = fit_options(local, config.fit, free=self._shares)
                told = _describe(chosen, config.settings, model.names, whole_file=not _is_remote(config.llm))
                known = self._planned[model] = _Plan(key, chosen, plan_bytes(chosen), told)
        return known


@dataclass(frozen=True)
class _Plan:
    """The plan of a model. key: what changes with its file. options: those of its worker. need: bytes by device."""

    key: object
    options: LLMOptions
    need: Mapping[str, int]
    description: Description


def _describe(
    options: LLMOptions, settings: ServerSettings, names: tuple[str, ...], *, whole_file: bool
) -> Description:
    """Return what a worker with these options would tell of its model, by the header of the model's file."""
    with open_header(options) as header:
        sampling = {**read_sampling_defaults(header.metadata)[0], **settings.sampling}
        template = header.chat_template if options.template_source is None else options.template_source
        n_ctx = whole_ctx(options.n_ctx or header.n_ctx_train)
        sees = bool(options.mmproj)
        facts = ModelFacts(header, names, template, n_ctx, options.n_seq_max, sampling, sees, whole_file)
        answers: dict[str, Any] = {
            "/props": model_props(facts).model_dump(),
            "/api/tags": model_tags(facts),
            "/api/show": model_details(facts),
        }
        card = model_card(facts, names[0]).model_dump()
    return Description(card, {path: json.dumps(answer).encode() for path, answer in answers.items()})


def _is_remote(options: LLMOptions) -> bool:
    return isinstance(options.model, str) and is_hub_name(options.model)


def _stat(model: Any) -> object:
    """Return what changes when a file is replaced; None for the shipped model and for one of the hub."""
    try:
        found = os.stat(model)
    except (OSError, TypeError):
        return None
    return found.st_mtime_ns, found.st_size
