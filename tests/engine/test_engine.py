"""Claims about many requests on one pair, over a scripted context: no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random

import pytest
from helpers.engines import Bed
from helpers.scripted import next_token, written
from hypothesis import given
from hypothesis import strategies as st

from pymtp.errors import ContextFullError, InvalidRequestError, NativeError

PROMPT = [1, 2, 3, 4, 5]

wishes = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 49), min_size=1, max_size=50),
        "max_tokens": st.one_of(st.none(), st.integers(1, 40)),
        "seed": st.integers(0, 5),
        "priority": st.integers(-1, 1),
        "draft_tokens": st.one_of(st.none(), st.integers(0, 4)),
        "ahead": st.one_of(st.none(), st.integers(1, 4)),
        "arrives": st.integers(0, 20),
        "leaves": st.one_of(st.none(), st.integers(1, 30)),
    }
)


@given(
    st.lists(wishes, min_size=1, max_size=12),
    st.integers(1, 5),
    st.one_of(st.just("auto"), st.integers(0, 5)),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.sets(st.integers(0, 30)),
)
def test_whoever_comes_and_goes_each_request_ends_with_the_text_that_it_has_alone(
    plan: list[dict[str, object]], n_seq_max: int, depth: int | str, hits: list[bool], interrupted: set[int]
) -> None:
    bed = Bed(depth=depth, n_ctx=64, n_seq_max=n_seq_max, hits=hits)
    launches = 0

    def before(_what: str, _seqs: Sequence[int]) -> None:
        nonlocal launches
        launches += 1
        if launches in interrupted:
            raise KeyboardInterrupt

    bed.context.before = before
    for step in range(40):
        for wish in plan:
            if wish["arrives"] == step:
                asked = {name: wish[name] for name in wish if name not in ("arrives", "leaves")}
                wish["request"] = bed.submit(**asked)  # type: ignore[arg-type]
            if wish["leaves"] == step and "request" in wish:
                bed.engine.cancel(wish["request"])  # type: ignore[arg-type]
        with suppress(KeyboardInterrupt):
            bed.engine.step()
    bed.context.before = lambda what, seqs: None
    bed.run()
    bed.check()
    for wish, request in ((wish, wish["request"]) for wish in plan):
        assert wish["leaves"] is not None or request.reason == "length"  # type: ignore[attr-defined]
    figures = bed.engine.figures()
    assert (figures.running, figures.waiting) == (0, 0)
    assert figures.finished + figures.cancelled == len(plan)
    assert figures.failed == 0
    assert figures.tokens == sum(len(request.tokens) for request in bed.requests)


@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 3))
def test_a_prompts_pieces_end_at_multiples_of_n_ubatch_whatever_else_runs(n: int, held: int, others: int) -> None:
    bed = Bed(n_ctx=400, n_seq_max=1 + others)
    for i in range(others):
        bed.submit([7] * (10 + i), 400)
    for _ in range(others + 2):
        bed.engine.step()
    if held:  # an earlier request, whose text the next prompt begins with
        earlier = bed.submit([3] * held, 1)
        while not earlier.ended:
            bed.engine.step()
    prompt = [3] * held + [4] * n
    request = bed.submit(prompt, 1)
    ends = []
    while not request.ended:
        before = request.n_read
        bed.engine.step()
        if request.seq is not None and request.n_read != before:
            ends.append(request.n_read)
    assert all(end % bed.context.n_ubatch == 0 for end in ends[:-1])
    assert request.tokens == written(0, prompt, 1)


def test_the_first_to_come_is_served_first_within_a_priority_and_gets_the_lowest_sequence() -> None:
    bed = Bed(n_seq_max=2)
    first = [bed.submit(PROMPT, 90 - 30 * (i > 0), seed=i) for i in range(3)]
    urgent = bed.submit(PROMPT, 30, seed=3, priority=-1)
    bed.engine.step()
    assert [request.seq for request in (*first, urgent)] == [1, None, None, 0]
    while not urgent.ended:
        bed.engine.step()
    bed.engine.step()
    assert [request.seq for request in first] == [1, 0, None]
    bed.run()
    bed.check()
    assert urgent.started == first[0].started < first[1].started < first[2].started


def test_a_request_that_is_alone_has_one_launch_of_each_a_round() -> None:
    bed = Bed(depth=3)
    bed.submit(PROMPT, 21)
    bed.run()
    kinds = [what for what, _, _ in bed.context.launches]
    assert kinds == ["prefill", *["draft", "verify"] * 5]


def test_the_first_token_comes_by_itself() -> None:
    bed = Bed()
    request = bed.submit(PROMPT, 21, ahead=4)
    bed.engine.step()
    assert [piece.token_ids for piece in request.unread] == [written(0, PROMPT, 1)]


def test_those_who_write_share_one_launch_of_the_head_and_one_of_the_target() -> None:
    bed = Bed(depth=3, n_seq_max=4, n_ubatch=32)  # the four prompts are read in one step
    for i in range(4):
        bed.submit(PROMPT, 21, seed=i)
    bed.run()
    assert [launch for launch in bed.context.launches if launch[0] != "prefill"] == [
        ("draft", (0, 1, 2, 3), 3),
        ("verify", (0, 1, 2, 3), 4),
    ] * 5
    bed.check()
    figures = bed.engine.figures()
    assert (figures.rounds, figures.rows, figures.rows_per_round) == (5, 80, 16)
    assert (figures.depths, figures.sequences) == ({3: 5}, {4: 5})
    assert figures.acceptance_rate == 1


def test_a_step_reads_no_more_than_a_ubatch_of_prompts_and_plays_a_round() -> None:
    bed = Bed(n_seq_max=4, n_ctx=400)
    writer = bed.submit(PROMPT, 300)
    bed.engine.step()
    for n in (100, 7, 60):
        bed.submit([9] * n, 5)
    while not writer.ended:
        done = len(bed.context.launches)
        bed.engine.step()
        launched = bed.context.launches[done:]
        assert sum(n for what, _, n in launched if what == "prefill") <= bed.context.n_ubatch
        assert sum(what == "verify" for what, _, _ in launched) == 1
    bed.run()
    bed.check()


def test_short_prompts_are_read_in_one_step_each_by_itself() -> None:
    bed = Bed(n_seq_max=8)
    for i in range(3):
        bed.submit([i, *PROMPT[1:]], 5, seed=i)
    bed.engine.step()
    assert [launch for launch in bed.context.launches if launch[0] == "prefill"] == [
        ("prefill", (seq,), 5) for seq in range(3)
    ]


def test_a_prompt_that_never_fits_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextFullError, match="the prompt has 65 tokens, n_ctx is 64"):
        Bed(n_ctx=64).engine.check([1] * 65)


@pytest.mark.parametrize("when", [0, 1, 5])
@pytest.mark.parametrize("kind", [NativeError, InvalidRequestError])
def test_a_request_that_fails_fails_alone(when: int, kind: type[NativeError | InvalidRequestError]) -> None:
    bed = Bed(n_seq_max=3)
    requests = [bed.submit(PROMPT, 30, seed=i) for i in range(3)]
    calls = 0

    def fails(seq: int) -> Exception | None:
        nonlocal calls
        calls += seq == 1
        return kind("no finite logits") if seq == 1 and calls == 1 + when else None

    bed.context.alone_fails = fails
    bed.run()
    bed.check()
    assert [request.reason for request in requests] == ["length", "cancelled", "length"]
    assert isinstance(requests[1].failure(), kind)
    assert bed.engine.figures().failed == 1
    assert bed.context.tokens_of.count([]) == 1  # wherever the last has moved


def test_a_request_with_a_cap_of_its_own_drafts_no_more_in_company() -> None:
    bed = Bed(depth=4, n_seq_max=3)
    caps = (None, 1, 0)
    for i, cap in enumerate(caps):
        bed.submit(PROMPT, 31, seed=i, draft_tokens=cap)
    bed.run()
    bed.check()
    for request, cap in zip(bed.requests, caps, strict=True):
        assert max(request.tally.depths) == (4 if cap is None else cap)
    assert bed.requests[1].completion.stats.mean_accepted_length == 2


def test_a_request_near_its_end_verifies_no_row_past_its_last_token_in_company() -> None:
    bed = Bed(depth=4, n_seq_max=2)
    for i, left in enumerate((2, 40)):
        bed.submit(PROMPT, left, seed=i)
    bed.run()
    bed.check()
    assert max(bed.context.sampled) == len(PROMPT) + 39
    assert bed.context.verified[0] == {0: 1, 1: 5}


def test_sequences_near_the_end_of_the_context_have_room_for_all_rows_of_a_round() -> None:
    bed = Bed(depth=5, n_seq_max=2, n_ctx=32)
    bed.submit([1] * 27, None)
    bed.submit([2] * 10, None, seed=1)
    bed.run()
    bed.check()


def test_a_prompt_that_begins_with_a_finished_text_goes_on_from_its_sequence() -> None:
    bed = Bed(n_seq_max=3)
    for i in range(3):
        bed.submit([i, *PROMPT], 10, seed=i)
    bed.run()
    text = [1, *PROMPT, *bed.requests[1].tokens]
    more = bed.submit([*text, 4], 10, seed=1)
    bed.run()
    assert more.completion.stats.cached_tokens == len(text) - 1
    bed.check()


def test_stats_tell_of_the_queue_and_of_the_first_token() -> None:
    bed = Bed(n_seq_max=1)
    first, second = (bed.submit(PROMPT, 9, seed=i) for i in range(2))
    bed.run()
    a, b = first.completion.stats, second.completion.stats
    assert a.queue_seconds == 0
    assert a.time_to_first_token == a.prefill_seconds == pytest.approx(1.5)
    assert b.queue_seconds == pytest.approx(a.prefill_seconds + a.decode_seconds)
    assert b.time_to_first_token == pytest.approx(b.queue_seconds + b.prefill_seconds)


def test_figures_say_what_runs_and_waits() -> None:
    bed = Bed(n_seq_max=2)
    for i in range(5):
        bed.submit(PROMPT, 30, seed=i)
    assert bed.engine.figures().waiting == 5
    bed.engine.step()
    figures = bed.engine.figures()
    assert (figures.running, figures.waiting) == (2, 3)
    bed.run()
    figures = bed.engine.figures()
    assert figures.finished == 5
    assert figures.tokens == 150
    assert 0 < figures.tokens_per_second < 150


@pytest.mark.parametrize("depth", [3, "auto"])
@pytest.mark.parametrize("n_good", [0, 1])
def test_a_request_whose_head_gives_no_numbers_drafts_no_more_and_others_do(depth: int | str, n_good: int) -> None:
    bed = Bed(depth=depth, n_seq_max=3, hits=[True])
    made = bed.context.draft_chains

    def drafts(tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        return {
            seq: (chain[: n_good if seq == 1 else n], sure[: n_good if seq == 1 else n])
            for seq, (chain, sure) in made(tokens, n).items()
        }

    bed.context.draft_chains = drafts  # type: ignore[method-assign]
    requests = [bed.submit(PROMPT, 30, seed=i) for i in range(3)]
    bed.run()
    bed.check()
    mute = requests[1].tally
    assert sum(mute.accepted_per_position) <= n_good
    assert mute.rounds >= 29 - n_good
    assert depth == "auto" or all(requests[i].tally.rounds < 25 for i in (0, 2))


def test_ten_thousand_requests_leave_nothing_behind() -> None:
    luck = Random(0)
    bed = Bed(n_seq_max=8, n_ctx=128, hits=[True, True, False])
    bed.context.alone_fails = lambda seq: NativeError("bad") if luck.random() < 0.002 else None
    asked = ended = 0
    while ended < 10_000:
        while asked < 10_000 and len(bed.requests) < 20 and luck.random() < 0.7:
            bed.submit([luck.randrange(50)] * luck.randint(1, 40), luck.randint(1, 12), seed=luck.randrange(9))
            asked += 1
        if bed.requests and luck.random() < 0.02:
            bed.engine.cancel(luck.choice(bed.requests))
        bed.context.launches.clear()
        bed.context.sampled.clear()
        bed.engine.step()
        for request in [request for request in bed.requests if request.ended]:
            assert request.tokens == written(request.sampler.seed, request.prompt, len(request.tokens))
            bed.requests.remove(request)
            ended += 1
    figures = bed.engine.figures()
    assert figures.finished + figures.failed + figures.cancelled == 10_000
    assert (figures.running, figures.waiting) == (0, 0)
    assert figures.failed > 20
    assert figures.cancelled > 20


def test_the_scripts_token_depends_on_seed_and_prefix() -> None:
    assert len({next_token(seed, [1, 2, position]) for seed in range(5) for position in range(5)}) > 5
