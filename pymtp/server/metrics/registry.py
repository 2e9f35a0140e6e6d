"""The Prometheus metrics at /metrics. Their names are vLLM's, with the prefix `pymtp:`."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from pymtp.async_llm import AsyncLLM
from pymtp.engine.request import Completion
from pymtp.server.metrics.engine import EngineMetrics
from pymtp.server.metrics.request_log import LogEntry, current_log_entry

# Without this call, each counter and histogram would have a second series with its creation time, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

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
        self._observe: dict[str, Any] = {}

    def register_engine(self, llm: AsyncLLM, model_name: str) -> None:
        """Register the metrics of the loaded model. Metrics that have a model label start at 0 now."""
        self._model_name = model_name
        self.registry.register(EngineMetrics(llm.llm, model_name))
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
        observe = self._metrics.observe
        for stats in all_stats:
            observe("request_generation_tokens", stats.completion_tokens)
            observe("request_queue_time_seconds", stats.queue_seconds)
            observe("request_prefill_time_seconds", stats.prefill_seconds)
            observe("request_decode_time_seconds", stats.decode_seconds)
            if stats.completion_tokens > 1:
                tokens = stats.completion_tokens - 1
                observe("request_time_per_output_token_seconds", stats.decode_seconds / tokens)
        entry = self._entry
        entry.cached_tokens = all_stats[0].cached_tokens
        entry.completion_tokens = sum(stats.completion_tokens for stats in all_stats)
        entry.drafted = sum(stats.drafted for stats in all_stats)
        entry.accepted = sum(stats.accepted for stats in all_stats)
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


router = APIRouter()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format, or as OpenMetrics."""
    served: Metrics = request.app.state.metrics
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(served.registry), media_type=content_type)
