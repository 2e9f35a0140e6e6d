"""Tests of draft_vocab: the generated text does not depend on it, and its set of tokens follows the text."""

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

GREEDY = SamplingParams(40, ignore_eos=True)
WARM = replace(GREEDY, temperature=0.7, seed=4)
HOW = {
    "greedy": GREEDY,
    "T=0.7": WARM,
    "top_k=40": replace(WARM, top_k=40),
    "top_k=128": replace(WARM, top_k=128),  # needs more candidates than the smallest draft vocabulary has
    "penalties": replace(WARM, repetition_penalty=1.3),
    "bias": replace(GREEDY, logit_bias={5: 1.0, 1500: 4.0}),
    "grammar": replace(WARM, grammar='root ::= [a-z_ ()=:\\n.,0-9"]*'),
}
SMALLEST = 128  # tokens of the smallest draft vocabulary
ANNEX = 64  # rows of the smallest draft vocabulary that new tokens replace one by one


def draft_set(c: Context) -> set[int]:
    """Return the tokens that the last drafts could be sampled from."""
    return {token for token in range(c.model.n_vocab) if c.drafts_over(token)}


def prefilled(c: Context, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Context:
    c.set_sampling(Sampler(params))
    c.prefill(prompt)
    return c


# ── The generated text ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", HOW)
def test_draft_vocab_of_any_size_gives_the_same_text(demo: Path, prompts: list[str], how: str) -> None:
    texts, lost = {}, {}
    for name, options in {
        "plain": {"draft_tokens": 0},
        "all": {"draft_vocab": "all"},
        "half": {"draft_vocab": 1024},
        "least": {"draft_vocab": SMALLEST},
        "device": {"draft_vocab": SMALLEST, "draws": "device"},
    }.items():
        with make_llm(demo, **{"draws": "host", **options}) as llm:
            completions = llm.generate(prompts[:2], HOW[how])
        texts[name] = [c.token_ids for c in completions]
        lost[name] = sum(sum(c.stats.outside_per_position) for c in completions)
    assert texts["half"] == texts["least"] == texts["device"] == texts["all"] == texts["plain"]
    assert lost["plain"] == lost["all"] == 0 < lost["least"] == lost["device"]


def test_without_fused_prefill_the_head_drafts_from_the_full_vocabulary(demo: Path, prompts: list[str]) -> None:
    with make_llm(demo, draft_vocab=SMALLEST, prefill="host-copy") as llm:
        completion = llm.generate(prompts[0], GREEDY)
        assert llm.context.draft_vocab == llm.model.n_vocab
    assert sum(completion.stats.outside_per_position) == 0


def test_draft_vocab_is_separate_for_each_llm(shipped_f32: Model, prompts: list[str]) -> None:
    with make_llm(shipped_f32, draft_vocab=SMALLEST) as one, make_llm(shipped_f32, draft_vocab=SMALLEST) as other:
        alone = [one.generate(prompt, WARM).token_ids for prompt in prompts[:2]]
        one.generate(prompts[5], WARM)
        assert [other.generate(prompt, WARM).token_ids for prompt in prompts[:2]] == alone
        assert draft_set(one.context) != draft_set(other.context)


# ── Drafts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def likeliest_of(logits: Any, tokens: set[int]) -> int:
    return max(tokens, key=lambda token: (logits[token], -token))


def check_drafts(model: Model, *, draws: str = "host", **options: Any) -> None:
    """Check that drafts are the set's tokens with the highest full logits, while tokens are added and evicted."""
    with (
        context(model, draft_vocab=SMALLEST, draws=draws, **options) as part,
        context(model, draft_vocab="all", **options) as whole,
    ):
        for c in (part, whole):
            prefilled(c, some_tokens(model, 8))
        sets = []
        for i in range(8):
            # first a few new tokens, then more than the annex has rows
            more = [(37 * i + j) % model.n_vocab for j in range(5 if i < 4 else ANNEX + 10)]
            for c in (part, whole):
                c.prefill(more)
            (draft,), _ = part.draft_chain(more[-1], 1)
            sets.append(draft_set(part))
            assert set(more) <= sets[-1]
            assert len(sets[-1]) == SMALLEST
            assert draft == likeliest_of(whole.draft(more[-1]), sets[-1])
        assert len(set(map(frozenset, sets))) > 4


@BOTH
@pytest.mark.parametrize("draws", ["host", "device"])
def test_draft_is_the_likeliest_token_of_the_draft_vocab(model: Model, draws: str) -> None:
    check_drafts(model, draws=draws)


@pytest.mark.parametrize("draws", ["host", "device"])
@pytest.mark.parametrize("how", ["T=0.7", "top_k=40", "penalties"])
def test_noise_of_a_draft_depends_on_its_token_and_not_on_its_row(
    shipped_f32: Model, prompts: list[str], how: str, draws: str
) -> None:
    # first, tokens that replace the rows of the lowest ids
    before = [*range(shipped_f32.n_vocab - 1008, shipped_f32.n_vocab), *shipped_f32.tokenize(prompts[0])]
    with (
        context(shipped_f32, n_ctx=2048, draft_vocab=1024, draws=draws) as part,
        context(shipped_f32, n_ctx=2048, draft_vocab="all") as whole,
    ):
        for c in (part, whole):
            prefilled(c, before, HOW[how])
        token = whole.first_token()
        logits = whole.draft(token)
        part.draft_chain(token, 1)
        logits[[other for other in range(shipped_f32.n_vocab) if not part.drafts_over(other)]] = -np.inf
        for seed in range(20):
            sampler = Sampler(replace(HOW[how], seed=seed))
            part.set_sampling(sampler)
            (draft,), _ = part.draft_chain(token, 1)
            assert draft == sampler.sample(logits, len(before) + 1, [*before, token])[0]


@pytest.mark.parametrize("weights", ["q8_0", "q4_0", "q4_k", "q6_k", "f16"])
def test_draft_vocab_rows_of_any_type_match_the_file(tmp_path: Path, weights: str) -> None:
    shape = replace(PRESETS["tiny"], n_embd=256, n_vocab=1024, n_ff=256)
    (path,) = make_model(shape, tmp_path / "model.gguf", weight_type=weights)
    with Model(path) as model:
        check_drafts(model)


def test_draft_vocab_finds_rows_of_a_split_model(tmp_path: Path) -> None:
    first, *rest = make_model("tiny-moe", tmp_path / "model.gguf", weight_type="f32", split_max_tensors=20)
    assert rest
    with Model(first) as model:
        check_drafts(model)


def test_draft_vocab_uses_the_output_matrix_of_the_head(demo: Path, tmp_path: Path) -> None:
    sizes = Model(demo, vocab_only=True)
    rows = np.random.default_rng(1).normal(size=(sizes.n_vocab, sizes.n_embd)).astype(np.float32)
    rewrite(demo, tmp_path / "own.gguf", weights="f32", more={"blk.8.nextn.shared_head_head.weight": rows})
    with Model(tmp_path / "own.gguf") as own, Model(demo) as shared:
        check_drafts(own)
        assert some_drafts(own) != some_drafts(shared)


def some_drafts(model: Model) -> list[list[int]]:
    with context(model, draft_vocab=SMALLEST) as c:
        prefilled(c, some_tokens(model, 8))
        return [c.draft_chain(token, DRAFTS)[0] for token in range(8)]


def test_draft_vocab_works_after_the_file_is_deleted(demo_f32: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(demo_f32, path)
    with Model(path) as model:
        try:
            path.unlink()
        except PermissionError:
            pytest.skip("an open file cannot be deleted here")
        check_drafts(model)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the file's descriptor as Linux shows it")
def test_draft_vocab_does_not_move_a_file_offset_shared_with_a_forked_child(demo_f32: Path) -> None:
    with Model(demo_f32) as model, context(model, draft_vocab=SMALLEST) as c:
        path = os.path.realpath(demo_f32)
        files = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if os.path.realpath(entry) == path]
        before = [os.lseek(file, 0, os.SEEK_CUR) for file in files]
        prefilled(c, [1500, 1600])
        c.draft_chain(1600, 1)
        assert c.drafts_over(1500)
        assert files
        assert [os.lseek(file, 0, os.SEEK_CUR) for file in files] == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the file's descriptor as Linux shows it")
def test_draft_vocab_is_the_full_vocabulary_if_the_file_cannot_be_read(demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "gone.gguf"
    shutil.copy(demo, path)
    params = SamplingParams(max_tokens=40)
    with Model(path) as model, make_llm(model, draft_tokens=3, draft_vocab=SMALLEST) as llm:
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
def test_draft_vocab_ignores_an_overwritten_file(tmp_path: Path) -> None:
    shape = replace(PRESETS["tiny"], n_embd=256, n_vocab=1024, n_ff=256, tied=False)
    (path,) = make_model(
        shape, tmp_path / "model.gguf", weight_type="q4_0"
    )  # the loaded layer is a repacked copy, not the pages of the file
    with Model(path) as model, make_llm(model, draft_tokens=0) as plain:
        expected = [plain.generate(some_tokens(model, 20, seed), WARM).token_ids for seed in (1, 2)]
    (layer,) = (tensor for tensor in GGUFReader(path).tensors if tensor.name == "output.weight")
    with Model(path) as model, make_llm(model, draft_tokens=3, draft_vocab=SMALLEST) as llm:
        found = [llm.generate(some_tokens(model, 20, 1), WARM).token_ids]
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"\xff" * int(layer.n_bytes), int(layer.data_offset))  # NaN scales
        os.utime(path, (0, 0))
        found.append(llm.generate(some_tokens(model, 20, 2), WARM).token_ids)
        assert llm.context.draft_vocab == model.n_vocab
    assert found == expected


def test_draft_vocab_changes_rebuild_no_graph(shipped_f32: Model) -> None:
    with context(shipped_f32, draft_vocab=SMALLEST) as c:
        prefilled(c, [1, 2, 3])
        c.draft_chain(3, DRAFTS)
        for token in (1000, 1001, 1002):
            before = c.counters
            c.prefill([token])
            assert not c.drafts_over(token)
            c.draft_chain(token, DRAFTS)
            after = c.counters
            assert c.drafts_over(token)
            # one graph for the prompt, and one for chains of this length
            assert after.graphs_reused - before.graphs_reused >= 1
            assert after.draft_decodes - before.draft_decodes == 1


# ── The set ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_draft_vocab_starts_with_the_earliest_merges_and_end_of_turn_tokens(shipped_f32: Model) -> None:
    with context(shipped_f32, draft_vocab=256) as c:
        prefilled(c, [0])
        c.draft_chain(0, 1)
        held = draft_set(c)
    special = {token for token in range(shipped_f32.n_vocab) if shipped_f32.token_bytes(token) == b""}
    ends = {token for token in range(shipped_f32.n_vocab) if shipped_f32.ends_generation(token)}
    assert ends
    assert special | ends <= held
    # except one or two tokens that were added since
    assert len(held & set(range(256 - len(special)))) >= 256 - len(special) - 2


def test_draft_vocab_adds_a_token_that_the_target_sampled(shipped_f32: Model) -> None:
    chosen = 1500
    params = replace(GREEDY, logit_bias={chosen: 1000.0})
    with context(shipped_f32, draft_vocab=SMALLEST) as c:
        prefilled(c, [1, 2, 3])
        c.set_sampling(Sampler(GREEDY))
        c.first_token()
        drafts, _ = c.draft_chain(5, DRAFTS)
        assert not c.drafts_over(chosen)
        c.set_sampling(Sampler(params))
        assert c.verify_chain([5, *drafts]) == [chosen]
        assert not c.drafts_over(chosen)  # the set did not have this token when these drafts were made
        c.rewind(4)
        assert c.draft_chain(chosen, 1)[0] == [chosen]
        assert c.drafts_over(chosen)


def test_draft_vocab_evicts_the_least_recently_seen_token(shipped_f32: Model) -> None:
    n = shipped_f32.n_vocab
    with context(shipped_f32, draft_vocab=SMALLEST) as c:
        prefilled(c, range(200, 200 + SMALLEST))
        c.first_token()
        c.draft_chain(0, 1)
        # the oldest tokens may have been evicted for the token after the prompt
        assert draft_set(c) >= set(range(202, 200 + SMALLEST))
        recent = list(range(200, 200 + SMALLEST // 2))
        c.prefill(recent)
        new = list(range(n - SMALLEST // 4, n))
        c.prefill(new)
        c.draft_chain(0, 1)
        held = draft_set(c)
        assert held >= {*new, *recent}
        assert len(held) == SMALLEST


def test_draft_vocab_keeps_the_last_tokens_of_a_long_prompt(shipped_f32: Model) -> None:
    prompt = list(range(0, 600))
    with context(shipped_f32, draft_vocab=SMALLEST) as c:
        prefilled(c, prompt)
        c.draft_chain(0, 1)
        assert draft_set(c) == set(prompt[-SMALLEST:])


# ── Refused values, and memory ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [0, -1, True, False, 1.5, "half", "", None, "32768"])
def test_draft_vocab_refuses_invalid_sizes(shipped_f32: Model, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="draft_vocab"):
        context(shipped_f32, draft_vocab=value)


@pytest.mark.parametrize(("asked", "got"), [(1, 128), (128, 128), (129, 192)])
def test_draft_vocab_size_is_rounded_up_to_a_step(shipped_f32: Model, asked: int, got: int) -> None:
    with context(shipped_f32, draft_vocab=asked) as c:
        assert c.draft_vocab == got


@pytest.mark.parametrize("more", [-1, 0, 10**12])
def test_draft_vocab_size_is_at_most_that_of_the_vocabulary(shipped_f32: Model, more: int) -> None:
    with context(shipped_f32, draft_vocab=shipped_f32.n_vocab + more) as c:
        assert c.draft_vocab == shipped_f32.n_vocab


def test_draft_vocab_is_absent_without_drafts(shipped_f32: Model) -> None:
    with context(shipped_f32, draft_vocab=SMALLEST, draft_tokens=0) as c:
        assert c.draft_vocab == shipped_f32.n_vocab
        assert sum(device.draft_vocab for device in c.memory()) == 0


@pytest.mark.parametrize("size", [SMALLEST, 1024, "all"])
def test_draft_vocab_rows_count_in_planned_and_used_memory(demo_f32: Path, shipped_f32: Model, size: Any) -> None:
    with Model(demo_f32, vocab_only=True) as vocabulary:
        (plan,) = plan_memory(vocabulary, n_ctx=512, draft_tokens=3, draft_vocab=size)
    with context(shipped_f32, n_ctx=512, draft_vocab=size) as c:
        (used,) = c.memory()
    assert plan.draft_vocab == used.draft_vocab
    rows = 0 if size == "all" else size
    assert rows * (shipped_f32.n_embd + 1) * 4 <= used.draft_vocab <= rows * (shipped_f32.n_embd + 1) * 4 + 512
