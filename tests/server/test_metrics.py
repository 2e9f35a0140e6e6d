"""Tests of /metrics: the metrics have vLLM's names, and the Grafana dashboard uses only existing metrics."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from conftest import ROOT
from helpers.cheap_rows import make_rows_cheap
from helpers.servers import LONG, Server, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
)


class Scraped:
    """The metrics of one scrape."""

    def __init__(self, server: Server) -> None:
        answer = httpx.get(f"{server.url}/metrics", timeout=LONG)
        assert answer.status_code == 200
        self.families = list(text_metrics(answer.text))
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of all series of the metric `name` that have these labels."""
        expected = set(labels.items())
        return sum(
            value for (found, has), value in self.samples.items() if found == f"pymtp:{name}" and expected <= set(has)
        )


@pytest.fixture
def served(new_server: Callable[..., Server]) -> Server:
    """Return a server without earlier requests."""
    server: Server = new_server(llm={"draft_tokens": 3}).ready()
    return server


def ask(server: Server, **more: Any) -> dict[str, Any]:
    request_body = {"prompt": "def f(x):", "max_tokens": 30, "temperature": 0, "ignore_eos": True, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=request_body, timeout=LONG)
    return {} if request_body.get("stream") else answer.json()


def test_metrics_have_the_names_of_vllm(served: Server) -> None:
    ask(served)
    names = Scraped(served).names
    assert {f"pymtp:{name}" for name in VLLM} <= names
    assert not [name for name in names if name.endswith("_created")]


def test_metrics_are_those_of_the_reference(served: Server) -> None:
    ask(served, stream=True)
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    documented = set(
        re.findall(r"`([a-z0-9_]+)`", "".join(line.split("|")[1] for line in text.splitlines() if "|" in line))
    )
    exported = {
        family.name.removeprefix("pymtp:") + "_total" * (family.type == "counter")
        for family in Scraped(served).families
        if family.name.startswith("pymtp:")
    }
    assert exported == documented


def test_metrics_count_tokens_completions_and_drafts(served: Server) -> None:
    request_body = [ask(served), ask(served, prompt="class A:", n=2, temperature=1), ask(served, max_tokens=5)]
    metrics = Scraped(served)
    usage = [answer["usage"] for answer in request_body]
    figures = served.llm.figures()
    assert metrics("prompt_tokens_total") == sum(each["prompt_tokens"] for each in usage)
    assert metrics("generation_tokens_total") == sum(each["completion_tokens"] for each in usage) == 95
    assert metrics("request_success_total", finished_reason="length") == 4
    assert metrics("request_success_total") == 4
    assert metrics("request_generation_tokens_sum") == 95
    assert metrics("e2e_request_latency_seconds_count") == metrics("time_to_first_token_seconds_count") == 3
    assert metrics("request_queue_time_seconds_count") == metrics("request_decode_time_seconds_count") == 4
    assert metrics("spec_decode_num_draft_tokens_total") == figures.drafted > 0
    assert metrics("spec_decode_num_accepted_tokens_total") == figures.accepted > 0
    assert metrics("spec_decode_num_accepted_tokens_per_pos_total") == figures.accepted
    assert metrics("spec_decode_num_draft_tokens_per_pos_total", position="0") == metrics(
        "spec_decode_num_drafts_total"
    )
    assert metrics("rounds_by_depth_total") == metrics("rounds_by_texts_total") == metrics("rounds_total")
    # There are hits, because the same prompt was sent twice.
    assert metrics("prefix_cache_queries_total") >= metrics("prefix_cache_hits_total") > 0


@pytest.fixture
def copying(new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a server that drafts from text, too."""
    make_rows_cheap(monkeypatch)
    server: Server = new_server(llm={"draft_tokens": "auto"}).ready()
    return server


def test_metrics_and_answers_tell_drafts_of_the_head_and_from_text_apart(copying: Server) -> None:
    answer = ask(copying, prompt="def f(x):\n    return 100\n\n\n" * 8, max_tokens=300)
    metrics, figures, told = Scraped(copying), copying.llm.figures(), answer["pymtp"]
    assert figures.drafted_by_text > 0
    assert (told["drafted_by_text"], told["accepted_by_text"]) == (figures.drafted_by_text, figures.accepted_by_text)
    assert told["drafted_per_position"] == list(figures.drafted_per_position)
    assert metrics("output_bytes") == figures.output_bytes > 0
    timings = answer["timings"]
    assert timings["draft_n_by_text"] == told["drafted_by_text"]
    assert timings["draft_n_accepted_by_text"] == told["accepted_by_text"]
    for name, all_drafts, by_text in (
        ("draft", figures.drafted, figures.drafted_by_text),
        ("accepted", figures.accepted, figures.accepted_by_text),
    ):
        metric = f"spec_decode_num_{name}_tokens_by_source_total"
        assert metrics(metric, source="text") == by_text
        assert metrics(metric, source="head") == metrics(f"spec_decode_num_{name}_tokens_per_pos_total")
        assert metrics(metric) == metrics(f"spec_decode_num_{name}_tokens_total") == all_drafts
    assert metrics("spec_decode_num_drafts_total") == sum(depth > 0 for depth in told["depths"])


def test_answers_without_drafts_from_text_have_no_timings_of_them(served: Server) -> None:
    answer = ask(served)
    assert answer["pymtp"]["drafted_by_text"] == answer["pymtp"]["accepted_by_text"] == 0
    assert "draft_n" in answer["timings"]
    assert not [name for name in answer["timings"] if name.endswith("by_text")]


def test_metrics_have_the_names_of_llama_server(served: Server) -> None:
    usage = [ask(served)["usage"], ask(served, max_tokens=5)["usage"]]
    httpx.post(f"{served.url}/v1/embeddings", json={"input": "def f(x):"}, timeout=LONG)
    answer = httpx.get(f"{served.url}/metrics", timeout=LONG)
    assert answer.headers["process-start-time-unix"].isdecimal()
    found = {name: value for (name, labels), value in Scraped(served).samples.items() if not labels}
    n_prompt, n_cached = usage[0]["prompt_tokens"], usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert found["llamacpp:prompt_tokens_total"] == 3 * n_prompt - n_cached
    assert found["llamacpp:prompt_tokens_cached_total"] == n_cached
    assert found["llamacpp:tokens_predicted_total"] == 35
    assert found["llamacpp:n_tokens_max"] == n_prompt + 30
    figures = served.llm.figures()
    assert found["llamacpp:n_decode_total"] == figures.rounds + figures.prefills + 1
    assert found["llamacpp:spec_decode_num_accepted_tokens_total"] == figures.accepted
    assert found["llamacpp:spec_decode_num_drafts_total"] == figures.rounds_with_drafts > 0
    assert found["llamacpp:requests_processing"] == found["llamacpp:requests_deferred"] == 0
    assert found["llamacpp:n_busy_slots_per_decode"] == 1
    for what in ("prompt", "predicted"):
        assert found[f"llamacpp:{what}_tokens_seconds"] > 0
    for what in ("prompt", "tokens_predicted"):
        assert found[f"llamacpp:{what}_seconds_total"] > 0


def test_stream_records_time_to_first_token_and_inter_token_latency(served: Server) -> None:
    ask(served, stream=True, max_tokens=1000)  # enough tokens for several chunks, even on a fast machine
    metrics = Scraped(served)
    assert metrics("time_to_first_token_seconds_count") == 1
    assert metrics("inter_token_latency_seconds_count") > 1
    assert metrics("inter_token_latency_seconds_sum") < metrics("e2e_request_latency_seconds_sum")
    ask(served, max_tokens=200)
    assert Scraped(served)("inter_token_latency_seconds_count") == metrics("inter_token_latency_seconds_count")


def test_running_and_waiting_requests_are_gauges(served: Server) -> None:
    threads = [threading.Thread(target=ask, args=(served,), kwargs={"max_tokens": 3000}) for _ in range(6)]
    for thread in threads:
        thread.start()

    def reported() -> bool:
        metrics = Scraped(served)
        return (metrics("num_requests_running"), metrics("num_requests_waiting")) == (4, 2)

    wait_until(reported)
    assert Scraped(served)("kv_cache_usage_perc") == 1
    served.llm.cancel()
    for thread in threads:
        thread.join(LONG)
    wait_until(served.free)
    assert Scraped(served)("num_requests_running") == 0


def test_aborted_and_failed_requests_are_counted_separately(served: Server) -> None:
    request_body = {"prompt": "def f(x):", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=request_body, timeout=LONG) as answer:
        next(answer.iter_lines())
    wait_until(lambda: Scraped(served)("request_success_total", finished_reason="abort") == 1)
    thread = threading.Thread(target=ask, args=(served,), kwargs={"max_tokens": 3000})
    thread.start()
    wait_until(lambda: served.llm.figures().running)
    served.llm.cancel()
    thread.join(LONG)
    wait_until(lambda: Scraped(served)("request_success_total", finished_reason="error") == 1)
    assert Scraped(served)("request_success_total") == 2


def test_http_requests_are_counted_by_route_and_status(served: Server) -> None:
    ask(served)
    ask(served, max_tokens="many")
    for i in range(20):
        httpx.request("PROPFIND", f"{served.url}/pot/{i}")
    metrics = Scraped(served)
    completions = {"route": "/v1/completions", "method": "POST"}
    assert metrics("http_requests_total", status="200", **completions) == 1
    assert metrics("http_requests_total", status="400", **completions) == 1
    assert metrics("http_requests_total", route="other", method="other") == 20


def test_metrics_are_served_as_openmetrics_if_the_client_accepts_it(served: Server) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(f"{served.url}/metrics", headers=accept, timeout=LONG)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in open_metrics(answer.text)} >= {"pymtp:generation_tokens", "pymtp:info"}


DASHBOARD = json.loads((ROOT / "docs/how-to/grafana.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_dashboard_uses_only_existing_metrics_and_labels(served: Server) -> None:
    ask(served, stream=True)
    found: dict[str, set[str]] = {}
    for name, labels in Scraped(served).samples:
        found.setdefault(name, {"instance"}).update(label for label, _ in labels)
    for expression in EXPRESSIONS:
        names = re.findall(r"([a-z0-9_:]+)\{", expression)
        assert names
        for name in names:
            assert name in found, expression
            selected = re.findall(r"(\w+)=~", expression)
            grouped = [label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")]
            assert {*selected, *grouped} <= found[name], expression
    for panel in PANELS:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= {"instance", *re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"])))}


def test_dashboard_can_be_imported_into_grafana() -> None:
    (source,) = DASHBOARD["__inputs"]
    assert (source["type"], source["pluginId"]) == ("datasource", "prometheus")
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["id"] is None
    assert {needed["type"] for needed in DASHBOARD["__requires"]} == {"grafana", "datasource", "panel"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)  # panels do not overlap
    assert max(x for x, _ in cells) == 23
    used = [panel["datasource"] for panel in PANELS] + [each["datasource"] for each in DASHBOARD["templating"]["list"]]
    used += [target["datasource"] for panel in PANELS for target in panel["targets"]]
    assert all(each == {"type": "prometheus", "uid": f"${{{source['name']}}}"} for each in used)
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    asked_for = {name for expression in EXPRESSIONS for name in re.findall(r"\$(\w+)", expression)}
    assert asked_for == {*variables, "__rate_interval"}
