"""Tests of a head in a file of its own: it works like a head in the model's file."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.command import run
from helpers.contexts import context, some_tokens
from helpers.full_context import measured_memory
from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite
from makers.head_file import read_tensor, tied_output, write_head, write_pair
from makers.lora import make_delta, write_adapter
from makers.make_model import make_model

import pymtp
from pymtp import LLM, AsyncLLM, InvalidRequestError, Model, ModelLoadError, SamplingParams
from pymtp.context.memory import plan_memory
from pymtp.engine.request import Completion
from pymtp.model.options import ModelOptions
from pymtp.sampling import Sampler

PROMPT = "def median(numbers):"
GREEDY = SamplingParams(max_tokens=60)
SAMPLED = SamplingParams(max_tokens=60, temperature=0.9, seed=3)


@pytest.fixture(scope="module")
def pair(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write the shipped model's trunk and head to two files."""
    return write_pair(demo, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def own(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the shipped model's head with its own embeddings and output layer, in other types than the trunk's."""
    path = tmp_path_factory.mktemp("own") / "mtp-own.gguf"
    types = {"token_embd.weight": "q4_0", "output.weight": "f16", "blk.*": "f16"}
    write_head(demo, path, tensors=tied_output(demo), types=types)
    return path


def text_and_drafts(llm: LLM, params: SamplingParams) -> tuple[list[int], list[int], list[int]]:
    """Return the generated tokens, the number of drafts in each round, and the accepted drafts at each position."""
    found: Completion = llm.generate(PROMPT, params)
    return found.token_ids, list(found.stats.depths), list(found.stats.accepted_per_position)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_head_file_drafts_the_same_as_the_head_in_the_models_file(
    demo: Path, pair: tuple[Path, Path], drafts: int, params: SamplingParams
) -> None:
    trunk, head = pair
    with make_llm(demo, draft_tokens=drafts) as inside, make_llm(trunk, head=head, draft_tokens=drafts) as apart:
        wanted = text_and_drafts(inside, params)
        assert sum(wanted[2]) > 0
        assert text_and_drafts(apart, params) == wanted
        assert apart.model.has_head


def test_head_file_works_with_llm_async_llm_generate_and_the_command(pair: tuple[Path, Path]) -> None:
    trunk, head = pair

    async def later() -> Completion:
        async with AsyncLLM(trunk, head=head, n_ctx=512, n_threads=1, draft_tokens=3) as llm:
            return await llm.generate(PROMPT, GREEDY)

    with make_llm(trunk, head=str(head)) as llm:
        wanted = llm.generate(PROMPT, GREEDY)
    assert wanted.stats.accepted > 0
    once = pymtp.generate(PROMPT, model=trunk, head=head, n_ctx=512, n_threads=1, draft_tokens=3, max_tokens=60)
    for found in (once, asyncio.run(later())):
        assert (found.text, found.stats.accepted) == (wanted.text, wanted.stats.accepted)
    done = run("generate", PROMPT, "--model", trunk, "-md", head, "--draft-tokens", "3", "--max-tokens", "60")
    assert wanted.text in done.stdout
    about = json.loads(run("info", str(trunk), "--head", str(head), "--json").stdout)["model"]
    assert about["mtp_head"] is True
    assert about["head_file"] == str(head)


def test_head_file_adds_no_graph_and_no_host_copy(pair: tuple[Path, Path]) -> None:
    trunk, head = pair
    with Model(trunk, head=head) as model, context(model, n_ubatch=32, n_batch=64) as c:
        c.set_sampling(Sampler(SamplingParams()))
        c.prefill(some_tokens(model, 100))
        assert (c.counters.target_decodes, c.counters.draft_decodes) == (2, 0)
        assert c.counters.hidden_bytes == 0
        token = c.first_token()
        before = c.counters
        drafts, _ = c.draft_chain(token, 3)
        c.verify_chain([token, *drafts])
        assert c.counters.target_decodes - before.target_decodes == 1
        assert c.counters.draft_decodes - before.draft_decodes == 1
        assert c.counters.hidden_bytes == 0


@pytest.mark.parametrize("draft_vocab", ["all", 128])
def test_head_file_with_its_own_embeddings_and_output_keeps_the_text(
    demo: Path, pair: tuple[Path, Path], own: Path, draft_vocab: Any
) -> None:
    with (
        make_llm(demo, draft_vocab=draft_vocab) as inside,
        make_llm(pair[0], head=own, draft_vocab=draft_vocab) as apart,
    ):
        for params in (GREEDY, SAMPLED):
            wanted, found = inside.generate(PROMPT, params), apart.generate(PROMPT, params)
            assert found.token_ids == wanted.token_ids
            assert found.stats.acceptance_rate > 0.8 * wanted.stats.acceptance_rate > 0


def test_draft_vocabulary_uses_the_heads_own_output_matrix(demo: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    output = read_tensor(demo, "token_embd.weight")
    write_head(demo, head := tmp_path / "mtp.gguf", tensors={"output.weight": -output})
    with make_llm(pair[0], head=head, draft_vocab=1024) as llm:
        found = llm.generate(PROMPT, GREEDY)
    assert found.stats.acceptance_rate < 0.05  # with a negated matrix, the least likely tokens are drafted


def test_head_file_does_not_load_matrices_of_the_trunk_again(demo: Path, pair: tuple[Path, Path], own: Path) -> None:
    with Model(demo) as inside, Model(pair[0], head=pair[1]) as apart, Model(pair[0], head=own) as more:
        assert apart.n_params == inside.n_params
        assert more.n_params == inside.n_params + 2 * inside.n_vocab * inside.n_embd


@pytest.mark.parametrize("n_seq_max", [1, 3])
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_memory_plan_with_a_head_file_matches_the_memory_in_use(
    pair: tuple[Path, Path], own: Path, n_seq_max: int, draft_tokens: int
) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "n_seq_max": n_seq_max, "draft_tokens": draft_tokens}
    for head in (pair[1], own):
        with Model(pair[0], head=head, vocab_only=True) as looked_at:
            (plan,) = plan_memory(looked_at, placing=ModelOptions(head=head), **options)
        with Model(pair[0], head=head) as model:
            assert measured_memory(model, **options) == plan


def test_head_file_replaces_the_head_in_the_models_file(demo: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    zeros = {"blk.8.nextn.eh_proj.weight": 0 * read_tensor(demo, "blk.8.nextn.eh_proj.weight")}
    write_head(demo, bad := tmp_path / "mtp-zeros.gguf", tensors=zeros)
    with make_llm(demo) as inside, make_llm(demo, head=pair[1]) as same, make_llm(demo, head=bad) as other:
        wanted = text_and_drafts(inside, GREEDY)
        assert text_and_drafts(same, GREEDY) == wanted
        text, _, accepted = text_and_drafts(other, GREEDY)
        assert text == wanted[0]
        assert sum(accepted) < sum(wanted[2]) / 4


def test_head_file_replaces_an_absent_head(demo: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    rewrite(demo, path := tmp_path / "a.gguf", leave_out=("blk.8.",))
    with make_llm(demo) as inside, make_llm(path, head=pair[1]) as apart:
        assert text_and_drafts(apart, GREEDY) == text_and_drafts(inside, GREEDY)


@pytest.mark.parametrize("block", [8, 0])
def test_head_file_replaces_a_block_without_head_tensors(
    demo: Path, pair: tuple[Path, Path], tmp_path: Path, block: int
) -> None:
    rewrite(demo, path := tmp_path / "half.gguf", leave_out=("blk.8.nextn.",))
    names = [tensor.name for tensor in open_gguf(pair[1]).tensors if tensor.name.startswith("blk.")]
    write_head(demo, head := tmp_path / "mtp.gguf", rename={n: n.replace("blk.8.", f"blk.{block}.") for n in names})
    with make_llm(demo) as inside, make_llm(path, head=head) as apart:
        assert text_and_drafts(apart, GREEDY) == text_and_drafts(inside, GREEDY)


def test_split_model_and_split_head_load(demo: Path, tmp_path: Path) -> None:
    (trunk, *_) = make_model("tiny", tmp_path / "m.gguf", split_max_tensors=20)
    (whole,) = make_model("tiny", tmp_path / "whole.gguf")
    head, *more = write_head(whole, tmp_path / "mtp.gguf", split_max_tensors=5)
    assert more
    with make_llm(whole) as inside, make_llm(trunk, head=head) as apart:
        assert text_and_drafts(apart, GREEDY) == text_and_drafts(inside, GREEDY)
    more[0].unlink()
    with pytest.raises(ModelLoadError, match=f"mtp.*part 2 of {len(more) + 1}"):
        Model(trunk, head=head)


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe", "tiny-next"])
def test_head_file_of_each_architecture_drafts_the_same_as_the_head_in_the_models_file(
    preset: str, tmp_path: Path
) -> None:
    (whole,) = make_model(preset, tmp_path / "whole.gguf", weight_type="q8_0")
    trunk, head = write_pair(whole, tmp_path)
    with Model(whole) as inside, Model(trunk, head=head) as apart, context(inside) as a, context(apart) as b:
        prompt = some_tokens(inside, 50)
        for c in (a, b):
            c.set_sampling(Sampler(SamplingParams()))
            c.prefill(prompt)
        assert a.inspect.head_state() == b.inspect.head_state()
        token = a.first_token()
        assert b.first_token() == token
        assert a.draft_chain(token, 3) == b.draft_chain(token, 3)


def test_adapter_applies_to_a_head_file(demo_f32: Path, tmp_path: Path) -> None:
    trunk, head = write_pair(demo_f32, tmp_path)
    names = ["blk.0.ffn_up.weight", "blk.8.ffn_up.weight", "blk.8.nextn.eh_proj.weight"]
    adapter = write_adapter(tmp_path / "a.gguf", make_delta(demo_f32, names, seed=2, size=0.2), alpha=4.0)
    with make_llm(demo_f32, lora=adapter) as inside, make_llm(trunk, head=head, lora=adapter) as apart:
        assert text_and_drafts(apart, GREEDY) == text_and_drafts(inside, GREEDY)


def test_saved_prefix_loads_only_with_the_same_head_file(
    demo: Path, pair: tuple[Path, Path], own: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "a.prefix"
    with make_llm(pair[0], head=pair[1]) as llm:
        llm.save_prefix(PROMPT * 4, saved)
        wanted = llm.generate(PROMPT * 4, GREEDY)
    with make_llm(pair[0], head=pair[1]) as llm:
        llm.load_prefix(saved)
        found = llm.generate(PROMPT * 4, GREEDY)
        assert found.stats.cached_tokens > 0
        assert (found.token_ids, found.stats.accepted) == (wanted.token_ids, wanted.stats.accepted)
    with make_llm(pair[0], head=own) as llm, pytest.raises(InvalidRequestError, match="head's file"):
        llm.load_prefix(saved)
    with make_llm(demo) as llm, pytest.raises(InvalidRequestError, match="model"):
        llm.load_prefix(saved)
    with (
        make_llm(pair[0], draft_tokens="auto") as llm,
        pytest.raises(InvalidRequestError, match=r"made with drafts, .* it takes a head, and"),
    ):
        llm.load_prefix(saved)


def test_head_file_is_not_loaded_if_no_drafts_are_made(pair: tuple[Path, Path]) -> None:
    with make_llm(pair[0], head=pair[1], draft_tokens=0) as llm, Model(pair[0]) as bare:
        assert llm.model.n_params == bare.n_params
        assert not llm.model.mtp
    with Model(pair[0], head=pair[1], mtp=False) as model:
        assert model.n_params == bare.n_params
        with pytest.raises(InvalidRequestError, match="was loaded without it"):
            context(model)


def test_context_with_a_head_file_works_after_its_model_was_closed(pair: tuple[Path, Path]) -> None:
    model = Model(pair[0], head=pair[1])
    c = context(model)
    c.set_sampling(Sampler(SamplingParams()))
    prompt = some_tokens(model, 20)
    model.close()
    c.prefill(prompt)
    assert len(c.draft_chain(c.first_token(), 3)[0]) == 3
    c.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_child_drafts_with_a_head_file(pair: tuple[Path, Path]) -> None:
    with make_llm(pair[0], head=pair[1]) as llm:
        wanted = text_and_drafts(llm, GREEDY)
        if (child := os.fork()) == 0:
            os._exit(text_and_drafts(llm, GREEDY) != wanted)
        assert os.waitpid(child, 0)[1] == 0


def test_messages_and_reports_name_the_head_file(
    pair: tuple[Path, Path], demo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trunk, head = pair
    nan = np.full(Model(demo, vocab_only=True).n_embd, np.nan, "f4")
    lost = write_head(demo, tmp_path / "lost.gguf", tensors={"blk.8.nextn.hnorm.weight": nan})[0]
    with make_llm(trunk, head=lost, draft_tokens=1) as llm:
        llm.generate(PROMPT, GREEDY)
    (record,) = (record for record in caplog.records if record.name == "pymtp.drafts")
    assert record.getMessage().startswith(f"{trunk.name} + lost.gguf: the head's logits are not finite")
    done = run("info", "--memory", trunk, "--head", head)
    assert f"{trunk.name} + {head.name}: n_ctx" in " ".join(done.stdout.split())
    with Model(trunk, head=head, mtp=False) as model:
        assert model.file_names == trunk.name


def test_trunk_file_loads_without_its_head_file(pair: tuple[Path, Path]) -> None:
    with make_llm(pair[0], draft_tokens="auto") as llm:
        assert not llm.model.has_head
        stats = llm.generate(PROMPT, GREEDY).stats
        assert stats.drafted == stats.drafted_by_text
