"""Tests of the comparison of prefixes with llama-server, on made-up measurements without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bench_prefix
import pytest
from bench_prefix import (
    MORE,
    PYMTP,
    SERVER,
    SERVER_ARMS,
    Case,
    Measurement,
    Settings,
    measure,
    prepare,
    server_options,
    summary,
)

from pymtp.bench.prefix import TraceRun
from pymtp.bench.traces import CHAT, PREFIXES, TraceVocabulary, make
from pymtp.llm import LLM

VOCAB = TraceVocabulary(range(100, 2000), (1, 2, 3), (1, 4, 3), (5, 3), 0.1)
SETTINGS = Settings(Path("m.gguf"), 2, 1, 64, 0.1, 3)


def case(name: str = CHAT) -> Case:
    return Case(SETTINGS, make(name, VOCAB).first(3), VOCAB, 64, 5)


def made_up(read: int, seconds: float) -> Measurement:
    return Measurement([100, 200], [100, 20], [100, read - 100], [seconds / 2] * 2, 2**20)


def test_pymtp_is_compared_with_the_best_server_arm_that_has_the_same_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = dict(zip([*SERVER_ARMS, MORE], (300, 200, 240, 150), strict=True))
    cache_ram: list[object] = []

    def server(program: Path, case: Case, options: dict[str, object]) -> Measurement:
        cache_ram.append(options["cache_ram"])
        return made_up(next(reads[arm] for arm, own in server_options(case).items() if own == options), 2.0)

    monkeypatch.setattr(bench_prefix, "measure_server", server)
    monkeypatch.setattr(bench_prefix, "in_a_process", lambda *_: made_up(120, 0.5))
    results = measure(case(), 2, Path("server"))
    assert cache_ram == [59, 59, 59, 64, 64, 59, 59, 59]  # the second round has the opposite order
    medians = summary(results)
    assert medians["best_of_llama_server"] == f"{SERVER}, ubatch 256"
    assert medians["read"] == {**reads, PYMTP: 120}
    assert medians["read_ratio"] == 0.6
    assert medians["first_token_ratio"] == 0.25
    shown = bench_prefix.table(case(), medians).rows
    assert shown[-1] == ("pymtp", "300", "120", "120", "1.000", "0.50", "1.000", "1")


def test_cache_limit_is_half_of_the_prefixes_unless_given(demo: Path) -> None:
    chat, prefixes = prepare(replace(SETTINGS, model=demo), [CHAT, PREFIXES])
    assert chat.cache_mib == 64
    with LLM(demo, n_ctx=64, n_threads=1) as llm:
        n = 6 * (200 * llm.context.state.cell_bytes + llm.context.state.max_bytes)
    assert 0 <= prefixes.cache_mib * 2**20 - n < 2**20
    assert len(prefixes.trace.requests) == 3
    assert server_options(replace(prefixes, live_mib=99))[SERVER] == {"cache_ram": 1}


def test_server_gets_prompts_and_answers_of_the_same_lengths_as_pymtp(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the lengths of prompts and answers, as generated tokens differ."""
    received: list[tuple[list[int], int]] = []

    class Server:
        pid = None

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None: ...

        def complete(self, prompt: list[int], n: int, **options: object) -> object:
            if not options:
                return None
            assert options == {"cache": True, "user": "<|im_start|>user\n"}
            received.append((prompt, n))
            return bench_prefix.Answer([7] * n, 0.1, 0.2, len(prompt), 0, 0, 0)

    monkeypatch.setattr(bench_prefix.llama_server, "start", lambda *_, **options: Server())
    server_result = bench_prefix.measure_server(Path("server"), case(), {})
    assert server_result.read == server_result.prompt == [len(prompt) for prompt, _ in received]
    assert server_result.first_token == [0.2] * 3
    assert server_result.resident > 0
    with LLM(demo, n_ctx=512, n_threads=1) as llm:
        run = TraceRun(llm)
        for wave in case().trace.waves:
            run.run_wave(wave)
    assert [len(prompt) for prompt in run.prompts] == server_result.prompt
    assert [len(answer) for answer in run.answers] == [n for _, n in received]
