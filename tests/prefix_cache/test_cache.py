"""Tests of the prefix cache, without a model: where prompts continue, which wait, and which checkpoints are kept."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from helpers.simulate_prefixes import SimEngine, SimRequest, text

from pymtp.errors import CancelledError, NativeError
from pymtp.prefix_cache.tree import CheckpointReason

DOCUMENT = text(1, 2000)


def question(i: int, n: int = 48) -> tuple[int, ...]:
    return text(100 + i, n)


def calls(engine: SimEngine, request: SimRequest) -> set[str]:
    """Run the engine until a request finishes, and return the context's methods that were called."""
    engine.context.calls.clear()
    while engine.step() and not request.finished:
        pass
    assert request.finished
    return set(engine.context.calls)


# ── Lookup ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prompt_continues_in_the_sequence_that_holds_its_first_tokens() -> None:
    engine = SimEngine(4, alignment=1)
    answer = text(2, 50)
    engine.submit_and_run(DOCUMENT, answer)
    engine.context.calls.clear()
    more = engine.submit_and_run(DOCUMENT + answer + question(0))
    assert more.n_prefilled == 48
    assert set(engine.context.calls) <= {"prefill", "save_state"}


def test_sequence_returns_to_a_checkpoint_without_copying_k_and_v() -> None:
    engine = SimEngine(1, cache_bytes=6 * 19000)
    engine.submit_and_run(DOCUMENT + question(0), branch_points=[2000])
    again = engine.submit(DOCUMENT + question(1), branch_points=[2000])
    assert calls(engine, again) <= {"save_state", "save_cells", "keep_cells", "load_state", "prefill"}
    assert again.n_prefilled == 2048 - 1984


def test_k_and_v_are_copied_from_another_sequence_rather_than_from_host_memory() -> None:
    engine = SimEngine(2)
    engine.submit_and_run(DOCUMENT + question(0, 1000))
    engine.submit_and_run(text(5, 3000))
    engine.submit_and_run(text(6, 3000))
    assert engine.cache.figures().tokens >= 2000  # the document is in host memory, and no longer in a sequence
    first = engine.submit(DOCUMENT + question(1), question(9, 200))
    while not first.generating:
        engine.step()
    second = engine.submit(DOCUMENT + question(2))
    methods = calls(engine, second)
    assert not first.finished
    assert "copy_cells" in methods
    assert "load_cells" not in methods


def fill_up(engine: SimEngine, n_tokens: int) -> None:
    """Lower the limit of host memory to the bytes in use, then make room for the K and V of n_tokens.

    The priority is that of checkpoints at prompt ends.
    """
    store = engine.cache.store
    ends = [
        node
        for node in store.tree.checkpoints
        if node.checkpoint and node.checkpoint.reason == CheckpointReason.PROMPT_END
    ]
    store.eviction.limit = store.tree.nbytes
    priority = max(map(store.eviction.priority, ends))
    assert store.make_room(n_tokens * engine.context.state.cell_bytes, priority, ())


def test_new_prompts_get_the_sequence_with_the_least_useful_contents() -> None:
    engine = SimEngine(2)
    for i in range(2):
        prompt = DOCUMENT + question(i)
        engine.submit_and_run(prompt, question(9), branch_points=[len(prompt)])
    fill_up(engine, 2000)
    taken = []
    for i in range(3):  # each gets the other sequence, whose contents are not useful
        request = engine.submit_and_run(text(20 + i, 700), question(i))
        assert request.prefill_state is not None
        taken.append(request.prefill_state.seq)
    assert len(set(taken)) == 1
    assert not {"load_cells", "copy_cells"} & calls(engine, engine.submit(DOCUMENT + question(3)))


def test_duplicate_k_and_v_leave_host_memory_before_checkpoints_are_evicted() -> None:
    engine = SimEngine(2)
    for i in range(2):
        engine.submit_and_run(DOCUMENT + question(i), branch_points=[2048])
    assert engine.cache.figures().tokens >= 2000
    fill_up(engine, 2000)
    assert engine.cache.figures().tokens < 100
    assert engine.submit_and_run(DOCUMENT + question(2)).n_prefilled == 64


def test_sequence_whose_copy_in_host_memory_was_freed_is_spilled_before_another_prompt_gets_it() -> None:
    engine = SimEngine(1)
    for i in range(2):
        engine.submit_and_run(DOCUMENT + question(i), branch_points=[2048])
    fill_up(engine, 2000)
    engine.submit_and_run(text(5, 3000))
    assert engine.submit_and_run(DOCUMENT + question(2)).n_prefilled == 64


def test_sequence_is_spilled_to_host_memory_when_another_prompt_gets_it() -> None:
    engine = SimEngine(1)
    engine.submit_and_run(DOCUMENT + question(0), branch_points=[2000])
    engine.submit_and_run(text(5, 3000))
    again = engine.submit(DOCUMENT + question(1))
    assert {"load_cells", "load_state"} <= calls(engine, again)
    assert again.n_prefilled == 64


def test_short_texts_without_a_common_prefix_take_no_host_memory() -> None:
    engine = SimEngine(2, alignment=1)
    for i, length in enumerate((63, 200, 575, 64, 300, 575)):  # prompts of 576 tokens or more get a checkpoint at 512
        engine.submit_and_run(text(20 + i, length), question(i, 100))
    assert not {"save_state", "save_cells"} & set(engine.context.calls)


@pytest.mark.parametrize("reason", ["goes on", "shares", "expected"])
def test_end_of_a_sequence_is_spilled_if_it_shares_a_prefix_or_will_be_continued(reason: str) -> None:
    engine = SimEngine(1, alignment=1)
    prompt, answer = text(20, 200), question(0, 100)
    if reason == "goes on":
        engine.submit_and_run(prompt[:150])
    elif reason == "shares":
        engine.submit_and_run(prompt[:64] + text(21, 100))
    engine.submit_and_run(prompt, answer, branch_points=[200] if reason == "expected" else ())
    engine.submit_and_run(text(22, 300))
    more = engine.submit(prompt + answer + question(1))
    assert "load_cells" in calls(engine, more)
    assert more.n_prefilled == 48


def test_repeated_prompt_is_not_prefilled_again() -> None:
    for n_seq in (1, 3):
        engine = SimEngine(n_seq)
        prompt = DOCUMENT + question(0)
        engine.submit_and_run(prompt, question(1), branch_points=[len(prompt)])
        engine.submit_and_run(text(5, 300), question(2))
        assert engine.submit_and_run(prompt).n_prefilled == 0


def test_prompt_that_ends_at_a_checkpoint_is_not_prefilled() -> None:
    for n_seq in (1, 3):
        engine = SimEngine(n_seq)
        engine.submit_and_run(DOCUMENT)
        engine.submit_and_run(text(5, 300), question(2))
        assert engine.submit_and_run(DOCUMENT[:1536]).n_prefilled == 0


def test_prompt_cannot_end_at_a_checkpoint_without_logits() -> None:
    engine = SimEngine(1, alignment=1)
    engine.submit_and_run(DOCUMENT, question(1, 100), branch_points=[len(DOCUMENT)])
    engine.submit_and_run(text(5, 300), question(2))
    assert engine.submit_and_run(DOCUMENT + question(1, 100)).n_prefilled == 100


def test_prompts_continue_only_at_multiples_of_the_alignment() -> None:
    engine = SimEngine(1, alignment=64)
    answer = text(2, 48)  # the output ends at a multiple of the alignment, but was not prefilled
    engine.submit_and_run(DOCUMENT, answer, branch_points=[1990])
    more = engine.submit_and_run(DOCUMENT + answer + question(0))
    assert more.prefill_state is not None
    assert more.prefill_state.n_cached == 1984
    assert more.n_prefilled == 16 + 48 + 48


def test_prompt_gets_an_empty_sequence_or_else_the_least_recently_used_one() -> None:
    engine = SimEngine(3, cache_bytes=0)
    taken = []
    for i in (0, 1, 2, 0, 3):
        request = engine.submit_and_run(question(i, 600), ())
        assert request.prefill_state is not None
        taken.append(request.prefill_state.seq)
    assert taken == [0, 1, 2, 0, 1]


def test_no_checkpoint_is_taken_without_host_memory() -> None:
    engine = SimEngine(2, cache_bytes=0)
    for i in range(4):
        engine.submit_and_run(DOCUMENT + question(i), question(9))
    assert not {"save_state", "save_cells"} & set(engine.context.calls)


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def four_at_once(engine: SimEngine) -> list[SimRequest]:
    requests = [engine.submit(DOCUMENT + question(i, 200), question(i, 20)) for i in range(4)]
    engine.step()
    return requests


@pytest.mark.parametrize("cache_bytes", [0, 10**9])
def test_requests_wait_for_one_that_prefills_their_common_prefix(cache_bytes: int) -> None:
    engine = SimEngine(4, cache_bytes)
    requests = four_at_once(engine)
    engine.run()
    assert [request.n_prefilled for request in requests] == [2200, 216, 216, 216]


@pytest.mark.parametrize("cache_bytes", [0, 10**9])
def test_completions_of_one_prompt_prefill_it_once(cache_bytes: int) -> None:
    for length in (20, 2000):
        engine = SimEngine(4, cache_bytes)
        requests = [engine.submit(DOCUMENT[:length], question(i, 20)) for i in range(4)]
        engine.run()
        assert [request.n_prefilled for request in requests] == [length, 0, 0, 0]


@pytest.mark.parametrize("fails", [True, False])
def test_second_request_prefills_for_the_others_when_the_first_one_ends(fails: bool) -> None:
    engine = SimEngine(4)
    requests = four_at_once(engine)
    engine.step()
    engine.finish(requests[0], fails=fails)
    engine.step()
    engine.finish(requests[1], fails=fails)
    engine.run()
    assert sum(request.n_prefilled for request in requests[2:]) == 2200 + 216 - (0 if fails else 1536)


def test_request_waits_for_a_later_one_of_higher_priority_and_reuses_its_prefix() -> None:
    engine = SimEngine(2)
    later = engine.submit(DOCUMENT + question(0), question(0, 5), priority=1)
    engine.step()
    first = engine.submit(DOCUMENT + question(1), question(1, 5), priority=0)
    engine.run()
    assert first.n_prefilled == 2048 - 512  # it continues from the checkpoint of the first step
    assert later.n_prefilled == 512 + 64


def test_prompt_does_not_count_as_a_branch_of_itself() -> None:
    engine = SimEngine(2, alignment=1)
    later = engine.submit(DOCUMENT + question(0, 200), priority=1)
    engine.step()
    engine.submit(DOCUMENT + question(1), priority=0)
    engine.run()
    # the chunks end at checkpoints: where the other prompt branched off, and near the end
    assert later.chunks == [512, 48, 144, 8]


def test_requests_that_wait_for_different_prefixes_are_all_served() -> None:
    engine = SimEngine(4)
    requests = [engine.submit(text(7, 900)), *(engine.submit(DOCUMENT + question(i)) for i in range(2))]
    requests.append(engine.submit(text(7, 900) + question(5)))
    engine.run()
    assert [request.n_prefilled for request in requests] == [900, 2048, 64, 52]


# ── Checkpoints and failures ──────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoint_that_a_running_request_started_from_is_not_evicted() -> None:
    engine = SimEngine(2, cache_bytes=3 * 19000 + 2100 * 14, min_gain=16)
    engine.submit_and_run(DOCUMENT, question(0, 5))
    running = engine.submit(DOCUMENT + question(0), question(0, 5000))
    while not running.generating:
        engine.step()
    assert running.prefill_state is not None
    node = engine.cache.store.pins[running.prefill_state]
    for i in range(30):
        request = engine.submit(question(i, 2000), branch_points=[1000])
        while not request.finished:
            engine.step()
    assert node in engine.cache.store.tree.checkpoints
    engine.finish(running)
    for i in range(30, 60):
        engine.submit_and_run(question(i, 2000), branch_points=[1000])
    assert node not in engine.cache.store.tree.checkpoints


def test_failed_checkpoint_is_skipped_and_the_request_continues() -> None:
    engine = SimEngine(1)
    engine.context.before = fails_at("save_state")
    request = engine.submit_and_run(DOCUMENT, question(0))
    assert request.n_generated == 48
    assert not engine.cache.store.tree.checkpoints


def test_failed_load_empties_its_sequence_and_later_requests_succeed() -> None:
    engine = SimEngine(1)
    engine.submit_and_run(DOCUMENT + question(0), branch_points=[2000])
    engine.submit_and_run(text(5, 900))
    engine.context.before = fails_at("load_state")
    failed = engine.submit_and_run(DOCUMENT + question(1))
    assert failed.n_prefilled == failed.n_generated == 0
    engine.context.before = lambda method, seq: None
    assert engine.submit_and_run(DOCUMENT + question(1)).n_prefilled == 64


@pytest.mark.parametrize("error", [NativeError, MemoryError, CancelledError])
@pytest.mark.parametrize("failed_save_clears", [True, False])
def test_sequence_is_empty_and_usable_after_a_failed_spill(error: type[Exception], failed_save_clears: bool) -> None:
    engine = SimEngine(1)
    engine.submit_and_run(DOCUMENT + question(0))
    engine.context.before, engine.context.failed_save_clears = fails_at("save_cells", error), failed_save_clears
    prefill_state = engine.cache.begin(text(5, 900), [0], (0, 99))
    with pytest.raises(error) if failed_save_clears or error is CancelledError else nullcontext():
        engine.cache.prepare_chunk(prefill_state)
    assert not engine.context.sequences[0].tokens
    assert not engine.cache.store.tree.checkpoints
    engine.context.clear(0)
    engine.cache.release(prefill_state, None)
    engine.context.before = lambda method, seq: None
    assert engine.submit_and_run(DOCUMENT + question(1)).n_prefilled == 2048


def test_request_fails_if_a_failed_checkpoint_empties_its_sequence() -> None:
    engine = SimEngine(1)
    engine.context.before, engine.context.failed_save_clears = fails_at("save_state"), True
    request = engine.submit_and_run(DOCUMENT, question(0))
    assert (request.n_prefilled, request.n_generated) == (1024, 0)


def test_checkpoints_are_removed_when_their_sequence_loses_k_and_v() -> None:
    engine = SimEngine(1)
    request = engine.submit(DOCUMENT, question(0))
    while not request.generating:
        engine.step()
    assert engine.cache.store.tree.checkpoints
    engine.finish(request, fails=True)
    assert not engine.cache.store.tree.checkpoints
    assert engine.context.memory.nbytes == 0


def test_cached_contents_of_a_moved_sequence_are_still_found() -> None:
    engine = SimEngine(2)
    engine.submit_and_run(text(5, 900), branch_points=[900])
    running = engine.submit(DOCUMENT + question(0), question(0), branch_points=[2000])
    while not running.generating:
        engine.step()
    assert running.prefill_state is not None
    assert running.prefill_state.seq == 1
    engine.move(running, 0)
    assert running.prefill_state.seq == 0
    engine.run()
    assert engine.submit_and_run(DOCUMENT + question(1)).n_prefilled == 64
    assert engine.submit_and_run(text(5, 900)).n_prefilled == 0


def fails_at(call: str, error: type[Exception] = NativeError):
    def before(method: str, seq: int) -> None:
        if method == call:
            raise error("broken")

    return before
