"""Claims about an engine whose prompts go on from each other, over a scripted context: no model takes part."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from helpers.engines import Bed
from helpers.holding import check_held
from helpers.interrupts import Interrupted
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import CancelledError, NativeError

HOST = 10**6


def text(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=n)


DOCUMENT = text(0, 200)


def tokens_read(bed: Bed) -> int:
    return bed.engine.figures().read


def ask(bed: Bed, prompt: list[int], max_tokens: int = 10, *, again: bool = False) -> int:
    """Alone, to its end. Tokens read. again: the caller says that the whole prompt will come again."""
    before = tokens_read(bed)
    request = bed.submit(prompt, max_tokens, marks=(len(prompt),) if again else ())
    bed.run()
    bed.check()
    check_held(bed.engine)
    n = tokens_read(bed) - before
    assert request.completion.stats.cached_tokens == len(prompt) - n
    return n


@pytest.mark.parametrize("cache_bytes", [0, HOST])
def test_a_prompt_goes_on_from_a_prompt_and_what_was_written_after_it(cache_bytes: int) -> None:
    bed = Bed(cache_bytes=cache_bytes)
    ask(bed, DOCUMENT)
    written = bed.requests[0].tokens
    assert ask(bed, [*DOCUMENT, *written, *text(1, 30)]) == 1 + 30  # the last token was written, and not read


def test_a_text_that_was_replaced_is_gone_on_from_out_of_host_memory() -> None:
    bed = Bed(cache_bytes=HOST)
    ask(bed, DOCUMENT, again=True)
    written = bed.requests[0].tokens
    assert ask(bed, text(5, 300)) == 300
    assert ask(bed, [*DOCUMENT, *written]) == 1
    assert bed.engine.figures().prefixes.loaded == 209


def test_a_text_that_was_replaced_is_read_again_without_host_memory() -> None:
    bed = Bed()
    ask(bed, DOCUMENT)
    ask(bed, text(5, 300))
    assert ask(bed, DOCUMENT) == 200


def test_nothing_is_gone_on_from_where_that_is_off() -> None:
    bed = Bed(cache_prompt=False, cache_bytes=HOST, n_seq_max=2)
    prompt = DOCUMENT
    for _ in range(3):
        requests = [bed.submit(prompt, seed=i) for i in range(2)]
        bed.run()
        assert {request.completion.stats.cached_tokens for request in requests} == {0}
        prompt = prompt + requests[0].tokens
    assert bed.engine.figures().prefixes.nbytes == 0


@pytest.mark.parametrize("cache_bytes", [0, HOST])
def test_prompts_that_come_together_read_what_they_share_once(cache_bytes: int) -> None:
    bed = Bed(n_seq_max=4, cache_bytes=cache_bytes)
    for i in range(4):
        bed.submit([*DOCUMENT, i, *text(i, 9)], 30, seed=i)
    bed.run()
    bed.check()
    check_held(bed.engine)
    assert tokens_read(bed) == 200 + 4 * 10


def test_a_prompt_that_is_half_read_when_it_is_cancelled_is_gone_on_from() -> None:
    bed = Bed(n_ctx=2000)
    cancelled = bed.submit(text(3, 640))
    for _ in range(10):
        bed.engine.step()
    bed.engine.cancel(cancelled)
    assert 100 <= (n := cancelled.n_read) < 640
    assert ask(bed, text(3, 640)) == 640 - n


def test_a_stream_that_gives_way_is_not_read_again_where_its_end_was_kept() -> None:
    bed = Bed(n_ctx=1000, cache_bytes=HOST)
    slow = bed.submit(text(3, 300), 50, ahead=1, marks=(300,))
    while not slow.paused:
        bed.engine.step()
    assert ask(bed, text(4, 300)) == 300
    assert slow.gave_way
    assert tokens_read(bed) == 600


def test_a_load_that_fails_is_a_prompt_that_is_read() -> None:
    bed = Bed(cache_bytes=HOST)
    ask(bed, DOCUMENT, again=True)
    ask(bed, text(5, 300))
    bed.context.before = fails_at("load_state", NativeError("no memory"))
    assert ask(bed, DOCUMENT + bed.requests[0].tokens) == 210
    bed.context.before = lambda what, seqs: None
    ask(bed, text(6, 300))
    assert ask(bed, DOCUMENT + bed.requests[0].tokens) == 1


def test_a_copy_that_empties_what_it_copies_from_leaves_that_request_its_text() -> None:
    bed = Bed(n_seq_max=2, cache_bytes=HOST, n_ctx=2000)
    first = bed.submit([*DOCUMENT, *text(1, 300)], 100)
    while len(first.tokens) < 20:
        bed.engine.step()
    failing = True

    def before(what: str, seqs: Sequence[int]) -> None:
        nonlocal failing
        if what == "copy_cells" and failing:
            failing = False
            bed.context.clear(seqs[0])
            raise NativeError("no memory")

    bed.context.before = before
    bed.submit([*DOCUMENT, *text(1, 290), *text(2, 30)], 10, seed=1)
    bed.run()
    bed.check()
    check_held(bed.engine)
    assert not failing
    assert [request.reason for request in bed.requests] == ["length"] * 2


def test_a_checkpoint_that_cannot_be_saved_is_no_fault_of_the_request() -> None:
    bed = Bed(cache_bytes=HOST)
    bed.context.before = fails_at("save_state", NativeError("no memory"))
    assert ask(bed, text(1, 300)) == 300
    assert bed.engine.figures().prefixes.checkpoints == 0


def test_a_request_that_moves_takes_what_it_read_along() -> None:
    bed = Bed(n_seq_max=3, cache_bytes=HOST, n_ctx=2000)
    bed.submit(text(1, 20), 60)
    bed.submit(text(2, 20), 1)
    reader = bed.submit(text(3, 600), 50)
    while reader.seq != 1:
        bed.engine.step()
        check_held(bed.engine)
    bed.run()
    bed.check()
    assert ask(bed, text(3, 600)) == 88  # from where a ubatch ended


def fails_at(call: str, error: Exception):
    def before(what: str, _seqs: Sequence[int]) -> None:
        if what == call:
            raise error

    return before


# ── Whatever happens ──────────────────────────────────────────────────────────────────────────────────────────────────

prompt = st.builds(
    lambda trunk, n, own, m: text(trunk, n) + text(own, m),
    st.integers(0, 2),
    st.sampled_from([0, 70, 130, 200]),
    st.integers(10, 14),
    st.integers(1, 100),
)
wishes = st.fixed_dictionaries(
    {
        "prompt": prompt,
        "max_tokens": st.integers(1, 30),
        "seed": st.integers(0, 2),
        "priority": st.integers(-1, 1),
        "ahead": st.sampled_from([None, None, 1]),
    },
    optional={"marks": st.tuples(st.integers(1, 200))},
)
faults = st.dictionaries(st.integers(0, 150), st.sampled_from(["signal", "cancel", "broken", "emptied"]), max_size=6)


@given(
    st.lists(st.tuples(st.integers(0, 30), wishes), min_size=1, max_size=10),
    st.integers(1, 4),
    st.sampled_from([0, 100, 400, 1500, HOST]),
    st.booleans(),
    faults,
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
)
def test_whatever_fails_texts_stay_and_sequences_hold_what_they_are_known_to_hold(
    plan: list[tuple[int, dict[str, object]]],
    n_seq_max: int,
    cache_bytes: int,
    cache_prompt: bool,
    faults: dict[int, str],
    cancels: list[tuple[int, int]],
) -> None:
    bed = Bed(
        n_ctx=400,
        n_seq_max=n_seq_max,
        n_ubatch=64,
        hits=[True, True, False],
        cache_bytes=cache_bytes,
        cache_prompt=cache_prompt,
    )
    calls = 0

    def before(what: str, seqs: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        match faults.get(calls):
            case "signal":
                raise KeyboardInterrupt
            case "cancel":
                bed.context.cancel()
                raise CancelledError("cancelled")
            case "broken":
                raise NativeError("broken")
            case "emptied":  # what is saved or copied was behind
                bed.context.clear(seqs[0])
                raise NativeError("broken")

    bed.context.before = before
    for step in range(60):
        for arrives, wish in plan:
            if arrives == step:
                bed.submit(**wish)  # type: ignore[arg-type]
        for leaves, i in cancels:
            if leaves == step and i < len(bed.requests):
                bed.engine.cancel(bed.requests[i])
        with suppress(KeyboardInterrupt):
            bed.engine.step()
            check_held(bed.engine)
        for request in bed.requests[::2]:
            request.unread.clear()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()
    check_held(bed.engine)
    assert sorted(bed.engine._scheduler.free) == list(range(n_seq_max))


def a_bed() -> Bed:
    bed = Bed(n_seq_max=2, depth=2, cache_bytes=1500, n_ctx=400)
    for i in range(4):
        bed.submit(DOCUMENT[: 90 + 20 * (i % 2)] + text(i, 80), 5, seed=i)
    return bed


def broken_off(bed: Bed, line: int, files: str = "/pymtp/engine/") -> bool:
    """Whether a handler raised as that line began, and all is right after that."""
    through = False
    with suppress(KeyboardInterrupt), Interrupted(line, files):
        bed.run()
        through = True
    bed.engine.settle()
    check_held(bed.engine)
    return not through


@pytest.mark.parametrize("first", range(5))
def test_wherever_a_handler_raises_what_is_known_of_sequences_stays_true(first: int) -> None:
    line = first
    while broken_off(bed := a_bed(), line):
        bed.run()
        bed.check()
        check_held(bed.engine)
        line += 101


def test_a_tree_that_a_change_was_broken_off_in_is_given_up() -> None:
    line = 0
    while broken_off(bed := a_bed(), line, "/pymtp/engine/prefix_tree"):
        bed.run()
        bed.check()
        check_held(bed.engine)
        line += 5


def test_a_handler_that_raises_takes_no_prefix_away() -> None:
    bed = Bed(cache_bytes=HOST)
    for prompt in (DOCUMENT, text(5, 150)):
        ask(bed, prompt, again=True)
    bed.submit(text(6, 50), 20)
    bed.context.before = fails_at("verify", KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        bed.run()
    bed.context.before = lambda what, seqs: None
    bed.run()
    for request in bed.requests[:2]:
        assert ask(bed, request.prompt + request.tokens) == 1


def test_a_handler_that_raises_takes_no_end_away_that_only_a_sequence_has() -> None:
    bed = Bed(n_seq_max=2, cache_bytes=HOST, n_ctx=1000)
    ask(bed, DOCUMENT, again=True)
    bed.submit(text(6, 50), 20)
    bed.context.before = fails_at("verify", KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        bed.run()
    bed.context.before = lambda what, seqs: None
    bed.run()
    for i in range(2):
        ask(bed, text(7 + i, 150))
    assert ask(bed, DOCUMENT + bed.requests[0].tokens) == 1
    assert bed.engine.figures().prefixes.loaded == 209
