"""Tests of the comparison of requests with llama-server, on made-up measurements without a server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import bench_server
import pytest
from bench_server import BENCH, SERVER, Case, Measurement, Prompts, make_arms, measure, notes, summary
from peer import Comparison

from pymtp import InvalidRequestError
from pymtp.model.model import demo_model


def test_case_is_parsed_into_model_requests_tokens_and_temperature(tmp_path: Path) -> None:
    sampled = Case.read("demo:8:256:0.7", 48, 2)
    assert (sampled.model, sampled.held_out) == (demo_model(), True)
    assert (sampled.requests, sampled.tokens, sampled.temperature, sampled.n_ctx) == (8, 256, 0.7, 512)
    file = tmp_path / "x.gguf"
    file.touch()
    greedy = Case.read(f"{file}:4:64", 48, 2)
    assert (greedy.model, greedy.held_out, greedy.temperature, greedy.n_ctx) == (file, False, 0.0, 256)


@pytest.mark.parametrize("text", ["demo", "demo:8", "demo:8:many", "nowhere.gguf:8:64"])
def test_invalid_case_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Case.read(text, 48, 2)


def test_rounds_alternate_the_order_of_arms_and_skip_deleted_arms() -> None:
    ran: list[str] = []
    arms = {arm: lambda arm=arm: ran.append(arm) or float(len(ran)) for arm in "abc"}
    results = Comparison[float](float)
    for number, measured in enumerate(results.run("x", arms, 3)):
        assert list(measured) == list(arms)
        if number == 1:
            del arms["b"]
    assert "".join(ran) == "abc" + "cba" + "ac"
    assert results.values("b") == [2.0, 5.0]
    assert results.ratios("b", "a") == [2.0, 5 / 6]


PROMPTS = Prompts(["x"], [[1]], {})


def arms_of(case: Case, **more: object) -> bench_server.Arms:
    """Return arms of pymtp and of llama-server, whose `more` are further arguments of make_arms."""
    return make_arms(case, PROMPTS, ("0", "auto"), ("0", "1", "2", "3"), {SERVER: Path("server")}, **more)  # type: ignore[arg-type]


def test_slow_arms_of_the_server_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"0": 15.0, "1": 7.5, "2": 6.5, "3": 20.0}
    faster = iter([1.0, 1.0, 1.0, 0.5, 2.0])

    def server(program: Path, files: object, case: Case, drafts: str, prompts: object) -> Measurement:
        return Measurement(speeds[drafts] * (next(faster) if drafts == "3" else 1.0), 0.5, texts=[[1, 2]])

    def in_a_process(call: object, *arguments: object) -> object:
        auto = arguments[2] == "auto"
        return Measurement(30.0 if auto else 15.0, 0.25, None, 4, 3, [[1, 3 if auto else 2]])

    monkeypatch.setattr(bench_server, "measure_server", server)
    monkeypatch.setattr(bench_server, "in_a_process", in_a_process)
    case = Case.read("demo:2:16", 8, 1)
    results = measure(case, 5, arms_of(case))
    assert [len(measured) for measured in results.rounds] == [6, 4, 4, 4, 4]
    medians = summary(results)
    assert medians["compared_with"] == "llama-server 3"
    assert medians["median_tokens_per_second"]["llama-server 1"] == 7.5
    assert medians["ratios"]["pymtp auto"] == [1.5, 1.5, 1.5, 3.0, 0.75]
    assert medians["median_ratio_to_it"] == {"pymtp plain": 0.75, "pymtp auto": 1.5}
    assert medians["same_text"]["pymtp plain"]["differing"] == 0
    assert medians["same_text"]["pymtp auto"]["first_differences"] == [(0, 1, 2, 3)]
    assert medians["acceptance"]["pymtp auto"] == 0.75


def test_arms_are_compared_with_llama_bench_or_the_first_of_pymtp_without_llama_server() -> None:
    def results(*arms: str) -> Comparison[Measurement]:
        rounds = [{arm: Measurement(2.0**i, 0.5, texts=[[1]]) for i, arm in enumerate(arms)}]
        return Comparison(lambda m: m.speed, rounds)

    both = summary(results("pymtp plain", BENCH))
    assert (both["compared_with"], both["median_ratio_to_it"]) == (BENCH, {"pymtp plain": 0.5})
    alone = summary(results("pymtp auto", "HTTP chat"))
    assert (alone["compared_with"], alone["median_ratio_to_it"]) == ("pymtp auto", {"HTTP chat": 2.0})


def test_arms_on_two_files_are_compared_with_the_same_arm_on_one_file() -> None:
    one, two = Measurement(10.0, 0.5), Measurement(11.0, 0.25)
    rounds = [{"pymtp 3": one, "pymtp 3, two files": two}] * 2
    medians = summary(Comparison(lambda m: m.speed, rounds))
    assert medians["two_files_over_one"] == {"pymtp 3": [1.1, 1.1]}
    assert medians["one_file_s_wait_over_two_files"] == {"pymtp 3": [2.0, 2.0]}
    assert "pymtp 3: on two files, relative to one file: decoding 1.100  -, prompts 2.000  -" in notes(medians)


def test_clients_over_http_generate_as_many_tokens_as_the_engine(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(demo, True, 2, 12, 0.0, 128, 1)
    prompts = Prompts.of(case, chats=True)
    with bench_server.serve(demo, ctx=256, n_seq_max=2, threads=1, cache=0) as server:  # one start for both APIs
        monkeypatch.setattr(bench_server, "serve", lambda *_, **options: started.append(options) or nullcontext(server))
        started: list[dict[str, object]] = []
        for api in ("chat", "completions"):
            assert bench_server.measure_http(case, api, prompts).speed > 0
    assert started == [{"ctx": 256, "n_seq_max": 2, "threads": 1, "cache": 0}] * 2
    engine = bench_server.measure_pymtp((demo, None), case, "auto", prompts)
    assert [len(text) for text in engine.texts] == [12, 12]


def test_llama_bench_decodes_as_many_tokens_after_as_many_as_pymtp(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(bench_server.llama_bench, "run", lambda *_, **work: asked.update(work) or {"avg_ts": 7})
    assert bench_server.measure_llama_bench(Path("x"), Case.read("demo:1:16", 128, 2)).speed == 7
    assert asked == {"n_prompt": 0, "n_gen": 16, "n_depth": 128, "threads": 2}


def test_requests_one_after_the_other_are_compared_by_their_decoding_alone() -> None:
    texts = [[1, 2, 3], [4, 5, 6]]
    assert bench_server.speed(Case.read("demo:1:16", 8, 1), texts, 10.0, [0.5, 1.5]) == 2.0
    assert bench_server.speed(Case.read("demo:2:16", 8, 1), texts, 10.0, [0.5, 1.5]) == 0.6
