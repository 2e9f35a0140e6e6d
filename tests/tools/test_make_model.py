"""Tests of make_model: models of random weights load and generate, with drafts."""

from __future__ import annotations

import os
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from gguf import GGML_QUANT_SIZES, GGUFReader
from makers.gguf_types import dequantize
from makers.make_model import CHAT_TEMPLATE, make_model
from makers.model_shapes import PRESETS, Shape, Tensor
from makers.random_weights import CHUNK, TYPES, chunk, type_of

from pymtp import LLM, InvalidRequestError, Model, SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import demo_model

PROMPT = random.Random(0).choices(range(256), k=300)


def greedy(path: Path, draft_tokens: int) -> list[int]:
    with LLM(path, n_ctx=512, n_threads=1, draft_tokens=draft_tokens) as llm:
        completion = llm.generate(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True))
        assert completion.stats.drafted >= 40 * (draft_tokens > 0)
        return completion.token_ids


SMALL = ["tiny", "tiny-moe", "tiny-next", "7m"]
# types whose blocks fit into 96 columns
TINY_TYPES = [name for name, kind in TYPES.items() if GGML_QUANT_SIZES[kind][0] <= 32]


@pytest.mark.parametrize("preset", SMALL)
def test_drafts_do_not_change_the_greedy_tokens_of_a_small_model(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model(preset, path)
    assert greedy(path, 3) == greedy(path, 0)


@pytest.mark.parametrize(
    ("preset", "weight_type"),
    [*(("tiny", weight_type) for weight_type in TINY_TYPES), ("tiny-moe", "q4_0"), ("7m", "q4_0")],
)
def test_logits_of_a_long_prompt_are_finite_and_vary(
    preset: str, weight_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    make_model(preset, path, weight_type=weight_type)
    with Model(path) as model, Context(model, n_ctx=512, n_threads=1, n_ubatch=64, draft_tokens=1) as context:
        for prompt in (PROMPT, [7] * 300):
            context.clear()
            for logits in (context.prefill(prompt), context.draft(1)):
                assert np.isfinite(logits).all()
                assert 0.5 < logits.std() < 2
    assert "unknown type" not in caplog.text


def test_seed_makes_the_same_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.gguf" for i in range(3)]
    for path, seed, threads in zip(paths, (5, 5, 6), (1, 3, 1), strict=True):
        make_model("tiny", path, seed=seed, threads=threads)
    first, again, other = (path.read_bytes() for path in paths)
    assert first == again
    assert first != other


def test_split_model_loads_from_its_first_part(tmp_path: Path) -> None:
    make_model("tiny", tmp_path / "whole.gguf")
    parts = make_model("tiny", tmp_path / "split.gguf", split_max_tensors=25)
    n = len(parts)
    assert [part.name for part in parts] == [f"split-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]
    assert n > 2
    assert greedy(parts[0], 3) == greedy(tmp_path / "whole.gguf", 3)


def test_model_without_head_refuses_drafts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model("tiny", path, head=False)
    with pytest.raises(InvalidRequestError, match="has none: use draft_tokens=0"):
        LLM(path, n_threads=1, draft_tokens=3)
    assert len(greedy(path, 0)) == 40


def test_tokenizer_round_trips_any_text(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make_model("tiny", path)
    text = "".join(map(chr, range(1, 256))) + "  世界 🜂"
    with Model(path) as model:
        assert model.detokenize(model.tokenize(text)) == text
        assert model.tokenize("<|im_start|><|im_end|>") == [model.n_vocab - 2, model.n_vocab - 1]
        assert model.chat_template == CHAT_TEMPLATE
        assert model.eos_token == "<|im_end|>"
        assert model.ends_generation(model.n_vocab - 1)


@pytest.mark.parametrize("weight_type", TYPES)
def test_weights_have_zero_mean_and_the_deviation_that_keeps_the_variance(weight_type: str) -> None:
    tensor = Tensor("x.weight", (1024, 1024))
    values = dequantize(chunk(tensor, TYPES[weight_type], 0, (0,)), TYPES[weight_type])
    assert values.std() == pytest.approx(1 / 32, rel=0.01)
    assert abs(values.mean()) < 0.01 / 32


def test_chunks_of_random_weights_all_differ() -> None:
    tensor = Tensor("x.weight", (1024, 3 * CHUNK // 1024))
    keys = [(seed, number, piece) for seed in range(2) for number in range(2) for piece in range(2)]
    assert len({chunk(tensor, TYPES["q8_0"], CHUNK, key)[:1024].tobytes() for key in keys}) == len(keys)


# number of parameters without the head, as llama-bench prints it for the published models
@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        ("qwen3.5-0.8b", 752.39),
        ("qwen3.6-27b", 26_900),
        ("qwen3.6-35b-a3b", 34_660),
        ("qwen3-next-80b-a3b", 79_670),
    ],
)
def test_preset_has_the_parameters_of_the_published_model(preset: str, millions: float) -> None:
    assert replace(PRESETS[preset], head=False).n_params / 1e6 == pytest.approx(millions, rel=5e-4)


def test_bench_preset_has_seven_million_parameters_and_unequal_head_counts() -> None:
    shape = PRESETS["7m"]
    assert shape.n_params / 1e6 == pytest.approx(7, rel=0.01)
    assert len({shape.n_head, shape.n_head_kv, shape.linear_v_heads}) == 3
    assert shape.linear_v_heads % shape.linear_k_heads == 0 != shape.linear_v_heads - shape.linear_k_heads
    assert shape.n_ctx > 192 * 1024  # the longest prompt of the prefill bench, and the generated text


def test_shape_has_the_tensors_and_keys_of_a_converted_checkpoint() -> None:
    reader = GGUFReader(demo_model())
    keys = {name.removeprefix("qwen35."): field.contents() for name, field in reader.fields.items()}
    shape = Shape(
        n_layer=keys["block_count"] - 1,
        n_embd=keys["embedding_length"],
        n_vocab=len(keys["tokenizer.ggml.tokens"]),
        n_head=keys["attention.head_count"],
        n_head_kv=keys["attention.head_count_kv"],
        head_dim=keys["attention.key_length"],
        n_rot=keys["rope.dimension_count"],
        rope_sections=tuple(keys["rope.dimension_sections"][:3]),
        linear_k_heads=keys["ssm.group_count"],
        linear_v_heads=keys["ssm.time_step_rank"],
        linear_head_dim=keys["ssm.state_size"],
        n_ff=keys["feed_forward_length"],
        tied=True,
        n_ctx=keys["context_length"],
        rope_base=keys["rope.freq_base"],
    )
    converted = {tensor.name: (tuple(map(int, tensor.shape)), tensor.tensor_type) for tensor in reader.tensors}
    assert converted == {t.name: (t.ne, type_of(t, TYPES["q8_0"])) for t in shape.tensors()}
    ours = {key: np.float32(x) if isinstance(x, float) else x for key, x in shape.metadata().items()}
    assert {key: keys[key] for key in ours} == ours
    architecture_keys = {name for name in reader.fields if name.startswith("qwen35.")} - {"qwen35.nextn_tap"}
    assert {f"qwen35.{key}" for key in ours} == architecture_keys


def test_unknown_preset_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools/models/make_model.py", "huge", tmp_path / "x.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 2
    assert f"no preset is called 'huge', there are {', '.join(PRESETS)}" in done.stderr
    with pytest.raises(ValueError, match=r"weights cannot be 'iq2_k', but f32, f16, bf16, q8_0, q4_0, iq4_nl"):
        make_model("tiny", tmp_path / "x.gguf", weight_type="iq2_k")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def run_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs the tool, and returns its exit code."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the tool adds a folder
    monkeypatch.setenv("COLUMNS", "200")

    def run_tool(*arguments: str | Path) -> int:
        tool = str(ROOT / "tools/models/make_model.py")
        monkeypatch.setattr(sys, "argv", [tool, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(tool, run_name="__main__")
        return int(end.value.code or 0)

    return run_tool


def test_preset_takes_other_layers_tokens_and_experts(tmp_path: Path, run_tool: Callable[..., int]) -> None:
    path = tmp_path / "x.gguf"
    assert run_tool("tiny-moe", path, "--no-weights", "--layers", "8", "--vocab", "600", "--experts", "16") == 0
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in GGUFReader(path).tensors}
    assert shapes["token_embd.weight"][1] == 600
    assert shapes["blk.7.ffn_up_exps.weight"][2] == 16
    for wrong in (("--experts", "16"), ("--layers", "6")):
        assert run_tool("tiny", path, *wrong) == 2


def test_tool_takes_names_in_capitals_makes_folders_and_tells_of_absent_types(
    tmp_path: Path, run_tool: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "folder" / "x.gguf"
    assert run_tool("Tiny", path, "--type", "Q4_0") == 0
    assert "note:" not in capsys.readouterr().err
    assert path.exists()
    for weight_type, absent in (("MXFP4-MOE", "mxfp4"), ("q3_k_m", "q3_k")):
        assert run_tool("tiny", path, "--type", weight_type, "--no-weights") == 0
        assert f"note: no tensor has the type {absent}:" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for wrong in (tmp_path, tmp_path / "file" / "x.gguf"):
        assert run_tool("tiny", wrong) == 2
        assert "cannot be written" in " ".join(capsys.readouterr().err.split())


def test_failed_make_model_leaves_no_file(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model("tiny", tmp_path / "x.gguf", split_max_tensors=25, on_progress=stop)
    assert list(tmp_path.iterdir()) == []
