"""Claims about how long those who write wait while prompts arrive: by the clock of a scripted context, and by the
launches of a real one."""

from __future__ import annotations

import pytest
from conftest import make_llm
from helpers.engines import Bed

from pymtp import SamplingParams
from pymtp.engine.request import Caller, Request

LONG = 4096


def gaps(bed: Bed, requests: list[Request], until: Request) -> list[float]:
    """The longest times between pieces of each request, until one has its first token."""
    longest = []
    last = {request: (bed.context.now, len(request.tokens)) for request in requests}
    while not until.tokens:
        bed.engine.step()
        for request, (then, n) in last.items():
            if len(request.tokens) > n:
                longest.append(bed.context.now - then)
                last[request] = bed.context.now, len(request.tokens)
    return longest


@pytest.mark.parametrize("n_ubatch", [64, 512])
@pytest.mark.parametrize("depth", [0, 3, "auto"])
@pytest.mark.parametrize("arriving", [1, 3])
def test_while_a_long_prompt_arrives_a_piece_comes_after_each_ubatch(
    n_ubatch: int, depth: int | str, arriving: int
) -> None:
    bed = Bed(depth=depth, n_seq_max=7, n_ctx=2 * LONG, n_ubatch=n_ubatch, hits=[True, False, True])
    writing = [bed.submit([i] * 9, 2 * LONG - 20, seed=i) for i in range(4)]
    for _ in range(10):
        bed.engine.step()
    arrived = [bed.submit([9 + i] * LONG, 5) for i in range(arriving)]
    found = gaps(bed, writing, arrived[-1])
    c = bed.context
    ubatch = c.launch_seconds + n_ubatch * c.token_seconds
    rows, n = 1 + c.draft_tokens, 4 + (arriving > 1)  # the first that arrived writes while the next is read
    a_round = 2 * c.launch_seconds + n * (c.draft_tokens * c.step_seconds + rows * c.row_seconds)
    assert max(found) <= ubatch + a_round + 1e-6
    assert len(found) == 4 * arriving * LONG // n_ubatch


def test_a_text_that_begins_anew_beside_others_is_brought_back_piece_by_piece() -> None:
    """Its prompt is read, and what it had written verified, one launch a step."""
    bed = Bed(n_seq_max=2, n_ctx=400)
    slow = bed.submit([1] * 100, 60, ahead=4)
    other = bed.submit([2] * 5, 390, seed=1)
    while not slow.paused:
        bed.engine.step()
    bed.submit([3] * 5, 1, seed=2)  # to which it gives way
    bed.engine.step()
    assert slow.gave_way
    while slow.writer is None:
        slow.unread.clear()
        before, n = len(bed.context.launches), len(other.tokens)
        bed.engine.step()
        assert len(other.tokens) > n
        assert len(bed.context.launches) - before <= 3  # a piece, drafts, and their verification


def test_beside_a_long_prompt_each_ubatch_is_one_launch_and_so_is_the_round_after_it() -> None:
    with make_llm(n_seq_max=3, n_ctx=LONG + 64, n_ubatch=512, n_batch=512) as llm:
        vocab = llm.model.n_vocab
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        writing = [request for i in (1, 2) for request in llm.requests([[i] * 40], params, Caller())]
        for _ in range(4):
            llm.engine.step()
        (long,) = llm.requests([[i * 7 % vocab for i in range(LONG)]], SamplingParams(3), Caller())
        steps = 0
        while not long.tokens:
            before, tokens = llm.context.counters, [len(request.tokens) for request in writing]
            llm.engine.step()
            after = llm.context.counters
            assert after.target_decodes - before.target_decodes == 2
            assert all(len(request.tokens) > n for request, n in zip(writing, tokens, strict=True))
            steps += 1
        assert steps == LONG // 512
