"""The engine's statistics as Prometheus metrics. They are read at each scrape, and cost nothing per token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pymtp.engine.engine_stats import Figures
from pymtp.llm import LLM
from pymtp.native.build_info import build_info

GAUGES = {
    "num_requests_running": "Sequences in prefill or decode.",
    "num_requests_waiting": "Sequences that wait for a slot.",
    "num_requests_max": "Number of slots.",
    "kv_cache_usage_perc": "Share of the slots that are in use, from 0 to 1.",
    "prefix_cache_bytes": "Bytes of host memory that the prefix cache uses.",
    "prefix_cache_max_bytes": "Limit of prefix_cache_bytes.",
}
COUNTERS = {
    "generation_tokens": "Generated tokens.",
    "prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens that were found in the prefix cache.",
    "prefix_cache_evictions": "Checkpoints that were evicted from the prefix cache.",
    "rounds": "Decodes of the target that generated or verified tokens.",
    "spec_decode_num_drafts": "Rounds with drafts, counted once for each sequence.",
    "spec_decode_num_draft_tokens": "Draft tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens that were accepted.",
}
LABELLED_COUNTERS = {
    "rounds_by_depth": ("Rounds by number of drafts, counted once for each sequence.", "depth"),
    "rounds_by_texts": ("Rounds by number of sequences.", "texts"),
    "spec_decode_num_draft_tokens_per_pos": ("Verified draft tokens by position in the draft.", "position"),
    "spec_decode_num_accepted_tokens_per_pos": ("Accepted draft tokens by position in the draft.", "position"),
}


class EngineMetrics(Collector):
    """A Prometheus collector of the statistics of an LLM's engine."""

    def __init__(self, llm: LLM, model_name: str) -> None:
        self._llm, self._model_name = llm, model_name
        self._n_slots = llm.context.n_seq_max
        build = build_info()
        self._info = {
            "version": str(build["pymtp"]),
            "llama_cpp": str(build["llama_cpp_commit"]),
            "model_name": model_name,
            "n_ctx": str(llm.context.n_ctx),
            "draft_tokens": str(llm.context.draft_tokens),
        }

    def describe(self) -> Iterator[Metric]:
        """Return no metrics; without this method, the registry would call `collect` on registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, with values from one snapshot of the statistics."""
        figures = self._llm.figures()
        info = GaugeMetricFamily(
            "pymtp:info", "Versions and options of the server; always 1.", labels=tuple(self._info)
        )
        info.add_metric(tuple(self._info.values()), 1)
        yield info
        gauges, counters = self._gauges(figures), _counters(figures)
        model = ("model_name",)
        for name, help_text in GAUGES.items():
            gauge = GaugeMetricFamily(f"pymtp:{name}", help_text, labels=model)
            gauge.add_metric((self._model_name,), gauges[name])
            yield gauge
        for name, help_text in COUNTERS.items():
            counter = CounterMetricFamily(f"pymtp:{name}", help_text, labels=model)
            counter.add_metric((self._model_name,), counters[name])
            yield counter
        for name, (help_text, label) in LABELLED_COUNTERS.items():
            family = CounterMetricFamily(f"pymtp:{name}", help_text, labels=(*model, label))
            for key, value in _labelled_counters(figures)[name].items():
                family.add_metric((self._model_name, str(key)), value)
            yield family

    def _gauges(self, figures: Figures) -> Mapping[str, float]:
        return {
            "num_requests_running": figures.running,
            "num_requests_waiting": figures.waiting,
            "num_requests_max": self._n_slots,
            "kv_cache_usage_perc": figures.running / self._n_slots,
            "prefix_cache_bytes": figures.prefixes.nbytes,
            "prefix_cache_max_bytes": self._llm._engine.prefix_cache.store.eviction.limit,
        }


def _counters(figures: Figures) -> Mapping[str, float]:
    prefixes = figures.prefixes
    return {
        "generation_tokens": figures.tokens,
        "prefix_cache_queries": prefixes.found + figures.read,
        "prefix_cache_hits": prefixes.found,
        "prefix_cache_evictions": prefixes.evicted,
        "rounds": figures.rounds,
        "spec_decode_num_drafts": next(iter(figures.drafted_per_position), 0),
        "spec_decode_num_draft_tokens": figures.drafted,
        "spec_decode_num_accepted_tokens": figures.accepted,
    }


def _labelled_counters(figures: Figures) -> Mapping[str, Mapping[int, int]]:
    return {
        "rounds_by_depth": figures.depths,
        "rounds_by_texts": figures.sequences,
        "spec_decode_num_draft_tokens_per_pos": dict(enumerate(figures.drafted_per_position)),
        "spec_decode_num_accepted_tokens_per_pos": dict(enumerate(figures.accepted_per_position)),
    }
