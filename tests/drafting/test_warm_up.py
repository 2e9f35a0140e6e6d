"""Tests of the measurement before the first round, and of the first depths that `auto` chooses with it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from helpers.scripts import run_script
from helpers.simulate import (
    FAMILIES,
    Chances,
    Machine,
    best_fixed,
    falling_rates,
    sample_machine,
    simulate,
    steady_text,
)

import pymtp
from pymtp.context.context import Context
from pymtp.drafting import warm_up
from pymtp.drafting.depth import MAX_AUTO, AutoDepth, RoundCosts
from pymtp.drafting.warm_up import (
    BATCH_DEPTHS,
    CHAIN_STEPS,
    MAX_REPEATS,
    MAX_SECONDS,
    VERIFY_ROWS,
    MeasuredCosts,
    fastest_costs,
    measure,
)
from pymtp.errors import ClosedError, NativeError

NEVER = [0.0] * 8
GOOD = falling_rates(0.9, 0.97)
SETTINGS = 12  # number of random machines of each family
ANSWER = 256  # tokens


class ScriptedContext:
    """A context with scripted times on a clock of its own.

    A decode of n rows or steps takes n * row seconds, times `cheap` for n above 1.
    """

    n_ubatch = 512

    def __init__(self, row: float, draft_tokens: int = MAX_AUTO, n_seq_max: int = 1, cheap: float = 1.0) -> None:
        self.now, self.draft_tokens, self.n_seq_max = 0.0, draft_tokens, n_seq_max
        self.row, self.cheap = row, cheap
        self.held = [0] * n_seq_max  # tokens of each sequence
        self.rounds = 0  # the number of batch rounds
        self.decodes: list[tuple[str, int]] = []
        self.slow: set[int] = set()  # indices of decodes that take ten times as long
        self.first_token = 0.0  # seconds until the weights are in memory
        self.forgotten = 0  # the number of decodes before forget_chosen()
        self.failed: dict[int, object] = {}  # failing sequences of batch rounds, with their errors

    def _decode(self, what: str, n: int) -> None:
        self.now += self.row * n * (10 if len(self.decodes) in self.slow else 1) * (self.cheap if n > 1 else 1)
        self.decodes.append((what, n))

    def clock(self) -> float:
        return self.now

    @property
    def n_past(self) -> int:
        return self.held[0]

    def set_sampling(self, sampler: object, seq: int = 0) -> None: ...

    def prefill(self, tokens: Sequence[int]) -> None:
        self.now += self.first_token
        self.held[0] += len(tokens)

    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> None:
        assert (len(prompts), max(self.held)) == (self.n_seq_max, 0)
        self.held = [1] * self.n_seq_max

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, object]:
        self._decode("drafts", n * len(tokens))
        return dict(tokens)

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, object]:
        assert self.held == [1 + self.rounds] * len(chains), "the drafts of the round before must have been removed"
        self._decode("rows", sum(len(chain) for chain in chains.values()))
        self.held = [n + len(chain) for n, chain in zip(self.held, chains.values(), strict=True)]
        self.rounds += 1
        return dict(chains) | self.failed

    def draft_chain(self, token: int, n: int) -> None:
        self._decode("draft", n)

    def verify_chain(self, tokens: Sequence[int]) -> None:
        self._decode("verify", len(tokens))
        self.held[0] += len(tokens)

    def rewind(self, n_keep: int, seq: int = 0) -> None:
        self.held[seq] = n_keep

    def clear(self) -> None:
        self.held = [0] * self.n_seq_max

    def forget_chosen(self) -> None:
        self.forgotten = len(self.decodes)


def measured(context: ScriptedContext) -> MeasuredCosts:
    return measure(context, 1000, context.clock)


def test_measure_returns_the_fastest_time_of_each_verification_and_of_the_chain() -> None:
    context = ScriptedContext(0.001, cheap=0.5)
    context.slow = {0, 1, 2, 3, 4, 7}  # the first repeat, and one of the second
    costs = measured(context)
    assert costs.draft == pytest.approx({CHAIN_STEPS: 0.0005 * CHAIN_STEPS})
    assert costs.verify == pytest.approx({1: 0.001} | {n: 0.0005 * n for n in VERIFY_ROWS})
    assert context.n_past == 0
    assert context.forgotten == len(context.decodes) > 0
    assert len(context.decodes) <= MAX_REPEATS * (2 + len(VERIFY_ROWS))


def test_measure_ignores_the_first_run_of_each_batch_round() -> None:
    context = ScriptedContext(0.0001, n_seq_max=4)
    measured(context)
    alone = len([what for what, _ in context.decodes if what in ("draft", "verify")])
    context = ScriptedContext(0.0001, n_seq_max=4)
    context.slow = {alone, alone + 3, alone + 7}  # the first run of three of the rounds
    found = measured(context).batch
    assert found == {
        (4, depth): pytest.approx((0.0004 * depth, 0.0004 * (1 + depth)), abs=1e-9) for depth in BATCH_DEPTHS
    }
    assert context.n_past == 0
    assert context.forgotten == len(context.decodes)
    assert not measured(ScriptedContext(0.0001)).batch


def test_measure_raises_for_a_sequence_without_finite_logits() -> None:
    context = ScriptedContext(0.0001, n_seq_max=4)
    context.failed = {2: NativeError("no finite logits at position 2")}
    with pytest.raises(NativeError, match="no finite logits"):
        measured(context)
    assert [what for what, _ in context.decodes].count("rows") == 1


def test_measure_starts_no_batch_round_that_would_miss_the_deadline() -> None:
    for row in (0.001, 0.005, 0.01, 0.03, 0.3):
        context = ScriptedContext(row, n_seq_max=8)
        found = measured(context).batch
        assert context.now <= max(1.25 * MAX_SECONDS, 6 * row)
        assert len(found) == {0.001: 4, 0.005: 3, 0.01: 3, 0.03: 1, 0.3: 0}[row]


def test_measure_stops_for_a_waiting_request_and_drops_decodes_that_ran_once() -> None:
    whole = ScriptedContext(0.001, n_seq_max=4)
    measured(whole)
    for n in range(len(whole.decodes)):
        context = ScriptedContext(0.001, n_seq_max=4)
        found = measure(context, 1000, context.clock, lambda: len(context.decodes) >= n)  # noqa: B023
        assert len(context.decodes) <= n + 1  # a draft chain is always followed by its verification
        assert (context.n_past, context.forgotten) == (0, len(context.decodes))
        timed = [launch for launch in set(context.decodes) if context.decodes.count(launch) > 1]
        assert set(found.verify) == {rows for what, rows in timed if what == "verify"}
        assert len(found.batch) <= context.rounds // 2


def test_measure_delays_no_request_by_a_long_batch_round() -> None:
    for row in (0.001, 0.005, 0.05):
        context = ScriptedContext(row, n_seq_max=4)
        found = measure(context, 1000, context.clock, lambda: False).batch
        assert (context.rounds, len(found)) == {0.001: (8, 4), 0.005: (4, 2), 0.05: (0, 0)}[row]


def test_measure_limits_batch_rounds_to_the_rows_and_drafts_of_the_context() -> None:
    found = measured(ScriptedContext(1e-6, n_seq_max=128)).batch
    assert [depth for _, depth in found] == [0, 1, 3]  # n_ubatch is 512 rows, and depth 7 would need 1024
    found = measured(ScriptedContext(1e-6, n_seq_max=4, draft_tokens=2)).batch
    assert [depth for _, depth in found] == [0, 1]


def test_measure_of_a_large_model_starts_no_decode_after_two_seconds() -> None:
    context = ScriptedContext(0.5)
    costs = measured(context)
    assert (
        context.decodes == [("verify", 1), ("draft", CHAIN_STEPS), ("verify", VERIFY_ROWS[0])][: len(context.decodes)]
    )
    assert context.now <= MAX_SECONDS + 0.5 * VERIFY_ROWS[0]
    assert 1 in costs.verify


def test_measure_verifies_at_most_all_drafts_and_one_token() -> None:
    context = ScriptedContext(0.001, draft_tokens=2)
    assert set(measured(context).verify) == {1, 2}
    assert max(n for _, n in context.decodes) == 2


def test_fastest_cost_of_n_rows_is_at_most_n_times_that_of_one_row() -> None:
    context = ScriptedContext(0.1)
    context.slow = {2}  # the verification of four rows, which runs only once in the time
    assert measured(context).verify[4] == pytest.approx(0.4)


def test_fastest_cost_of_a_chain_of_n_steps_is_at_most_n_times_that_of_one_row() -> None:
    assert fastest_costs({("verify", 1): [0.1], ("draft", 3): [0.9, 0.7]}).draft[3] == pytest.approx(0.3)


def test_next_llm_measures_if_loading_weights_used_up_the_time(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ScriptedContext(0.1)
    context.first_token = MAX_SECONDS + 0.1
    assert measured(context) == MeasuredCosts()
    assert (context.decodes, context.n_past) == ([], 0)
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

    def fails(context: Context, _tokens: Sequence[int]) -> list[int]:
        measured.append(context)
        raise error

    with pymtp.Model(demo) as model:
        with monkeypatch.context() as patch:
            patch.setattr(Context, "verify_chain", fails)
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
    verify_chain = Context.verify_chain
    texts: list[str] = []

    def handler(*_: object) -> None:
        texts.append(text(model))

    def interrupted(context: Context, tokens: Sequence[int], seq: int = 0) -> list[int]:
        monkeypatch.setattr(Context, "verify_chain", verify_chain)
        os.kill(os.getpid(), signal.SIGUSR1)
        return verify_chain(context, tokens, seq)

    def text(model: pymtp.Model) -> str:
        with auto(model) as llm:
            return llm.generate("def f(", pymtp.SamplingParams(max_tokens=8)).text

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with pymtp.Model(demo) as model:
            monkeypatch.setattr(Context, "verify_chain", interrupted)
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
    verify_chain = Context.verify_chain

    def endless(context: Context, tokens: Sequence[int], seq: int = 0) -> list[int]:
        launched.append(context)
        if len(launched) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        while True:  # until it is cancelled
            verify_chain(context, tokens)
            context.rewind(1)

    with pymtp.Model(demo) as model:
        monkeypatch.setattr(Context, "verify_chain", endless)
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


def costs_of(machine: Machine, costs: RoundCosts, rows: Sequence[int] = (1, 2, 4, 8)) -> RoundCosts:
    """Return RoundCosts that begin with the machine's true seconds."""
    costs.begin({n: machine.verify[n - 1] for n in rows}, {CHAIN_STEPS: machine.draft[CHAIN_STEPS]})
    return costs


def first_answer_rates(family: str, chances: Chances) -> list[float]:
    """Return the tokens/s of first answers, relative to the best fixed depth."""
    ratios = []
    for i in range(SETTINGS):
        machine = sample_machine(family, Random(f"{family} {i}"))
        _, best = best_fixed(machine, chances)
        runs = [
            simulate(
                AutoDepth(costs_of(machine, RoundCosts())), machine, steady_text(chances), tokens=ANSWER, seed=n
            ).rate
            for n in range(4)
        ]
        ratios.append(sum(runs) / len(runs) / best)
    return ratios


@pytest.mark.parametrize("family", FAMILIES)
def test_first_answer_is_close_to_the_best_fixed_depth(family: str) -> None:
    for chances in (GOOD, [0.85, 0.75, 0.65, *[0.6] * 5]):
        ratios = first_answer_rates(family, chances)
        assert sum(ratios) / len(ratios) >= 0.95


@pytest.mark.parametrize("family", FAMILIES)
def test_first_answer_without_acceptance_loses_at_most_three_percent(family: str) -> None:
    assert min(first_answer_rates(family, NEVER)) >= 0.97


def test_first_round_makes_drafts_if_costs_were_measured() -> None:
    flat = Machine(tuple(0.0005 * n for n in range(9)), tuple(0.01 * (1 + 0.1 * n) for n in range(9)))
    assert AutoDepth(costs_of(flat, RoundCosts())).choose(7, 0) > 1
    assert AutoDepth(RoundCosts()).choose(7, 0) == 0


def test_head_is_probed_even_if_measured_costs_are_best_without_drafts() -> None:
    steep = Machine(tuple(0.0013 * n for n in range(9)), tuple(0.01 * cost for cost in (1, 2, 2.4, *[2.6] * 6)))
    policy = AutoDepth(costs_of(steep, RoundCosts()))
    assert policy.n_to_verify([0.5] * policy.choose(7, 0)) == 0
    assert max(simulate(policy, steep, steady_text(GOOD), rounds=30).depths) > 1


def test_lower_bounds_of_measured_costs_are_closer_than_those_of_interpolated_costs() -> None:
    costs = RoundCosts()
    costs.begin({1: 0.010, 4: 0.016, 8: 0.040}, {3: 0.003})
    likely, least = costs.rounds(8)
    assert likely[3] == pytest.approx(0.003 + 0.016, rel=0.1)
    hopes = [low / high for low, high in zip(least, likely, strict=True)]
    assert hopes[5] < hopes[3] < hopes[0] == 1
    assert hopes[8] < hopes[7]


def test_costs_of_later_rounds_replace_a_wrong_measurement() -> None:
    costs = RoundCosts()
    costs.begin({1: 0.010, 4: 0.030}, {3: 0.003})
    for i in range(10):
        costs.observe(0, 0, 0.0, 4, 0.014, i)
    assert costs.verify_seconds(4) == pytest.approx(0.014, rel=0.1)
