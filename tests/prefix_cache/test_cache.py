"""Claims about where prompts go on, who waits for whom, and what is kept: no model takes part."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from helpers.simulate_prefixes import Asked, SimEngine, text

from pymtp.errors import CancelledError, NativeError
from pymtp.prefix_cache.checkpoints import Why

DOCUMENT = text(1, 2000)


def question(i: int, n: int = 48) -> tuple[int, ...]:
    return text(100 + i, n)


def calls(engine: SimEngine, asked: Asked) -> set[str]:
    """What the context did until a request had ended."""
    engine.context.calls.clear()
    while engine.step() and not asked.ended:
        pass
    assert asked.ended
    return set(engine.context.calls)


# ── Where prompts go on ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_goes_on_where_it_is() -> None:
    engine = SimEngine(4, grain=1)
    answer = text(2, 50)
    engine.ask_and_run(DOCUMENT, answer)
    engine.context.calls.clear()
    more = engine.ask_and_run(DOCUMENT + answer + question(0))
    assert more.n_read == 48
    assert set(engine.context.calls) <= {"prefill", "save_state"}


def test_a_sequence_goes_back_to_a_checkpoint_without_a_copy_of_k_and_v() -> None:
    engine = SimEngine(1, cache_bytes=6 * 19000)
    engine.ask_and_run(DOCUMENT + question(0), marks=[2000])
    again = engine.ask(DOCUMENT + question(1), marks=[2000])
    assert calls(engine, again) <= {"save_state", "save_cells", "keep_cells", "load_state", "prefill"}
    assert again.n_read == 2048 - 1984


def test_k_and_v_come_from_another_sequence_rather_than_from_host_memory() -> None:
    engine = SimEngine(2)
    engine.ask_and_run(DOCUMENT + question(0, 1000))
    engine.ask_and_run(text(5, 3000))
    engine.ask_and_run(text(6, 3000))
    assert engine.prefixes.figures().tokens >= 2000  # the document is in host memory, and in no sequence
    writes = engine.ask(DOCUMENT + question(1), question(9, 200))
    while not writes.begun:
        engine.step()
    second = engine.ask(DOCUMENT + question(2))
    done = calls(engine, second)
    assert not writes.ended
    assert "copy_cells" in done
    assert "load_cells" not in done


def fill_up(engine: SimEngine, n_tokens: int) -> None:
    """Host memory gets full, and has to make room for K and V that are worth the ends of prompts, and no more."""
    store = engine.prefixes.store
    ends = [store.budget.priority(n) for n in store.tree.checkpoints if n.checkpoint and n.checkpoint.why == Why.END]
    store.budget.limit = store.tree.nbytes
    assert store.room(n_tokens * engine.context.cell_bytes, max(ends), ())


def test_what_is_wanted_stays_in_its_sequence_and_what_is_not_goes() -> None:
    engine = SimEngine(2)
    for i in range(2):
        prompt = DOCUMENT + question(i)
        engine.ask_and_run(prompt, question(9), marks=[len(prompt)])
    fill_up(engine, 2000)
    taken = []
    for i in range(3):  # one after the other in the sequence that nothing is wanted of
        asked = engine.ask_and_run(text(20 + i, 700), question(i))
        assert asked.reader is not None
        taken.append(asked.reader.seq)
    assert len(set(taken)) == 1
    assert not {"load_cells", "copy_cells"} & calls(engine, engine.ask(DOCUMENT + question(3)))


def test_k_and_v_that_a_sequence_has_too_go_from_host_memory_before_what_is_wanted() -> None:
    engine = SimEngine(2)
    for i in range(2):
        engine.ask_and_run(DOCUMENT + question(i), marks=[2048])
    assert engine.prefixes.figures().tokens >= 2000
    fill_up(engine, 2000)
    assert engine.prefixes.figures().tokens < 100
    assert engine.ask_and_run(DOCUMENT + question(2)).n_read == 64


def test_k_and_v_go_to_host_memory_again_when_their_sequence_takes_another_text() -> None:
    engine = SimEngine(1)
    for i in range(2):
        engine.ask_and_run(DOCUMENT + question(i), marks=[2048])
    fill_up(engine, 2000)
    engine.ask_and_run(text(5, 3000))
    assert engine.ask_and_run(DOCUMENT + question(2)).n_read == 64


def test_what_a_sequence_held_is_in_host_memory_when_another_text_took_it() -> None:
    engine = SimEngine(1)
    engine.ask_and_run(DOCUMENT + question(0), marks=[2000])
    engine.ask_and_run(text(5, 3000))
    again = engine.ask(DOCUMENT + question(1))
    assert {"load_cells", "load_state"} <= calls(engine, again)
    assert again.n_read == 64


def test_texts_that_share_nothing_leave_nothing_in_host_memory() -> None:
    engine = SimEngine(2, grain=1)
    for i, length in enumerate((63, 200, 575, 64, 300, 575)):  # from 576 on they stop after 512 tokens
        engine.ask_and_run(text(20 + i, length), question(i, 100))
    assert not {"save_state", "save_cells"} & set(engine.context.calls)


@pytest.mark.parametrize("why", ["goes on", "shares", "marked"])
def test_the_end_of_a_text_that_others_are_known_to_go_on_from_is_in_host_memory(why: str) -> None:
    engine = SimEngine(1, grain=1)
    prompt, answer = text(20, 200), question(0, 100)
    if why == "goes on":
        engine.ask_and_run(prompt[:150])
    elif why == "shares":
        engine.ask_and_run(prompt[:64] + text(21, 100))
    engine.ask_and_run(prompt, answer, marks=[200] if why == "marked" else ())
    engine.ask_and_run(text(22, 300))
    more = engine.ask(prompt + answer + question(1))
    assert "load_cells" in calls(engine, more)
    assert more.n_read == 48


def test_the_same_prompt_again_is_not_read_at_all() -> None:
    for n_seq in (1, 3):
        engine = SimEngine(n_seq)
        prompt = DOCUMENT + question(0)
        engine.ask_and_run(prompt, question(1), marks=[len(prompt)])
        engine.ask_and_run(text(5, 300), question(2))
        assert engine.ask_and_run(prompt).n_read == 0


def test_a_prompt_that_ends_where_another_one_stopped_is_not_read_at_all() -> None:
    for n_seq in (1, 3):
        engine = SimEngine(n_seq)
        engine.ask_and_run(DOCUMENT)
        engine.ask_and_run(text(5, 300), question(2))
        assert engine.ask_and_run(DOCUMENT[:1536]).n_read == 0


def test_a_checkpoint_without_logits_is_no_end_of_a_prompt() -> None:
    engine = SimEngine(1, grain=1)
    engine.ask_and_run(DOCUMENT, question(1, 100), marks=[len(DOCUMENT)])
    engine.ask_and_run(text(5, 300), question(2))
    assert engine.ask_and_run(DOCUMENT + question(1, 100)).n_read == 100


def test_where_bits_depend_on_the_cut_nobody_goes_on_anywhere_else() -> None:
    engine = SimEngine(1, grain=64)
    answer = text(2, 48)  # what was written ends at a place that may be gone on from, if it had been read
    engine.ask_and_run(DOCUMENT, answer, marks=[1990])
    more = engine.ask_and_run(DOCUMENT + answer + question(0))
    assert more.reader is not None
    assert more.reader.found == 1984
    assert more.n_read == 16 + 48 + 48


def test_an_empty_sequence_is_taken_first_then_the_one_used_longest_ago() -> None:
    engine = SimEngine(3, cache_bytes=0)
    taken = []
    for i in (0, 1, 2, 0, 3):
        asked = engine.ask_and_run(question(i, 600), ())
        assert asked.reader is not None
        taken.append(asked.reader.seq)
    assert taken == [0, 1, 2, 0, 1]


def test_nothing_is_kept_where_the_cache_is_off() -> None:
    engine = SimEngine(2, cache_bytes=0)
    for i in range(4):
        engine.ask_and_run(DOCUMENT + question(i), question(9))
    assert not {"save_state", "save_cells"} & set(engine.context.calls)


# ── Who waits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def four_at_once(engine: SimEngine) -> list[Asked]:
    asked = [engine.ask(DOCUMENT + question(i, 200), question(i, 20)) for i in range(4)]
    engine.step()
    return asked


@pytest.mark.parametrize("cache_bytes", [0, 10**9])
def test_requests_wait_for_one_that_reads_their_beginning(cache_bytes: int) -> None:
    engine = SimEngine(4, cache_bytes)
    asked = four_at_once(engine)
    engine.run()
    assert [one.n_read for one in asked] == [2200, 216, 216, 216]


@pytest.mark.parametrize("cache_bytes", [0, 10**9])
def test_completions_of_one_prompt_read_it_once(cache_bytes: int) -> None:
    for length in (20, 2000):
        engine = SimEngine(4, cache_bytes)
        asked = [engine.ask(DOCUMENT[:length], question(i, 20)) for i in range(4)]
        engine.run()
        assert [one.n_read for one in asked] == [length, 0, 0, 0]


@pytest.mark.parametrize("fails", [True, False])
def test_when_the_one_that_reads_is_gone_the_next_reads_on_for_the_others(fails: bool) -> None:
    engine = SimEngine(4)
    asked = four_at_once(engine)
    engine.step()
    engine.end(asked[0], fails=fails)
    engine.step()
    engine.end(asked[1], fails=fails)
    engine.run()
    assert sum(one.n_read for one in asked[2:]) == 2200 + 216 - (0 if fails else 1536)


def test_a_request_that_comes_first_does_not_wait_for_a_later_one_that_then_follows_it() -> None:
    engine = SimEngine(2)
    later = engine.ask(DOCUMENT + question(0), question(0, 5), priority=1)
    engine.step()
    first = engine.ask(DOCUMENT + question(1), question(1, 5), priority=0)
    engine.run()
    assert first.n_read == 2048 - 512  # the first step's checkpoint
    assert later.n_read == 512 + 64


def test_a_prompt_does_not_part_from_itself() -> None:
    engine = SimEngine(2, grain=1)
    later = engine.ask(DOCUMENT + question(0, 200), priority=1)
    engine.step()
    engine.ask(DOCUMENT + question(1), priority=0)
    engine.run()
    assert later.pieces == [512, 48, 144, 8]  # from where the other one parted; the next turn may part before the end


def test_who_waits_is_served_though_other_requests_are_in_between() -> None:
    engine = SimEngine(4)
    asked = [engine.ask(text(7, 900)), *(engine.ask(DOCUMENT + question(i)) for i in range(2))]
    asked.append(engine.ask(text(7, 900) + question(5)))
    engine.run()
    assert [one.n_read for one in asked] == [900, 2048, 64, 52]


# ── What is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_running_request_began_with_does_not_go() -> None:
    engine = SimEngine(2, cache_bytes=3 * 19000 + 2100 * 14, least=16)
    engine.ask_and_run(DOCUMENT, question(0, 5))
    runs = engine.ask(DOCUMENT + question(0), question(0, 5000))
    while not runs.begun:
        engine.step()
    assert runs.reader is not None
    node = engine.prefixes.store.pins[runs.reader]
    for i in range(30):
        asked = engine.ask(question(i, 2000), marks=[1000])
        while not asked.ended:
            engine.step()
    assert node in engine.prefixes.store.tree.checkpoints
    engine.end(runs)
    for i in range(30, 60):
        engine.ask_and_run(question(i, 2000), marks=[1000])
    assert node not in engine.prefixes.store.tree.checkpoints


def test_a_checkpoint_that_cannot_be_saved_is_not_there_and_the_request_goes_on() -> None:
    engine = SimEngine(1)
    engine.context.before = fails_at("save_state")
    asked = engine.ask_and_run(DOCUMENT, question(0))
    assert asked.n_written == 48
    assert not engine.prefixes.store.tree.checkpoints


def test_a_sequence_that_a_load_fails_on_is_empty_and_others_read() -> None:
    engine = SimEngine(1)
    engine.ask_and_run(DOCUMENT + question(0), marks=[2000])
    engine.ask_and_run(text(5, 900))
    engine.context.before = fails_at("load_state")
    failed = engine.ask_and_run(DOCUMENT + question(1))
    assert failed.n_read == failed.n_written == 0
    engine.context.before = lambda what, seq: None
    assert engine.ask_and_run(DOCUMENT + question(1)).n_read == 64


@pytest.mark.parametrize("error", [NativeError, MemoryError, CancelledError])
@pytest.mark.parametrize("loses", [True, False])
def test_when_a_save_fails_the_sequence_is_taken_all_the_same(error: type[Exception], loses: bool) -> None:
    engine = SimEngine(1)
    engine.ask_and_run(DOCUMENT + question(0))
    engine.context.before, engine.context.saves_lose = fails_at("save_cells", error), loses
    reader = engine.prefixes.open(text(5, 900), [0], (0, 99))
    with pytest.raises(error) if loses or error is CancelledError else nullcontext():
        engine.prefixes.advance(reader)
    assert not engine.context.cells[0].tokens
    assert not engine.prefixes.store.tree.checkpoints
    engine.context.clear(0)
    engine.prefixes.close(reader, None)
    engine.context.before = lambda what, seq: None
    assert engine.ask_and_run(DOCUMENT + question(1)).n_read == 2048


def test_a_reader_whose_sequence_a_save_emptied_fails() -> None:
    engine = SimEngine(1)
    engine.context.before, engine.context.saves_lose = fails_at("save_state"), True
    asked = engine.ask_and_run(DOCUMENT, question(0))
    assert (asked.n_read, asked.n_written) == (1024, 0)


def test_checkpoints_whose_k_and_v_are_lost_are_lost() -> None:
    engine = SimEngine(1)
    asked = engine.ask(DOCUMENT, question(0))
    while not asked.begun:
        engine.step()
    assert engine.prefixes.store.tree.checkpoints
    engine.end(asked, fails=True)
    assert not engine.prefixes.store.tree.checkpoints
    assert engine.context.memory.nbytes == 0


def test_a_move_takes_what_a_sequence_holds_along() -> None:
    engine = SimEngine(2)
    engine.ask_and_run(text(5, 900), marks=[900])
    runs = engine.ask(DOCUMENT + question(0), question(0), marks=[2000])
    while not runs.begun:
        engine.step()
    assert runs.reader is not None
    assert runs.reader.seq == 1
    engine.move(runs, 0)
    assert runs.reader.seq == 0
    engine.run()
    assert engine.ask_and_run(DOCUMENT + question(1)).n_read == 64
    assert engine.ask_and_run(text(5, 900)).n_read == 0


def fails_at(call: str, error: type[Exception] = NativeError):
    def before(what: str, seq: int) -> None:
        if what == call:
            raise error("broken")

    return before
