"""Tests of the prefix cache's spaces: what one owner sent, or one salt has, tells others nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.engines import EngineHarness
from helpers.holding import check_prefix_cache
from helpers.simulate_prefixes import SimEngine, SimFile, SimRequest, text

from pymtp import SamplingParams
from pymtp.engine.request import Caller
from pymtp.errors import InvalidRequestError, NativeError
from pymtp.prefix_cache.checkpoints import EvictionPolicy
from pymtp.prefix_cache.tree import COMMON, CheckpointReason, RadixNode, RadixTree, Space, as_tokens

DOCUMENT = text(1, 2000)
OTHER = text(2, 2000)
A, SALTED = Space("a"), Space(salt="s")


def guesses(secret: tuple[int, ...], theirs: Space, mine: Space, **engine: Any) -> list[SimRequest]:
    """Let one space send a secret while another one guesses DOCUMENT, and return the guesses."""
    run = SimEngine(4, **engine)
    found = []
    for i in range(6):
        run.submit(secret + text(10 + i, 200), text(20 + i, 30), branch_points=[2000], space=theirs)
        if i % 2:
            run.run()  # else the guess runs beside the secret
        beginning = DOCUMENT + text(10 + i, 200) + text(20 + i, 30) if i % 2 else DOCUMENT
        found.append(run.submit(beginning + text(30 + i, 100), text(40 + i, 30), space=mine))
        run.run()
    return found


@pytest.mark.parametrize("alignment", [1, 64])
@pytest.mark.parametrize("cache_bytes", [0, 12 * 19000, 10**9])
@pytest.mark.parametrize(("theirs", "mine"), [(A, Space("b")), (COMMON, A), (A, COMMON), (SALTED, COMMON)])
def test_guesses_see_nothing_of_another_space(theirs: Space, mine: Space, cache_bytes: int, alignment: int) -> None:
    right, wrong = (
        [
            (one.n_prefilled, one.chunks, one.n_waits)
            for one in guesses(secret, theirs, mine, cache_bytes=cache_bytes, alignment=alignment)
        ]
        for secret in (DOCUMENT, OTHER)
    )
    assert right == wrong


def test_prompts_of_one_space_share_their_beginning_as_before() -> None:
    for space in (A, SALTED, COMMON):
        assert guesses(DOCUMENT, space, space)[-1].n_prefilled < 200


@pytest.mark.parametrize("space", [COMMON, A], ids=["without keys", "with keys"])
@pytest.mark.parametrize("n_seq_max", [1, 3])
def test_no_prompt_evicts_a_prefix_of_the_operator(space: Space, n_seq_max: int) -> None:
    engine = SimEngine(n_seq_max, cache_bytes=5 * 19000, alignment=1)
    file = SimFile(engine.context, DOCUMENT, [1000, 2000])
    engine.cache.import_file(file, kept=True)
    engine.cache.import_file(SimFile(engine.context, DOCUMENT[:1000], [1000]))  # the end of a file within it
    for i in range(24):
        mine = space if i % 2 else Space(f"{space.owner}{i}")
        # some prompts continue the prefix in a sequence, so that host memory holds its K and V twice
        beginning = DOCUMENT if i % 3 == 0 else text(100 + i, 1500)
        run = engine.submit(beginning + text(200 + i, 300), text(300 + i, 30), branch_points=[1500], space=mine)
        engine.run()
        assert i % 3 or run.n_prefilled <= 300
    assert engine.cache.store.tree.tokens_on_host(as_tokens(DOCUMENT)) == 2000
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.cache.import_file(SimFile(engine.context, text(3, 3000), [3000]))


def test_tree_forgets_spaces_without_checkpoints() -> None:
    engine = SimEngine(2, cache_bytes=3 * 19000)
    for i in range(50):
        space = Space(salt=str(i))
        engine.submit_and_run(DOCUMENT + text(i, 100), branch_points=[2000], space=space)
    tree = engine.cache.store.tree
    assert len(tree._roots) <= 1 + len(tree.checkpoints)
    assert sum(tree.owner_bytes.values()) == tree.nbytes


class State:
    nbytes = 100


def test_owner_beyond_its_share_makes_way_and_one_within_stays() -> None:
    tree = RadixTree()
    eviction = EvictionPolicy(tree, 1000, 0, lambda start, end: float(end - start))

    def insert(owner: str, i: int) -> RadixNode | None:
        room = eviction.make_room(100, eviction.clock + 1.0, (), owner=owner)
        reason = CheckpointReason.BRANCH_SEEN
        return eviction.insert(as_tokens([i] * 100), State(), reason, Space(owner), has_logits=True) if room else None  # type: ignore[arg-type]

    for i in range(10):
        insert("a", i)
    mine = [insert("b", 100 + i) for i in range(5)]
    assert tree.owner_bytes == {"a": 500, "b": 500}
    for i in range(50):  # however much the other owner sends
        insert("a", 200 + i)
    assert all(node in tree.checkpoints for node in mine)
    assert tree.owner_bytes == {"a": 500, "b": 500}


def test_requests_of_other_owners_and_salts_prefill_whole_prompts() -> None:
    harness = EngineHarness(cache_bytes=10**6, n_seq_max=3)
    document = random.Random(0).choices(range(50), k=200)

    def prefilled(**keywords: Any) -> int:
        prompt = [*document, *[1] * (1 + len(harness.requests))]
        request = harness.submit(prompt, 5, branch_points=(200,), **keywords)
        harness.run()
        check_prefix_cache(harness.engine)
        return len(request.prompt) - request.cached_tokens

    callers: list[dict[str, Any]] = [
        {},
        {"caller": Caller("a", "a")},
        {"caller": Caller("b", "b")},
        {"cache_salt": "s"},
        {"caller": Caller("a", "a"), "cache_salt": "s"},
    ]
    for keywords in callers:
        assert prefilled(**keywords) >= 200
    assert prefilled(**callers[-1]) < 200
    for keywords in callers:
        assert prefilled(**keywords, cache_prompt=False) >= 200
        assert prefilled(cache_salt="new", cache_prompt=False) >= 200


@pytest.mark.parametrize(("salt", "may_continue"), [("", False), ("t", False), ("s", True)])
def test_sequences_keep_their_spaces_after_a_failure_of_the_engine(salt: str, may_continue: bool) -> None:
    harness = EngineHarness(n_seq_max=2)
    document = random.Random(0).choices(range(50), k=200)
    first = harness.submit(document, 5, cache_salt="s")
    harness.run()
    harness.engine.fail_all(NativeError("on purpose"))  # the cache reads all sequences again
    more = harness.submit([*document, *first.tokens, 1], 5, cache_salt=salt)
    harness.run()
    assert (more.cached_tokens >= 200) == may_continue


def test_prompt_with_cache_prompt_false_is_not_kept() -> None:
    harness = EngineHarness(cache_bytes=10**6, n_seq_max=3)
    prompt = random.Random(0).choices(range(50), k=200)
    harness.submit_several(3, prompt, 5, cache_prompt=False)
    harness.run()
    assert harness.engine.figures().read == 200  # its completions share the prompt
    again = harness.submit([*prompt, 1], 5)
    harness.run()
    assert again.cached_tokens == 0


def test_saved_prefix_is_shared_by_all_salts(tmp_path: Path) -> None:
    document = "def f(x):\n    return x\n\n" * 40
    path = tmp_path / "document.prefix"
    with make_llm() as llm:
        n = llm.save_prefix(document, path)
    with make_llm() as llm:
        llm.load_prefix(path)
        for salt in ("", "a", "b"):
            whole = llm.generate(document + f"def g{salt}(", SamplingParams(8, cache_prompt=False))
            done = llm.generate(document + f"def g{salt}(", SamplingParams(8, cache_salt=salt))
            assert (done.text, done.stats.cached_tokens >= n - 16, whole.stats.cached_tokens) == (whole.text, True, 0)
