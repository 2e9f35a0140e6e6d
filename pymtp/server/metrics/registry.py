"""What Prometheus reads at /metrics: the names of vLLM's metrics, with `pymtp:` in front."""

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
from pymtp.server.metrics.request_log import Entry, current_entry

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, which no dashboard reads

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
PER_TOKEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
REASONS = ("stop", "length", "abort", "error")

HISTOGRAMS = {
    "time_to_first_token_seconds": ("Seconds until the first token, the waiting included.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Seconds a token between two chunks of a stream.", PER_TOKEN),
    "request_time_per_output_token_seconds": ("Seconds a token after the first, of a whole text.", PER_TOKEN),
    "e2e_request_latency_seconds": ("Seconds of a whole request.", WHOLE),
    "request_queue_time_seconds": ("Seconds that a text waited for its place.", WHOLE),
    "request_prefill_time_seconds": ("Seconds from then to its first token.", WHOLE),
    "request_decode_time_seconds": ("Seconds from then to its last.", WHOLE),
    "request_prompt_tokens": ("Tokens of a request's prompt.", TOKENS),
    "request_generation_tokens": ("Tokens of a text.", TOKENS),
}


class Metrics:
    """Counts what happens to requests; what the engine counts itself is read from it when Prometheus asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._http = Counter(
            "pymtp:http_requests", "HTTP requests.", ("method", "route", "status"), registry=self.registry
        )
        model = ("model_name",)
        self._prompt_tokens = Counter("pymtp:prompt_tokens", "Tokens of prompts.", model, registry=self.registry)
        self._success = Counter(
            "pymtp:request_success", "Texts that ended.", (*model, "finished_reason"), registry=self.registry
        )
        self._histograms = {
            name: Histogram(f"pymtp:{name}", about, model, buckets=buckets, registry=self.registry)
            for name, (about, buckets) in HISTOGRAMS.items()
        }
        self._model_name = ""
        self._observe: dict[str, Any] = {}

    def serve(self, llm: AsyncLLM, model_name: str) -> None:
        """The model is there: its metrics begin at 0."""
        self._model_name = model_name
        self.registry.register(EngineMetrics(llm.llm, model_name))
        self._observe = {name: histogram.labels(model_name).observe for name, histogram in self._histograms.items()}
        self._prompt_tokens.labels(model_name)
        for reason in REASONS:
            self._success.labels(model_name, reason)

    def count_http(self, method: str, route: str, status: int) -> None:
        """An HTTP request was answered."""
        self._http.labels(method, route, str(status)).inc()

    def watch(self, prompt: object = None) -> Watch:
        """A request has come. prompt: what is logged of it, where prompts are."""
        return Watch(self, prompt)

    def observe(self, name: str, value: float) -> None:
        """One more value of a histogram."""
        self._observe[name](value)

    def begun(self, prompt_tokens: int) -> None:
        """The engine has taken a request."""
        self._prompt_tokens.labels(self._model_name).inc(prompt_tokens)
        self.observe("request_prompt_tokens", prompt_tokens)

    def finished(self, reason: str, n: int = 1) -> None:
        """Texts ended."""
        self._success.labels(self._model_name, reason).inc(n)


class Watch:
    """A request from its arrival to its end, for the metrics and the log.

        watch = metrics.watch(prompt)
        …                                      # it is looked at
        with watch.running(prompt_tokens, n):  # the engine has it
            watch.tokens(3)                    # each time that a stream hands some on
            watch.ended(completions)           # once all are there

    Where the block is left before `ended`, the client has gone, or the request has failed.
    """

    def __init__(self, metrics: Metrics, prompt: object) -> None:
        self._metrics = metrics
        self._entry = current_entry() or Entry()
        self._entry.prompt = prompt
        self._arrived = time.perf_counter()
        self._last = 0.0  # when tokens were handed on
        self._n = 0
        self._ended = False

    def running(self, prompt_tokens: int, n: int) -> Watch:
        """The engine has n texts of the request."""
        self._n = n
        self._entry.prompt_tokens = prompt_tokens
        self._metrics.begun(prompt_tokens)
        return self

    def tokens(self, n: int) -> None:
        """Further tokens of a stream are handed on."""
        now = time.perf_counter()
        if self._last:
            self._metrics.observe("inter_token_latency_seconds", (now - self._last) / n)
        else:
            self._first_after(now - self._arrived)
        self._last = now
        self._entry.completion_tokens += n

    def _first_after(self, seconds: float) -> None:
        self._entry.time_to_first_token = seconds
        self._metrics.observe("time_to_first_token_seconds", seconds)

    def ended(self, completions: list[Completion]) -> None:
        """All texts are there."""
        self._ended = True
        each = [completion.stats for completion in completions]
        if not self._last and any(stats.completion_tokens for stats in each):
            self._first_after(min(stats.time_to_first_token for stats in each if stats.completion_tokens))
        observe = self._metrics.observe
        for stats in each:
            observe("request_generation_tokens", stats.completion_tokens)
            observe("request_queue_time_seconds", stats.queue_seconds)
            observe("request_prefill_time_seconds", stats.prefill_seconds)
            observe("request_decode_time_seconds", stats.decode_seconds)
            if stats.completion_tokens > 1:
                tokens = stats.completion_tokens - 1
                observe("request_time_per_output_token_seconds", stats.decode_seconds / tokens)
        entry = self._entry
        entry.cached_tokens = each[0].cached_tokens
        entry.completion_tokens = sum(stats.completion_tokens for stats in each)
        entry.drafted = sum(stats.drafted for stats in each)
        entry.accepted = sum(stats.accepted for stats in each)
        entry.finish_reasons = [_reason(completion) for completion in completions]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._metrics.observe("e2e_request_latency_seconds", time.perf_counter() - self._arrived)
        if not self._ended:
            failed = kind is not None and issubclass(kind, Exception)  # else a client that left
            self._entry.finish_reasons = ["error" if failed else "abort"] * self._n
        for reason in self._entry.finish_reasons:
            self._metrics.finished(reason)


def _reason(completion: Completion) -> str:
    return "abort" if completion.finish_reason == "cancelled" else completion.finish_reason


router = APIRouter()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus, as text or in the form of OpenMetrics."""
    found: Metrics = request.app.state.metrics
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(found.registry), media_type=content_type)
