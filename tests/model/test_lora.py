"""Tests of LoRA adapters and RoPE scaling: they apply to target and head, and saved prefixes depend on them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import make_llm
from gguf import GGUFReader
from helpers.command import run
from helpers.contexts import EXACT, context, some_tokens
from makers.lora import make_delta, merge, write_adapter

from pymtp import InvalidRequestError, Model, ModelLoadError, SamplingParams
from pymtp.cli.exit_codes import NOT_LOADED
from pymtp.model.options import ModelOptions

NAMES = ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight"]


@pytest.fixture(scope="module")
def adapters(demo_f32: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write three adapter files. Each has alpha equal to its rank, which means a scale of 1."""
    folder = tmp_path_factory.mktemp("adapters")
    deltas = {seed: make_delta(demo_f32, NAMES, seed=seed) for seed in (1, 2, 3)}
    return [write_adapter(folder / f"{seed}.gguf", delta, alpha=4.0) for seed, delta in deltas.items()]


def test_adapter_gives_the_logits_of_merged_weights(demo_f32: Path, tmp_path: Path) -> None:
    delta = make_delta(demo_f32, NAMES, seed=1)
    adapter = write_adapter(tmp_path / "a.gguf", delta, alpha=2.0)
    merged = merge(demo_f32, tmp_path / "merged.gguf", [(delta, 0.5 * 2.0 / 4)])
    rows = []
    for path, lora in ((demo_f32, [(adapter, 0.5)]), (merged, []), (demo_f32, [])):
        with Model(path, lora=lora) as model, context(model, **EXACT) as c:
            rows.append(c.prefill(some_tokens(model, 40)).copy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-4 < np.abs(rows[2] - rows[1]).max()


HEAD = ["blk.8.ffn_up.weight", "blk.8.attn_q.weight", "blk.8.nextn.eh_proj.weight"]


def test_adapter_of_the_head_changes_the_drafts_and_not_the_text(demo_f32: Path, tmp_path: Path) -> None:
    delta = make_delta(demo_f32, HEAD, seed=2, size=0.2)
    adapter = write_adapter(tmp_path / "a.gguf", delta, alpha=4.0)
    merged = merge(demo_f32, tmp_path / "merged.gguf", [(delta, 1.0)])
    params = SamplingParams(max_tokens=100)
    with make_llm(demo_f32) as plain, make_llm(demo_f32, lora=adapter) as adapted, make_llm(merged) as same:
        without, done, other = (llm.generate("def median(numbers):", params) for llm in (plain, adapted, same))
    assert done.token_ids == without.token_ids
    assert done.stats.accepted < without.stats.accepted
    assert done.stats.depths == other.stats.depths
    assert abs(done.stats.acceptance_rate - other.stats.acceptance_rate) < 0.1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_with_an_adapter_is_the_same_with_drafts(demo: Path, adapters: list[Path], temperature: float) -> None:
    params = SamplingParams(max_tokens=120, temperature=temperature, seed=5)
    texts = []
    for drafts in (0, 3):
        with make_llm(demo, lora=[(adapters[0], 0.5)], draft_tokens=drafts) as llm:
            done = llm.generate("def median(numbers):", params)
            texts.append(done.token_ids)
    assert texts[0] == texts[1]
    assert done.stats.accepted


def test_adapters_may_come_from_an_iterator(demo: Path, adapters: list[Path]) -> None:
    with make_llm(demo, lora=zip(adapters, (0.5, 0.25), strict=False)) as llm:
        assert llm.model.options.adapters == ((str(adapters[0]), 0.5), (str(adapters[1]), 0.25))


def test_several_adapters_give_the_logits_of_merged_weights(
    demo_f32: Path, adapters: list[Path], tmp_path: Path
) -> None:
    deltas = [(make_delta(demo_f32, NAMES, seed=seed), 0.25 * seed) for seed in (1, 2, 3)]
    merged = merge(demo_f32, tmp_path / "merged.gguf", deltas)
    rows = []
    for path, lora in ((demo_f32, list(zip(adapters, (0.25, 0.5, 0.75), strict=True))), (merged, [])):
        with Model(path, lora=lora) as model, context(model, **EXACT) as c:
            rows.append(c.prefill(some_tokens(model, 40)).copy())
    assert np.abs(rows[0] - rows[1]).max() < 1e-4


def test_saved_prefix_loads_only_with_the_same_adapters(adapters: list[Path], tmp_path: Path) -> None:
    with make_llm(lora=adapters[0]) as llm:
        llm.save_prefix("import os\n" * 20, tmp_path / "p")
    for others in ([], [(adapters[0], 0.5)], [adapters[1]], adapters[:2]):
        with make_llm(lora=others) as llm, pytest.raises(InvalidRequestError, match="other adapters"):
            llm.load_prefix(tmp_path / "p")
    with make_llm(lora=adapters[0]) as llm:
        llm.load_prefix(tmp_path / "p")
        assert llm.generate("import os\n" * 20, SamplingParams(max_tokens=1)).stats.cached_tokens


def test_file_that_is_not_an_adapter_is_refused(demo_f32: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such adapter"):
        Model(demo_f32, lora=tmp_path / "no.gguf")
    with pytest.raises(ModelLoadError, match="cannot load the adapter"):
        Model(demo_f32, lora=demo_f32)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs os.mkfifo")
@pytest.mark.timeout(30)
def test_adapter_that_is_a_pipe_is_refused_at_once(demo_f32: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match=r"pipe is not a regular file"):
        Model(demo_f32, lora=tmp_path / "pipe")
    with pytest.raises(ModelLoadError, match=r"pipe is not a regular file"):
        ModelOptions(lora=tmp_path / "pipe").adapter_bytes()


def test_memory_plan_refuses_the_adapters_that_a_model_refuses(demo_f32: Path, tmp_path: Path) -> None:
    of_another = write_adapter(tmp_path / "other.gguf", {"blk.0.ffn_up.weight": ones((4, 8), (8, 4))}, alpha=4.0)
    for adapter in (demo_f32, of_another):
        asked = ["--lora", adapter]
        refused, planned = run("generate", "-m", demo_f32, *asked, "def"), run("info", "--memory", demo_f32, *asked)
        assert refused.returncode == planned.returncode == NOT_LOADED
        assert refused.stderr == planned.stderr
        assert "cannot load the adapter" in planned.stderr


def test_memory_plan_includes_adapters(adapters: list[Path]) -> None:
    asked = ["info", "--memory", *(option for path in adapters for option in ("--lora", str(path)))]
    n = sum(path.stat().st_size for path in adapters)
    assert json.loads(run(*asked, "--json").stdout)["adapter_bytes"] == n
    assert f"Adapters take {n / 2**20:,.1f} MiB more" in run(*asked).stdout
    assert "Adapters" not in run("info", "--memory").stdout


def norm_of(path: Path) -> dict[str, int]:
    """Return the size of a norm in the model, by its name."""
    return {"blk.0.attn_norm.weight": Model(path, vocab_only=True).n_embd}


def ones(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.ones(shape, np.float32) for shape in shapes)


@pytest.mark.parametrize(
    ("name", "shapes", "said"),
    [
        ("blk.0.ssm_conv1d.weight", [(4, "in"), ("out", 4)], "no graph multiplies"),
        ("blk.0.attn_norm.weight", [(4, "in"), ("out", 4)], "no graph multiplies"),
        ("token_embd.weight", [("out", 4), ("in", 4)], "only one of the two"),
        ("blk.0.ffn_up.weight", [(2, 4, "in"), ("out", 4)], "not as many as the model's"),
        ("blk.0.ffn_up.weight", [(4, "in"), (2, "out", 4)], "not as many as the model's"),
    ],
)
def test_adapter_tensor_that_no_graph_can_use_is_refused_by_name(
    demo: Path, tmp_path: Path, name: str, shapes: list[tuple[int | str, ...]], said: str
) -> None:
    (weight,) = (t for t in GGUFReader(demo).tensors if t.name == name)
    n_in, n_out = (*map(int, weight.shape), 1)[:2]  # a vector has one row
    sizes = {"in": n_in, "out": n_out}
    a, b = (tuple(sizes[n] if isinstance(n, str) else n for n in shape) for shape in shapes)
    path = write_adapter(tmp_path / "odd.gguf", {name: ones(a, b)}, alpha=4.0)
    with pytest.raises(ModelLoadError, match=f"odd.gguf cannot be used for {name}: .*{said}"):
        Model(demo, lora=path)


def test_adapter_for_a_single_expert_is_refused(moe: Model, tmp_path: Path) -> None:
    (weight,) = (t for t in GGUFReader(moe.path).tensors if t.name == "blk.0.ffn_up_exps.weight")
    n_in, n_out, _ = map(int, weight.shape)
    path = write_adapter(
        tmp_path / "odd.gguf", {weight.name: ones((4, n_in), (n_out, 4))}, alpha=4.0, architecture="qwen35moe"
    )
    with pytest.raises(ModelLoadError, match=r"odd.gguf cannot be used for blk\.0\.ffn_up_exps"):
        Model(moe.path, lora=path)


def test_adapter_with_embeddings_of_unequal_ranks_is_refused(moe: Model, tmp_path: Path) -> None:
    (weight,) = (t for t in GGUFReader(moe.path).tensors if t.name == "token_embd.weight")
    width, n_vocab = map(int, weight.shape)
    adapter = {weight.name: ones((n_vocab, 3), (width, 4))}
    path = write_adapter(tmp_path / "odd.gguf", adapter, alpha=4.0, architecture="qwen35moe")
    with pytest.raises(ModelLoadError, match="of rank 3 and 4"):
        Model(moe.path, lora=path)


def test_adapter_with_tensors_of_norms_gives_a_warning(
    demo: Path, demo_f32: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    delta = make_delta(demo_f32, NAMES, seed=1)
    with_norms = write_adapter(tmp_path / "norms.gguf", delta, alpha=4.0, norms=norm_of(demo))
    without = write_adapter(tmp_path / "none.gguf", delta, alpha=4.0)
    for path, n_warnings in ((with_norms, 1), (without, 0)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pymtp.native"):
            Model(demo, lora=path).close()
        assert sum("has 1 tensors of norms" in message for message in caplog.messages) == n_warnings


def test_adapter_without_effect_is_refused(demo: Path, tmp_path: Path) -> None:
    for norms in ({}, norm_of(demo)):
        path = write_adapter(tmp_path / "none.gguf", {}, alpha=4.0, norms=norms)
        with pytest.raises(ModelLoadError, match="has no matrices"):
            Model(demo, lora=path)


def test_adapter_given_as_the_model_is_refused(demo_f32: Path, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", make_delta(demo_f32, NAMES, seed=1), alpha=4.0)
    with pytest.raises(ModelLoadError, match="it is a LoRA adapter, which goes with a model"):
        Model(path)


def test_adapter_of_repacked_weights_gives_no_warning(
    demo: Path, demo_f32: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_adapter(tmp_path / "a.gguf", make_delta(demo_f32, NAMES, seed=1), alpha=4.0)
    with caplog.at_level(logging.WARNING, "pymtp.native"):
        Model(demo, lora=path).close()
    assert caplog.messages == []


def test_saved_prefix_loads_only_with_the_same_rope_scaling(tmp_path: Path) -> None:
    scaled = {"rope_scaling": "yarn", "rope_freq_scale": 0.5}
    with make_llm(**scaled) as llm:
        llm.save_prefix("import os\n" * 20, tmp_path / "p")
    with make_llm() as llm, pytest.raises(InvalidRequestError, match="another rope scaling"):
        llm.load_prefix(tmp_path / "p")
