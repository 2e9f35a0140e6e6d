"""The Prometheus metrics at /metrics. Their names are vLLM's, with the prefix `pymtp:`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pymtp.async_llm import AsyncLLM
from pymtp.engine.request import Completion
from pymtp.llm import LLM
from pymtp.native.build_info import build_info
from pymtp.server.errors import NotEnabledError
from pymtp.server.metrics.llama_names import LlamaMetrics
from pymtp.server.metrics.request_log import LogEntry, current_log_entry
from pymtp.stats import Figures, Stats

# Without this call, each counter and histogram would have a second series with its creation time, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

START_TIME = int(time.time())
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
PER_TOKEN_BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)
REQUEST_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920, 7680)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
REASONS = ("stop", "length", "abort", "error")

HISTOGRAMS = {
    "time_to_first_token_seconds": ("Seconds from the arrival of a request to its first token.", FIRST_TOKEN_BUCKETS),
    "inter_token_latency_seconds": (
        "Seconds between two chunks of a stream, divided by the tokens of the second chunk.",
        PER_TOKEN_BUCKETS,
    ),
    "request_time_per_output_token_seconds": (
        "Seconds per token of a completion, without its first token.",
        PER_TOKEN_BUCKETS,
    ),
    "e2e_request_latency_seconds": ("Seconds from the arrival of a request to its end.", REQUEST_BUCKETS),
    "request_queue_time_seconds": ("Seconds that a sequence waited for a slot.", REQUEST_BUCKETS),
    "request_prefill_time_seconds": ("Seconds from the start in a slot to the first token.", REQUEST_BUCKETS),
    "request_decode_time_seconds": ("Seconds from the first token to the last token.", REQUEST_BUCKETS),
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKEN_BUCKETS),
    "request_generation_tokens": ("Generated tokens of a completion.", TOKEN_BUCKETS),
}


class Metrics:
    """The Prometheus registry: metrics of requests, and the collector of the engine's statistics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._http = Counter(
            "pymtp:http_requests", "HTTP requests.", ("method", "route", "status"), registry=self.registry
        )
        model = ("model_name",)
        self._prompt_tokens = Counter("pymtp:prompt_tokens", "Prompt tokens.", model, registry=self.registry)
        self._success = Counter(
            "pymtp:request_success", "Completions that ended.", (*model, "finished_reason"), registry=self.registry
        )
        self._histograms = {
            name: Histogram(f"pymtp:{name}", help_text, model, buckets=buckets, registry=self.registry)
            for name, (help_text, buckets) in HISTOGRAMS.items()
        }
        self._model_name = ""
        self._llama: LlamaMetrics | None = None
        self._observe: dict[str, Any] = {}

    def register_engine(self, llm: AsyncLLM, model_name: str) -> None:
        """Register the metrics of the loaded model. Metrics that have a model label start at 0 now."""
        self._model_name = model_name
        self._llama = LlamaMetrics(llm.llm)
        self.registry.register(EngineMetrics(llm.llm, model_name))
        self.registry.register(self._llama)
        self._observe = {name: histogram.labels(model_name).observe for name, histogram in self._histograms.items()}
        self._prompt_tokens.labels(model_name)
        for reason in REASONS:
            self._success.labels(model_name, reason)

    def count_http(self, method: str, route: str, status: int) -> None:
        """Count an HTTP response."""
        self._http.labels(method, route, str(status)).inc()

    def start_request(self, prompt: object = None) -> RequestMetrics:
        """Return the metrics of a new request. prompt: the prompt, which is logged with --log-prompts."""
        return RequestMetrics(self, prompt)

    def observe(self, name: str, value: float) -> None:
        """Add a value to the histogram of this name."""
        self._observe[name](value)

    def add_completion(self, stats: Stats) -> None:
        """Count a completion that has finished."""
        assert self._llama is not None
        self._llama.add(stats)
        self.observe("request_generation_tokens", stats.completion_tokens)
        self.observe("request_queue_time_seconds", stats.queue_seconds)
        self.observe("request_prefill_time_seconds", stats.prefill_seconds)
        self.observe("request_decode_time_seconds", stats.decode_seconds)
        if stats.completion_tokens > 1:
            per_token = stats.decode_seconds / (stats.completion_tokens - 1)
            self.observe("request_time_per_output_token_seconds", per_token)

    def count_prompt(self, prompt_tokens: int) -> None:
        """Count the prompt tokens of a request that the engine has accepted."""
        self._prompt_tokens.labels(self._model_name).inc(prompt_tokens)
        self.observe("request_prompt_tokens", prompt_tokens)

    def count_finished(self, reason: str, n: int = 1) -> None:
        """Count n completions that ended for this reason, which is one of REASONS."""
        self._success.labels(self._model_name, reason).inc(n)


class RequestMetrics:
    """The metrics and the log entry of one request, from its arrival to its end.

        request_metrics = metrics.start_request(prompt)
        …                                                # the request is prepared
        with request_metrics.started(prompt_tokens, n):  # the engine has accepted the request
            request_metrics.on_tokens(3)                 # called for each delta
            request_metrics.on_finished(completions)     # called after the last token

    If the context ends before `on_finished` was called, the completions count as errors if there is an exception, and
    as aborted otherwise.
    """

    def __init__(self, metrics: Metrics, prompt: object) -> None:
        self._metrics = metrics
        self._entry = current_log_entry() or LogEntry()
        self._entry.prompt = prompt
        self._arrival_time = time.perf_counter()
        self._last_token_time = 0.0
        self._n_completions = 0
        self._finished = False

    def started(self, prompt_tokens: int, n: int) -> RequestMetrics:
        """Record that the engine has started n completions of the request. Return the context of their run."""
        self._n_completions = n
        self._entry.prompt_tokens = prompt_tokens
        self._metrics.count_prompt(prompt_tokens)
        return self

    def on_tokens(self, n: int) -> None:
        """Record n new tokens of the request."""
        now = time.perf_counter()
        if self._last_token_time:
            self._metrics.observe("inter_token_latency_seconds", (now - self._last_token_time) / n)
        else:
            self._observe_time_to_first_token(now - self._arrival_time)
        self._last_token_time = now
        self._entry.completion_tokens += n

    def _observe_time_to_first_token(self, seconds: float) -> None:
        self._entry.time_to_first_token = seconds
        self._metrics.observe("time_to_first_token_seconds", seconds)

    def on_finished(self, completions: list[Completion]) -> None:
        """Record the statistics of the completions, which have all finished."""
        self._finished = True
        all_stats = [completion.stats for completion in completions]
        if not self._last_token_time and any(stats.completion_tokens for stats in all_stats):
            self._observe_time_to_first_token(
                min(stats.time_to_first_token for stats in all_stats if stats.completion_tokens)
            )
        for stats in all_stats:
            self._metrics.add_completion(stats)
        entry = self._entry
        entry.cached_tokens = all_stats[0].cached_tokens
        entry.completion_tokens = sum(stats.completion_tokens for stats in all_stats)
        entry.drafted = sum(stats.drafted for stats in all_stats)
        entry.accepted = sum(stats.accepted for stats in all_stats)
        entry.drafted_by_text = sum(stats.drafted_by_text for stats in all_stats)
        entry.accepted_by_text = sum(stats.accepted_by_text for stats in all_stats)
        entry.finish_reasons = [_reason(completion) for completion in completions]

    def __enter__(self) -> RequestMetrics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._metrics.observe("e2e_request_latency_seconds", time.perf_counter() - self._arrival_time)
        if not self._finished:
            # Other exceptions, such as CancelledError, mean that the client has disconnected.
            failed = kind is not None and issubclass(kind, Exception)
            self._entry.finish_reasons = ["error" if failed else "abort"] * self._n_completions
        for reason in self._entry.finish_reasons:
            self._metrics.count_finished(reason)


def _reason(completion: Completion) -> str:
    return "abort" if completion.finish_reason == "cancelled" else completion.finish_reason


# The metrics of the engine: what they say, and their values.
GAUGES: dict[str, tuple[str, Callable[[Figures, LLM], float]]] = {
    "num_requests_running": ("Sequences in prefill or decode.", lambda now, llm: now.running),
    "num_requests_waiting": ("Sequences that wait for a slot.", lambda now, llm: now.waiting),
    "num_requests_max": ("Number of slots.", lambda now, llm: llm.context.n_seq_max),
    "kv_cache_usage_perc": (
        "Share of the slots that are in use, from 0 to 1.",
        lambda now, llm: now.running / llm.context.n_seq_max,
    ),
    "prefix_cache_bytes": ("Bytes of host memory that the prefix cache uses.", lambda now, llm: now.prefixes.nbytes),
    "prefix_cache_max_bytes": (
        "Limit of prefix_cache_bytes.",
        lambda now, llm: llm._engine.prefix_cache.store.eviction.limit,
    ),
    "output_bytes": (
        "Bytes of host memory of earlier outputs, from which drafts are taken.",
        lambda now, llm: now.output_bytes,
    ),
    "embedding_context_bytes": (
        "Bytes of memory of the context of embeddings, 0 before the first one.",
        lambda now, llm: sum(device.total for device in llm._embedder.memory),
    ),
}
COUNTERS: dict[str, tuple[str, Callable[[Figures], int]]] = {
    "generation_tokens": ("Generated tokens.", lambda now: now.tokens),
    "prefix_cache_queries": (
        "Prompt tokens that were looked up in the prefix cache.",
        lambda now: now.prefixes.found + now.read,
    ),
    "prefix_cache_hits": ("Prompt tokens that were found in the prefix cache.", lambda now: now.prefixes.found),
    "prefix_cache_evictions": (
        "Checkpoints that were evicted from the prefix cache.",
        lambda now: now.prefixes.evicted,
    ),
    "rounds": ("Decodes of the target that generated or verified tokens.", lambda now: now.rounds),
    "spec_decode_num_drafts": (
        "Rounds with drafts, counted once for each sequence.",
        lambda now: now.rounds_with_drafts,
    ),
    "spec_decode_num_draft_tokens": ("Draft tokens that were verified.", lambda now: now.drafted),
    "spec_decode_num_accepted_tokens": ("Draft tokens that were accepted.", lambda now: now.accepted),
}
LABELLED_COUNTERS: dict[str, tuple[str, str, Callable[[Figures], Mapping[Any, int]]]] = {
    "rounds_by_depth": (
        "Rounds by number of drafts, counted once for each sequence.",
        "depth",
        lambda now: now.depths,
    ),
    "rounds_by_texts": ("Rounds by number of sequences.", "texts", lambda now: now.sequences),
    "spec_decode_num_draft_tokens_per_pos": (
        "Verified draft tokens of the head by position in the draft.",
        "position",
        lambda now: dict(enumerate(now.drafted_per_position)),
    ),
    "spec_decode_num_accepted_tokens_per_pos": (
        "Accepted draft tokens of the head by position in the draft.",
        "position",
        lambda now: dict(enumerate(now.accepted_per_position)),
    ),
    "spec_decode_num_draft_tokens_by_source": (
        "Verified draft tokens by where they come from: the head, or the text.",
        "source",
        lambda now: {"head": now.drafted - now.drafted_by_text, "text": now.drafted_by_text},
    ),
    "spec_decode_num_accepted_tokens_by_source": (
        "Accepted draft tokens by where they come from: the head, or the text.",
        "source",
        lambda now: {"head": now.accepted - now.accepted_by_text, "text": now.accepted_by_text},
    ),
}


class EngineMetrics(Collector):
    """A Prometheus collector of the statistics of an LLM's engine."""

    def __init__(self, llm: LLM, model_name: str) -> None:
        self._llm, self._model_name = llm, model_name
        build = build_info()
        self._info = {
            "version": str(build["pymtp"]),
            "llama_cpp": str(build["llama_cpp_commit"]),
            "model_name": model_name,
            "n_ctx": str(llm.context.n_ctx),
            "draft_tokens": str(llm.context.draft_tokens),
            "draft_text": str(llm.context.draft_text),
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
        model = ("model_name",)
        for name, (help_text, gauge_value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"pymtp:{name}", help_text, labels=model)
            gauge.add_metric((self._model_name,), gauge_value(figures, self._llm))
            yield gauge
        for name, (help_text, count) in COUNTERS.items():
            counter = CounterMetricFamily(f"pymtp:{name}", help_text, labels=model)
            counter.add_metric((self._model_name,), count(figures))
            yield counter
        for name, (help_text, label, counts) in LABELLED_COUNTERS.items():
            family = CounterMetricFamily(f"pymtp:{name}", help_text, labels=(*model, label))
            for key, value in counts(figures).items():
                family.add_metric((self._model_name, str(key)), value)
            yield family


router = APIRouter()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format, or as OpenMetrics."""
    return metrics_response(request, request.app.state.metrics.registry)


def metrics_response(request: Request, registry: CollectorRegistry) -> Response:
    """Return the response with the metrics of a registry. Raises NotEnabledError if the server has none."""
    if not request.app.state.settings.metrics:
        raise NotEnabledError("the server was started with --no-metrics")
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    headers = {"Content-Type": content_type, "Process-Start-Time-Unix": str(START_TIME)}
    return Response(encode(registry), headers=headers)
