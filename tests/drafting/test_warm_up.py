"""Tests of the measurement before the first round, and of the first depths that `auto` chooses with it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from helpers.scripts import run_script

import pymtp
from pymtp.context.context import Context
from pymtp.drafting import warm_up
from pymtp.drafting.depth import MAX_AUTO, RoundSeconds, RoundTime
from pymtp.drafting.warm_up import DEPTHS, MAX_REPEATS, MAX_SECONDS, fastest, measure
from pymtp.errors import ClosedError, NativeError


class ScriptedContext:
    """A context with scripted times on a clock of its own.

    A decode of n rows or steps takes n * row seconds, times `cheap` for n above 1.
    """

    n_ubatch = 512

    def __init__(self, row: float, draft_tokens: int = MAX_AUTO, n_seq_max: int = 1, cheap: float = 1.0) -> None:
        self.now, self.draft_tokens, self.n_seq_max = 0.0, draft_tokens, n_seq_max
        self.row, self.cheap = row, cheap
        self.held = [0] * n_seq_max  # tokens of each sequence
        self.decodes: list[tuple[str, int, int]] = []  # kind, sequences, and rows or steps of each
        self.slow: set[int] = set()  # indices of decodes that take ten times as long
        self.first_token = 0.0  # seconds until the weights are in memory
        self.forgotten = 0  # the number of decodes before forget_chosen()
        self.failed: dict[int, object] = {}  # failing sequences of batch rounds, with their errors

    def _decode(self, what: str, n_seqs: int, n: int) -> None:
        slow = 10 if len(self.decodes) in self.slow else 1
        self.now += self.row * n_seqs * n * slow * (self.cheap if n_seqs * n > 1 else 1)
        self.decodes.append((what, n_seqs, n))

    def clock(self) -> float:
        return self.now

    def set_sampling(self, sampler: object, seq: int = 0) -> None: ...

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> None:
        assert max(self.held) == 0
        self.now += self.first_token
        self.held = [len(prompts.get(seq, ())) for seq in range(self.n_seq_max)]

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, object]:
        assert n <= self.draft_tokens
        self._decode("draft", len(tokens), n)
        return dict(tokens)

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, object]:
        assert len(set(self.held[: len(chains)])) == 1, "the drafts of the round before must have been removed"
        (n,) = {len(chain) for chain in chains.values()}
        self._decode("verify", len(chains), n)
        for seq in chains:
            self.held[seq] += n
        return dict(chains) | self.failed

    def rewind(self, n_keep: int, seq: int = 0) -> None:
        self.held[seq] = n_keep

    def clear(self) -> None:
        self.held = [0] * self.n_seq_max

    def forget_chosen(self) -> None:
        self.forgotten = len(self.decodes)

    def rounds(self, n_seqs: int) -> list[int]:
        """Return the depths of all rounds of n_seqs sequences."""
        return [n - 1 for what, seqs, n in self.decodes if (what, seqs) == ("verify", n_seqs)]


def measured(context: ScriptedContext) -> RoundSeconds:
    return measure(context, 1000, context.clock)


def test_measure_returns_the_fastest_time_of_each_depth() -> None:
    context = ScriptedContext(0.001, n_seq_max=4, cheap=0.5)
    first = ScriptedContext(0.001)
    measured(first)
    turn = len(first.decodes) // MAX_REPEATS
    context.slow = {*range(turn), turn + 3}  # the first turn of rounds of one sequence, and one decode of the second
    costs = measured(context)
    for depth in (2, 3, 5, 7):
        assert costs[1, depth][:2] == pytest.approx((0.0005 * depth, 0.0005 * (1 + depth)))
    assert costs[1, 0][:2] == (0.0, pytest.approx(0.001))
    assert costs[1, 1][:2] == pytest.approx((0.001, 0.001))
    assert {n for n, _ in costs} == {1, 4}
    assert set(context.held) == {0}
    assert context.forgotten == len(context.decodes) > 0


def test_measure_goes_on_while_rounds_become_faster() -> None:
    # as on a GPU, where the first run of a shape loads kernels and the second records a graph
    context, runs = ScriptedContext(0.001), Counter[int]()

    def slow_at_first(n_seqs: int, n: int) -> float:
        runs[n] += 1
        return [10.0, 25.0, 1.0][min(runs[n], 3) - 1] if n > 2 else 1.0

    verify = context.verify_chains

    def verify_chains(chains: Mapping[int, Sequence[int]]) -> dict[int, object]:
        (n,) = {len(chain) for chain in chains.values()}
        context.now += 0.001 * n * (slow_at_first(len(chains), n) - 1)
        return verify(chains)

    context.verify_chains = verify_chains  # type: ignore[method-assign]
    costs = measured(context)
    assert {depth for _, depth in costs} == set(range(8))  # each new number of rows takes long
    for depth in range(2, 8):
        assert costs[1, depth].verify == pytest.approx(0.001 * (1 + depth))


def test_measure_ignores_the_first_run_of_rounds_of_several_sequences() -> None:
    context = ScriptedContext(0.0001, n_seq_max=4)
    measured(context)
    begun = next(i for i, (_, n_seqs, _) in enumerate(context.decodes) if n_seqs == 4)
    context = ScriptedContext(0.0001, n_seq_max=4)
    context.slow = set(range(begun, begun + 2 * len(DEPTHS)))
    found = measured(context)
    for depth in DEPTHS:
        assert found[4, depth][:2] == pytest.approx((0.0004 * depth, 0.0004 * (1 + depth)), abs=1e-9)


def test_measure_raises_for_a_sequence_without_finite_logits() -> None:
    context = ScriptedContext(0.0001, n_seq_max=4)
    context.failed = {0: NativeError("no finite logits at position 2")}
    with pytest.raises(NativeError, match="no finite logits"):
        measured(context)
    assert len(context.rounds(1)) == 1


def test_measure_starts_no_round_that_would_miss_the_deadline() -> None:
    for row in (0.001, 0.005, 0.01, 0.03, 0.3):
        context = ScriptedContext(row, n_seq_max=8)
        found = measured(context)
        assert context.now <= max(1.25 * MAX_SECONDS, 20 * row)
        assert len([1 for n, _ in found if n == 8]) == {0.001: 6, 0.005: 2, 0.01: 2, 0.03: 0, 0.3: 0}[row]


def test_measure_stops_for_a_waiting_request_and_drops_rounds_that_ran_once() -> None:
    whole = ScriptedContext(0.001, n_seq_max=4)
    measured(whole)
    for n in range(len(whole.decodes)):
        context = ScriptedContext(0.001, n_seq_max=4)
        found = measure(context, 1000, context.clock, lambda: len(context.decodes) >= n)  # noqa: B023
        assert len(context.decodes) <= n + 2  # a chain of drafts is always followed by its verification
        assert (set(context.held), context.forgotten) == ({0}, len(context.decodes))
        assert all(context.rounds(n_seqs).count(depth) > 1 for n_seqs, depth in found)


def test_measure_delays_no_request_by_a_long_round_of_all_sequences() -> None:
    for row in (0.001, 0.005, 0.05):
        context = ScriptedContext(row, n_seq_max=4)
        found = measure(context, 1000, context.clock, lambda: False)
        assert max(context.rounds(4), default=None) == {0.001: 7, 0.005: 1, 0.05: 0}[row]
        assert (1, 7) in found


def test_measure_limits_rounds_to_the_rows_and_drafts_of_the_context() -> None:
    found = measured(ScriptedContext(1e-6, n_seq_max=128))
    assert sorted(depth for n, depth in found if n == 128) == [0, 1, 2, 3]  # n_ubatch is 512 rows; depth 5 has 768
    found = measured(ScriptedContext(1e-6, n_seq_max=4, draft_tokens=2))
    assert sorted(depth for n, depth in found if n == 4) == [0, 1, 2]


def test_measure_of_a_large_model_starts_no_round_that_ends_after_two_seconds() -> None:
    context = ScriptedContext(0.3)
    costs = measured(context)
    assert max(context.rounds(1)) == 1
    assert context.now <= MAX_SECONDS
    assert set(costs) == {(1, 0), (1, 1)}


def test_times_of_n_drafts_are_limited_by_the_time_of_a_round_without() -> None:
    found = fastest({0: [(0.0, 0.1)], 3: [(0.9, 0.7), (0.8, 0.9)], 7: []}, {0: [(0.0, 0.3)], 3: []})
    assert found == {0: (0.0, 0.1, 0.0, pytest.approx(0.2)), 3: (pytest.approx(0.3), pytest.approx(0.4), 0.0, 0.0)}
    assert fastest({0: [], 1: [(0.1, 0.1)]}, {0: [], 1: []}) == {}


def test_next_llm_measures_if_loading_weights_used_up_the_time(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ScriptedContext(0.1)
    context.first_token = MAX_SECONDS + 0.1
    assert measured(context) == {}
    assert (context.decodes, context.held) == ([], [0])
    monkeypatch.setattr(warm_up, "MAX_SECONDS", 0.0)
    with pymtp.Model(demo) as model:
        with auto(model) as llm:
            assert llm.generate("def f(", pymtp.SamplingParams(max_tokens=8)).token_ids
        assert model.measured_costs == {}
        monkeypatch.undo()
        with auto(model):
            assert len(model.measured_costs) == 1


def test_llm_without_finite_logits_can_be_made_and_fails_at_the_first_request(demo_f32: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    shutil.copy(demo_f32, path)
    reader = GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight").data[:] = np.nan
    reader.data.flush()
    with pymtp.Model(path) as model, auto(model) as llm, pytest.raises(NativeError, match="no finite logits"):
        llm.generate("def f(", pymtp.SamplingParams(max_tokens=4))


def auto(model: pymtp.Model, n_threads: int = 1, **keywords: Any) -> pymtp.LLM:
    return pymtp.LLM(model, n_ctx=256, n_threads=n_threads, **keywords)


def test_llm_is_empty_after_a_measurement_and_generates_the_same_text(demo: Path) -> None:
    params = pymtp.SamplingParams(max_tokens=40, temperature=0.7, seed=1)
    with pymtp.Model(demo) as model, auto(model) as llm, auto(model, draft_tokens=0) as plain:
        assert llm.context.counters.target_decodes > 0
        assert (llm.context.tokens(), llm.context.inspect.head_rows()) == ([], 0)
        assert llm.generate("def f(", params).text == plain.generate("def f(", params).text


def test_llms_with_equal_options_are_measured_once(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pymtp.Model(demo) as model:
        launches = []
        for n_threads, more in ((1, {}), (1, {}), (2, {}), (1, {"type_k": "f32"}), (1, {"draft_tokens": 7})):
            with auto(model, n_threads, **more) as llm:
                launches.append(llm.context.counters.target_decodes > 0)
    assert launches == [True, False, True, True, False]


@pytest.mark.parametrize("error", [NativeError("out of memory"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
def test_llm_raises_the_error_of_a_measurement_and_the_next_llm_measures(
    demo: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    measured: list[Context] = []

    def fails(context: Context, _chains: object) -> None:
        measured.append(context)
        raise error

    with pymtp.Model(demo) as model:
        with monkeypatch.context() as patch:
            patch.setattr(Context, "verify_chains", fails)
            with pytest.raises(type(error)):
                auto(model)
        with pytest.raises(ClosedError):  # the failed constructor has closed its context
            measured[0].tokens()
        assert model.measured_costs == {}
        with auto(model) as llm:
            assert len(model.measured_costs) == 1
            assert llm.generate("def f(", pymtp.SamplingParams(max_tokens=4)).token_ids


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="SIGUSR1 needs POSIX")
def test_signal_handler_may_create_an_llm_of_the_model_under_measurement(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_chains = Context.verify_chains
    texts: list[str] = []

    def handler(*_: object) -> None:
        texts.append(text(model))

    def interrupted(context: Context, chains: Any) -> Any:
        monkeypatch.setattr(Context, "verify_chains", verify_chains)
        os.kill(os.getpid(), signal.SIGUSR1)
        return verify_chains(context, chains)

    def text(model: pymtp.Model) -> str:
        with auto(model) as llm:
            return llm.generate("def f(", pymtp.SamplingParams(max_tokens=8)).text

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with pymtp.Model(demo) as model:
            monkeypatch.setattr(Context, "verify_chains", interrupted)
            texts.append(text(model))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert len(texts) == 2
    assert len(set(texts)) == 1


def is_running(function: Any, frame: FrameType | None) -> bool:
    """Return whether a frame or one of its callers is the given function."""
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def test_ctrl_c_ends_a_measurement_and_its_thread(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Context] = []
    verify_chains = Context.verify_chains

    def endless(context: Context, chains: Any) -> Any:
        launched.append(context)
        if len(launched) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        while True:  # until it is cancelled
            verify_chains(context, chains)
            context.rewind(1)

    with pymtp.Model(demo) as model:
        monkeypatch.setattr(Context, "verify_chains", endless)
        with pytest.raises(KeyboardInterrupt):
            auto(model)
        assert not any(is_running(endless, frame) for frame in sys._current_frames().values())
        with pytest.raises(ClosedError):
            launched[0].tokens()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_threads_that_use_llms_share_one_thread_pool() -> None:
    assert run_script("""
with pymtp.LLM(model, n_threads=2, n_ctx=64) as llm, pymtp.LLM(model, n_threads=2, n_ctx=64) as other:
    for one in (llm, other, llm):
        asker = threading.Thread(target=one.generate, args=["import "])
        asker.start()
        asker.join()
        one.generate("import ")
end = time.monotonic() + 10
while n_threads() - before_models > 1 and time.monotonic() < end:
    time.sleep(0.01)  # the threads of the LLMs end
print(n_threads() - before_models)
""") == ["1"]


def test_costs_measured_while_the_number_of_threads_changed_are_not_kept(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = iter([0, 1, 1, 1])
    monkeypatch.setattr(warm_up, "thread_changes", lambda: next(changes))
    monkeypatch.setattr(warm_up, "measure", lambda *_, **__: {(1, 0): RoundTime(0.0, 1.0)})
    with pymtp.Model(demo) as model:
        for kept in (0, 1):
            assert warm_up.measure_costs(model, "options", ScriptedContext(0.001))
            assert len(model.measured_costs) == kept
