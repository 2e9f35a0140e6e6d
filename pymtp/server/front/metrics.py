"""The metrics of all workers together, as one exposition beside those of the front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pymtp.server.front.pool import ModelPool
from pymtp.server.metrics.llama_names import PREFIX

LABEL = "model_name"  # the label that the metrics of a model have


class PoolMetrics(Collector):
    """The metrics of a pool: which models are loaded, and how often they were."""

    def __init__(self, pool: ModelPool[Any]) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        loaded = GaugeMetricFamily("pymtp:model_loaded", "Whether the model is loaded.", labels=[LABEL])
        loads = CounterMetricFamily("pymtp:model_loads", "Loads of the model.", labels=[LABEL])
        seconds = GaugeMetricFamily("pymtp:model_load_seconds", "Seconds of the model's last load.", labels=[LABEL])
        for model in self._pool.models:
            loaded.add_metric([model.name], model.status == "loaded")
            loads.add_metric([model.name], model.loads)
            seconds.add_metric([model.name], model.load_seconds)
        yield from (loaded, loads, seconds)


class _Merged(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def worker_families(front: CollectorRegistry, texts: Sequence[str]) -> CollectorRegistry:
    """Return a registry of the front's metrics and of those metrics of workers that belong to a model.

    HTTP requests and processes are those of the front. Names of llama.cpp's server, which have no labels, are there if
    the front has a single model.

    texts: the expositions of the workers.
    """
    merged = {family.name: family for family in front.collect()}
    for text in texts:
        for family in text_string_to_metric_families(text):
            is_alone = len(texts) == 1 and family.name.startswith(PREFIX)
            if not is_alone and not all(LABEL in sample.labels for sample in family.samples):
                continue
            kept = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            kept.samples += family.samples
    registry = CollectorRegistry()
    registry.register(_Merged([*merged.values()]))
    return registry
