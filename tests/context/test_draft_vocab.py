"""Claims about drafts over part of the vocabulary: the text stays the same, and the set follows it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from gguf import GGUFReader
from helpers.contexts import BOTH, DRAFTS, context, some_tokens
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import InvalidRequestError, Model, SamplingParams
from pymtp.context.context import Context
from pymtp.context.memory import plan_memory
from pymtp.sampling import Sampler

GREEDY = SamplingParams(60, ignore_eos=True)
WARM = replace(GREEDY, temperature=0.7, seed=4)
HOW = {
    "greedy": GREEDY,
    "T=0.7": WARM,
    "top_k=40": replace(WARM, top_k=40),
    "top_k=128": replace(WARM, top_k=128),  # with a few spare ones, more than the least set has
    "penalties": replace(WARM, repetition_penalty=1.3),
    "bias": replace(GREEDY, logit_bias={5: 1.0, 1500: 4.0}),
    "grammar": replace(WARM, grammar='root ::= [a-z_ ()=:\\n.,0-9"]*'),
}
LEAST = 128  # tokens, as few as a set has
ANNEX = 64  # rows of such a set that change one by one


def over(c: Context) -> set[int]:
    """The tokens that the last drafts were made over."""
    return {token for token in range(c.model.n_vocab) if c.drafts_over(token)}


def told(c: Context, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Context:
    c.set_sampling(Sampler(params))
    c.prefill(prompt)
    return c


# ── The text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("draws", ["host", "device"])
@pytest.mark.parametrize("how", HOW)
def test_the_text_is_the_same_over_any_part_of_the_vocabulary(
    demo: Path, prompts: list[str], how: str, draws: str
) -> None:
    texts, lost = {}, {}
    for name, options in {
        "plain": {"draft_tokens": 0},
        "all": {"draft_vocab": "all"},
        "half": {"draft_vocab": 1024},
        "least": {"draft_vocab": LEAST},
    }.items():
        with make_llm(demo, draws=draws, **options) as llm:
            completions = llm.generate(prompts[:2], HOW[how])
        texts[name] = [c.token_ids for c in completions]
        lost[name] = sum(sum(c.stats.outside_per_position) for c in completions)
    assert texts["half"] == texts["least"] == texts["all"] == texts["plain"]
    assert lost["plain"] == lost["all"] == 0 < lost["least"]


def test_without_fused_prefill_drafts_are_made_over_all(demo: Path, prompts: list[str]) -> None:
    with make_llm(demo, draft_vocab=LEAST, prefill="host-copy") as llm:
        completion = llm.generate(prompts[0], GREEDY)
        assert llm.context.draft_vocab == llm.model.n_vocab
    assert sum(completion.stats.outside_per_position) == 0


def test_llms_over_one_model_have_sets_of_their_own(dense: Model, prompts: list[str]) -> None:
    with make_llm(dense, draft_vocab=LEAST) as one, make_llm(dense, draft_vocab=LEAST) as other:
        alone = [one.generate(prompt, WARM).token_ids for prompt in prompts[:2]]
        one.generate(prompts[5], WARM)
        assert [other.generate(prompt, WARM).token_ids for prompt in prompts[:2]] == alone
        assert over(one.context) != over(other.context)


# ── Drafts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def likeliest_of(logits: Any, tokens: set[int]) -> int:
    return max(tokens, key=lambda token: (logits[token], -token))


def check_drafts(model: Model, *, draws: str = "host", **options: Any) -> None:
    """Drafts are the likeliest of the set by the whole head's logits, while tokens join and rows are given out anew."""
    with (
        context(model, draft_vocab=LEAST, draws=draws, **options) as part,
        context(model, draft_vocab="all", **options) as whole,
    ):
        for c in (part, whole):
            told(c, some_tokens(model, 8))
        sets = []
        for i in range(8):
            # a few tokens that join the annex, then more than it has rows
            more = [(37 * i + j) % model.n_vocab for j in range(5 if i < 4 else ANNEX + 10)]
            for c in (part, whole):
                c.prefill(more)
            (draft,), _ = part.draft_chain(more[-1], 1)
            sets.append(over(part))
            assert set(more) <= sets[-1]
            assert len(sets[-1]) == LEAST
            assert draft == likeliest_of(whole.draft(more[-1]), sets[-1])
        assert len(set(map(frozenset, sets))) > 4


@BOTH
@pytest.mark.parametrize("draws", ["host", "device"])
def test_a_draft_is_the_likeliest_token_of_the_set(model: Model, draws: str) -> None:
    check_drafts(model, draws=draws)


@pytest.mark.parametrize("draws", ["host", "device"])
@pytest.mark.parametrize("how", ["T=0.7", "top_k=40", "penalties"])
def test_a_draft_has_the_noise_of_its_token_wherever_the_row_is(
    dense: Model, prompts: list[str], how: str, draws: str
) -> None:
    # first tokens that take the rows of the lowest ids
    before = [*range(1040, dense.n_vocab), *dense.tokenize(prompts[0])]
    with context(dense, draft_vocab=1024, draws=draws) as part, context(dense, draft_vocab="all") as whole:
        for c in (part, whole):
            told(c, before, HOW[how])
        token = whole.first_token()
        logits = whole.draft(token)
        part.draft_chain(token, 1)
        logits[[other for other in range(dense.n_vocab) if not part.drafts_over(other)]] = -np.inf
        for seed in range(20):
            sampler = Sampler(replace(HOW[how], seed=seed))
            part.set_sampling(sampler)
            (draft,), _ = part.draft_chain(token, 1)
            assert draft == sampler.sample(logits, len(before) + 1, [*before, token])[0]


@pytest.mark.parametrize("weights", ["q8_0", "q4_0", "q4_k", "q6_k", "f16"])
def test_rows_of_any_type_are_those_of_the_file(tmp_path: Path, weights: str) -> None:
    shape = replace(PRESETS["tiny"], n_embd=256, n_vocab=1024, n_ff=256)
    (path,) = make_model(shape, tmp_path / "model.gguf", weight_type=weights)
    with Model(path) as model:
        check_drafts(model)


def test_rows_of_a_split_model_are_found(tmp_path: Path) -> None:
    first, *rest = make_model("tiny-moe", tmp_path / "model.gguf", weight_type="f32", split_max_tensors=20)
    assert rest
    with Model(first) as model:
        check_drafts(model)


def test_a_head_with_an_output_matrix_of_its_own_drafts_with_that(demo: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(2048, 192)).astype(np.float32)
    rewrite(demo, tmp_path / "own.gguf", weights="f32", more={"blk.8.nextn.shared_head_head.weight": rows})
    with Model(tmp_path / "own.gguf") as own, Model(demo) as shared:
        check_drafts(own)
        assert some_drafts(own) != some_drafts(shared)


def some_drafts(model: Model) -> list[list[int]]:
    with context(model, draft_vocab=LEAST) as c:
        told(c, some_tokens(model, 8))
        return [c.draft_chain(token, DRAFTS)[0] for token in range(8)]


def test_the_file_may_go_once_the_model_is_loaded(demo_f32: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(demo_f32, path)
    with Model(path) as model:
        try:
            path.unlink()
        except PermissionError:
            pytest.skip("an open file cannot be deleted here")
        check_drafts(model)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the file's descriptor as Linux shows it")
def test_reading_rows_moves_no_position_that_a_forked_child_would_share(demo_f32: Path) -> None:
    with Model(demo_f32) as model, context(model, draft_vocab=LEAST) as c:
        path = os.path.realpath(demo_f32)
        files = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if os.path.realpath(entry) == path]
        before = [os.lseek(file, 0, os.SEEK_CUR) for file in files]
        told(c, [1500, 1600])
        c.draft_chain(1600, 1)
        assert c.drafts_over(1500)
        assert files
        assert [os.lseek(file, 0, os.SEEK_CUR) for file in files] == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the file's descriptor as Linux shows it")
def test_where_the_file_cannot_be_read_any_more_drafts_are_made_over_all(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "gone.gguf"
    shutil.copy(demo, path)
    params = SamplingParams(max_tokens=40)
    with Model(path) as model, make_llm(model, draft_tokens=3, draft_vocab=LEAST) as llm:
        expected = llm.generate("def f(", params)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for entry in Path("/proc/self/fd").iterdir():
            if os.path.realpath(entry) == str(path):
                os.dup2(nothing, int(entry.name))
        os.close(nothing)
        found = llm.generate("class Shape:\n", params)
        assert llm.context.draft_vocab == model.n_vocab
        assert llm.generate("def f(", params).text == expected.text
    with Model(demo) as model, make_llm(model, draft_tokens=0) as plain:
        assert found.text == plain.generate("class Shape:\n", params).text


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the layer itself may be the file's pages")
def test_what_was_written_over_the_file_is_not_taken_for_rows(tmp_path: Path) -> None:
    shape = replace(PRESETS["tiny"], n_embd=256, n_vocab=1024, n_ff=256, tied=False)
    (path,) = make_model(shape, tmp_path / "model.gguf", weight_type="q4_0")  # the layer is a copy in another layout
    with Model(path) as model, make_llm(model, draft_tokens=0) as plain:
        expected = [plain.generate(some_tokens(model, 20, seed), WARM).token_ids for seed in (1, 2)]
    (layer,) = (tensor for tensor in GGUFReader(path).tensors if tensor.name == "output.weight")
    with Model(path) as model, make_llm(model, draft_tokens=3, draft_vocab=LEAST) as llm:
        found = [llm.generate(some_tokens(model, 20, 1), WARM).token_ids]
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"\xff" * int(layer.n_bytes), int(layer.data_offset))  # scales that are no numbers
        os.utime(path, (0, 0))
        found.append(llm.generate(some_tokens(model, 20, 2), WARM).token_ids)
        assert llm.context.draft_vocab == model.n_vocab
    assert found == expected


def test_tokens_that_join_leave_the_graphs_as_they_are(dense: Model) -> None:
    with context(dense, draft_vocab=LEAST) as c:
        told(c, [1, 2, 3])
        c.draft_chain(3, DRAFTS)
        for token in (1000, 1001, 1002):
            before = c.counters
            c.prefill([token])
            assert not c.drafts_over(token)
            c.draft_chain(token, DRAFTS)
            after = c.counters
            assert c.drafts_over(token)
            # the prompt's in the slot for prompts, the chain's in that for its length
            assert after.graphs_reused - before.graphs_reused >= 1
            assert after.draft_decodes - before.draft_decodes == 1


# ── The set ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_guess_is_the_earliest_merges_and_what_ends_a_turn(dense: Model) -> None:
    with context(dense, draft_vocab=256) as c:
        told(c, [0])
        c.draft_chain(0, 1)
        held = over(c)
    special = {token for token in range(dense.n_vocab) if dense.token_bytes(token) == b""}
    ends = {token for token in range(dense.n_vocab) if dense.ends_generation(token)}
    assert ends
    assert special | ends <= held
    # but for one or two that joined
    assert len(held & set(range(256 - len(special)))) >= 256 - len(special) - 2


def test_a_token_outside_that_the_target_chose_joins(dense: Model) -> None:
    chosen = 1500
    params = replace(GREEDY, logit_bias={chosen: 1000.0})
    with context(dense, draft_vocab=LEAST) as c:
        told(c, [1, 2, 3])
        c.set_sampling(Sampler(GREEDY))
        c.first_token()
        drafts, _ = c.draft_chain(5, DRAFTS)
        assert not c.drafts_over(chosen)
        c.set_sampling(Sampler(params))
        assert c.verify_chain([5, *drafts]) == [chosen]
        assert not c.drafts_over(chosen)  # of these drafts, it was none
        c.rewind(4)
        assert c.draft_chain(chosen, 1)[0] == [chosen]
        assert c.drafts_over(chosen)


def test_the_token_leaves_that_was_seen_longest_ago(dense: Model) -> None:
    n = dense.n_vocab
    with context(dense, draft_vocab=LEAST) as c:
        told(c, range(200, 200 + LEAST))
        c.first_token()
        c.draft_chain(0, 1)
        assert over(c) >= set(range(202, 200 + LEAST))  # the oldest may have gone for the token that followed
        recent = list(range(200, 200 + LEAST // 2))
        c.prefill(recent)
        new = list(range(n - LEAST // 4, n))
        c.prefill(new)
        c.draft_chain(0, 1)
        held = over(c)
        assert held >= {*new, *recent}
        assert len(held) == LEAST


def test_a_prompt_with_more_tokens_than_the_set_leaves_the_last(dense: Model) -> None:
    prompt = list(range(0, 600))
    with context(dense, draft_vocab=LEAST) as c:
        told(c, prompt)
        c.draft_chain(0, 1)
        assert over(c) == set(prompt[-LEAST:])


# ── What is refused, and what it takes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [0, -1, True, False, 1.5, "half", "", None, "32768"])
def test_what_is_no_part_of_a_vocabulary_is_refused(dense: Model, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="draft_vocab"):
        context(dense, draft_vocab=value)


@pytest.mark.parametrize(
    ("asked", "got"), [(1, 128), (128, 128), (129, 192), (2047, 2048), (2048, 2048), (10**12, 2048)]
)
def test_sizes_come_in_steps_up_to_the_whole_vocabulary(dense: Model, asked: int, got: int) -> None:
    assert dense.n_vocab == 2048
    with context(dense, draft_vocab=asked) as c:
        assert c.draft_vocab == got


def test_without_drafts_there_is_no_set(dense: Model) -> None:
    with context(dense, draft_vocab=LEAST, draft_tokens=0) as c:
        assert c.draft_vocab == dense.n_vocab
        assert sum(device.draft_vocab for device in c.memory()) == 0


@pytest.mark.parametrize("size", [LEAST, 1024, "all"])
def test_memory_counts_the_rows_in_the_plan_and_in_use(demo_f32: Path, dense: Model, size: Any) -> None:
    with Model(demo_f32, vocab_only=True) as looked_at:
        (plan,) = plan_memory(looked_at, n_ctx=512, draft_tokens=3, draft_vocab=size)
    with context(dense, n_ctx=512, draft_vocab=size) as c:
        (used,) = c.memory()
    assert plan.draft_vocab == used.draft_vocab
    rows = 0 if size == "all" else size
    assert rows * (dense.n_embd + 1) * 4 <= used.draft_vocab <= rows * (dense.n_embd + 1) * 4 + 512
