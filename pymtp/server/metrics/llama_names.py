"""The metrics that llama.cpp's server has, under its names and without labels, for its dashboards and scripts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pymtp.llm import LLM
from pymtp.stats import Stats

PREFIX = "llamacpp:"


class LlamaMetrics(Collector):
    """A Prometheus collector of the metrics of llama.cpp's server.

    Rates are averages since the start. The server of llama.cpp starts anew with each scrape, so that two scrapers take
    each other's numbers.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._prefill_seconds = self._decode_seconds = 0.0
        self._n_prompt_tokens = self._n_steps = self._n_tokens_max = 0

    def add(self, stats: Stats) -> None:
        """Add a completion that has finished."""
        self._prefill_seconds += stats.prefill_seconds
        self._decode_seconds += stats.decode_seconds
        self._n_prompt_tokens += stats.prompt_tokens - stats.cached_tokens
        self._n_steps += max(0, stats.completion_tokens - 1)  # the prefill computes the first token
        self._n_tokens_max = max(self._n_tokens_max, stats.prompt_tokens + stats.completion_tokens)

    def describe(self) -> Iterator[Metric]:
        """Return no metrics; without this method, the registry would call `collect` on registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        now, embedder = self._llm.figures(), self._llm._embedder
        n_sequences = sum(n * times for n, times in now.sequences.items())
        counters = {
            "prompt_tokens": ("Prompt tokens that were computed.", now.read + embedder.n_tokens),
            "prompt_tokens_cached": ("Prompt tokens that were found in the prefix cache.", now.prefixes.found),
            "prompt_seconds": ("Seconds of prefill of all completions that ended.", self._prefill_seconds),
            "tokens_predicted": ("Generated tokens.", now.tokens),
            "tokens_predicted_seconds": ("Seconds of decoding of all completions that ended.", self._decode_seconds),
            "n_decode": ("Decodes of the target.", now.rounds + now.prefills + embedder.n_decodes),
            "spec_decode_num_draft_tokens": ("Draft tokens that were verified.", now.drafted),
            "spec_decode_num_accepted_tokens": ("Draft tokens that were accepted.", now.accepted),
            "spec_decode_num_drafts": (
                "Rounds with drafts, counted once for each sequence.",
                now.rounds_with_drafts,
            ),
        }
        gauges = {
            "prompt_tokens_seconds": (
                "Computed prompt tokens per second.",
                _rate(self._n_prompt_tokens, self._prefill_seconds),
            ),
            "predicted_tokens_seconds": (
                "Generated tokens per second of a completion.",
                _rate(self._n_steps, self._decode_seconds),
            ),
            "requests_processing": ("Completions in a slot.", now.running),
            "requests_deferred": ("Completions that wait for a slot.", now.waiting),
            "n_busy_slots_per_decode": ("Sequences per round.", _rate(n_sequences, now.rounds)),
            "n_tokens_max": ("Most tokens of a completion with its prompt.", self._n_tokens_max),
        }
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(PREFIX + name, help_text, value)
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(PREFIX + name, help_text, value)


def _rate(n: int, per: float) -> float:
    return n / per if per else 0.0
