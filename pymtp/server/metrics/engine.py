"""What an engine counts, as metrics: read when Prometheus asks, so that a token costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pymtp.engine.engine_stats import Figures
from pymtp.llm import LLM
from pymtp.native.build_info import build_info

GAUGES = {
    "num_requests_running": "Texts that are written, or whose prompts are read.",
    "num_requests_waiting": "Texts that wait for a place.",
    "num_requests_max": "Texts that have a place at once.",
    "kv_cache_usage_perc": "Places that are taken, of all; 1 for each.",
    "prefix_cache_bytes": "Host memory for what prompts may go on from.",
    "prefix_cache_max_bytes": "Host memory that this may take.",
}
COUNTERS = {
    "generation_tokens": "Tokens that were generated.",
    "prefix_cache_queries": "Tokens of prompts that were looked for in what was read before.",
    "prefix_cache_hits": "Tokens of prompts that were found there, and not computed again.",
    "prefix_cache_evictions": "Checkpoints that had to make room for others.",
    "rounds": "Launches of the target that verified.",
    "spec_decode_num_drafts": "Rounds of a text with drafts.",
    "spec_decode_num_draft_tokens": "Drafts that were verified.",
    "spec_decode_num_accepted_tokens": "Drafts that the target agreed with.",
}
FAMILIES = {
    "rounds_by_depth": ("Rounds by the drafts of each text in them.", "depth"),
    "rounds_by_texts": ("Rounds by the texts in them.", "texts"),
    "spec_decode_num_draft_tokens_per_pos": ("Drafts that were verified, by their position.", "position"),
    "spec_decode_num_accepted_tokens_per_pos": ("Drafts that the target agreed with.", "position"),
}


class EngineMetrics(Collector):
    """The figures of an LLM's engine."""

    def __init__(self, llm: LLM, model_name: str) -> None:
        self._llm, self._model_name = llm, model_name
        self._places = llm.context.n_seq_max
        build = build_info()
        self._info = {
            "version": str(build["pymtp"]),
            "llama_cpp": str(build["llama_cpp_commit"]),
            "model_name": model_name,
            "n_ctx": str(llm.context.n_ctx),
            "draft_tokens": str(llm.context.draft_tokens),
        }

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that nothing is read as this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics, of one snapshot."""
        figures = self._llm.figures()
        info = GaugeMetricFamily("pymtp:info", "What serves; always 1.", labels=tuple(self._info))
        info.add_metric(tuple(self._info.values()), 1)
        yield info
        gauges, counters = self._gauges(figures), _counters(figures)
        model = ("model_name",)
        for name, about in GAUGES.items():
            gauge = GaugeMetricFamily(f"pymtp:{name}", about, labels=model)
            gauge.add_metric((self._model_name,), gauges[name])
            yield gauge
        for name, about in COUNTERS.items():
            counter = CounterMetricFamily(f"pymtp:{name}", about, labels=model)
            counter.add_metric((self._model_name,), counters[name])
            yield counter
        for name, (about, label) in FAMILIES.items():
            family = CounterMetricFamily(f"pymtp:{name}", about, labels=(*model, label))
            for key, value in _families(figures)[name].items():
                family.add_metric((self._model_name, str(key)), value)
            yield family

    def _gauges(self, figures: Figures) -> Mapping[str, float]:
        return {
            "num_requests_running": figures.running,
            "num_requests_waiting": figures.waiting,
            "num_requests_max": self._places,
            "kv_cache_usage_perc": figures.running / self._places,
            "prefix_cache_bytes": figures.prefixes.nbytes,
            "prefix_cache_max_bytes": self._llm.engine.prefixes.store.budget.limit,
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


def _families(figures: Figures) -> Mapping[str, Mapping[int, int]]:
    return {
        "rounds_by_depth": figures.depths,
        "rounds_by_texts": figures.sequences,
        "spec_decode_num_draft_tokens_per_pos": dict(enumerate(figures.drafted_per_position)),
        "spec_decode_num_accepted_tokens_per_pos": dict(enumerate(figures.accepted_per_position)),
    }
