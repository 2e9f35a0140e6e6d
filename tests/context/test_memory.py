"""Tests of memory plans: they match the memory of a model and its contexts, and planning takes almost no memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.contexts import EACH
from helpers.full_context import measured_memory
from makers.make_model import make_model
from makers.model_shapes import PRESETS

from pymtp import LLM, InvalidRequestError, Model
from pymtp.cli import app_main
from pymtp.cli.memory_table import compare_plans
from pymtp.context.context import Context
from pymtp.context.host_memory import default_cache_bytes, host_bytes
from pymtp.context.memory import PARTS, DeviceMemory, plan_memory
from pymtp.drafting.depth import MAX_AUTO
from pymtp.options import LLMOptions
from pymtp.sampling import Sampler, SamplingParams

FILE_PADDING = 0.01  # share of a file that is metadata, or aligns tensors


def planned(path: Path, **options: Any) -> DeviceMemory:
    with Model(path, vocab_only=True) as model:
        (device,) = plan_memory(model, **options)
    return device


@EACH
@pytest.mark.parametrize("draft_tokens", [0, 3, 8])
@pytest.mark.parametrize(("n_ctx", "n_seq_max"), [(256, 1), (1024, 1), (256, 3)])
def test_memory_plan_matches_a_full_context(model: Model, n_ctx: int, n_seq_max: int, draft_tokens: int) -> None:
    plan = planned(model.path, n_ctx=n_ctx, draft_tokens=draft_tokens, n_seq_max=n_seq_max)
    real = measured_memory(model, n_ctx=n_ctx, draft_tokens=draft_tokens, n_seq_max=n_seq_max)
    assert plan == real
    assert min(real.kv, real.states, real.compute) > 0
    for of_head in (real.head_kv, real.head_compute, real.kept_rows):
        assert (of_head > 0) == (draft_tokens > 0)


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_memory_plan_matches_with_drafts_from_text(dense: Model, draft_tokens: int) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "draft_tokens": draft_tokens, "draft_text": 31}
    assert planned(dense.path, **options) == measured_memory(dense, **options)


@pytest.mark.parametrize("draft_tokens", [0, 7])
def test_memory_plan_has_room_for_drafts_from_text_of_several_sequences(dense: Model, draft_tokens: int) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 4, "draft_tokens": draft_tokens, "draft_text": 31}
    shapes = [(1, 1 + n) for n in (*range(8), 15, 31)]
    shapes += [(2, 16), (2, 15), (2, 14), (2, 13), (3, 10), (3, 9), (4, 8), (4, 7)]
    with Context(dense, n_threads=1, **options) as c:
        for seq in range(4):
            c.set_sampling(Sampler(SamplingParams()), seq)
            c.prefill([1], seq)
        for n_seqs, n in shapes:
            c.verify_chains({seq: [1] * n for seq in range(n_seqs)})
        (real,) = c.memory()
    assert 0.97 * planned(dense.path, **options).compute < real.compute <= planned(dense.path, **options).compute


@pytest.mark.parametrize("draft_vocab", [128, 1024])
def test_memory_plan_matches_with_a_partial_draft_vocab(dense: Model, draft_vocab: int) -> None:
    options: dict[str, Any] = {"n_ctx": 512, "draft_tokens": 3, "draft_vocab": draft_vocab}
    assert planned(dense.path, **options) == measured_memory(dense, **options)


@pytest.mark.parametrize("weight_type", ["q4_0", "iq4_nl"])
def test_memory_plan_matches_with_repacked_weights(tmp_path: Path, weight_type: str) -> None:
    (path,) = make_model("7m", tmp_path / "model.gguf", weight_type=weight_type)
    with Model(path) as model:
        assert planned(path, n_ctx=256, draft_tokens=3) == measured_memory(model, n_ctx=256, draft_tokens=3)


def test_new_context_takes_all_planned_memory_except_the_graphs_of_rounds(dense: Model) -> None:
    plan = planned(dense.path, n_ctx=512, draft_tokens=3)
    with Context(dense, n_ctx=512, draft_tokens=3, n_threads=1) as c:
        (new,) = c.memory()
        c.prefill([1] * 300)
        assert c.memory() == [new]
    graphs = ("weights", "compute", "head_compute")
    assert all(getattr(new, name) == getattr(plan, name) for name in PARTS if name not in graphs)
    assert new.compute < plan.compute
    assert new.head_compute < plan.head_compute


def test_memory_plan_without_mtp_equals_that_of_a_file_without_a_head(dense: Model, demo: Path, headless: Path) -> None:
    (beside,) = compare_plans(LLMOptions(demo, draft_tokens=3, n_ctx=512))
    (bare,) = compare_plans(LLMOptions(headless, draft_tokens=0, n_ctx=512))
    assert beside.without == bare.without == bare.with_mtp
    assert beside.with_mtp == planned(demo, n_ctx=512, draft_tokens=3)
    assert beside.without.head_kv == beside.without.head_compute == beside.without.kept_rows == 0


def test_recurrent_memory_is_at_most_1_4_states_per_sequence(tmp_path: Path) -> None:
    state = (128 * 128 * 16 + 3 * 6144) * 18 * 4  # bytes of the recurrent state of a sequence of the 0.8B model
    shape = replace(
        PRESETS["qwen3.5-0.8b"], n_vocab=1024
    )  # states do not depend on the vocabulary, which is slow to load
    (path,) = make_model(shape, tmp_path / "model.gguf", weight_type="q4_0", weights=False)
    for draft_tokens, n_seq_max in ((0, 1), (1, 8), (7, 1), (7, 8)):
        plan = planned(path, n_ctx=256 * n_seq_max, draft_tokens=draft_tokens, n_seq_max=n_seq_max)
        assert state < plan.states / n_seq_max < 1.4 * state


@EACH
def test_draft_context_memory_does_not_depend_on_the_ubatch(model: Model) -> None:
    small, large = (planned(model.path, n_ctx=4096, draft_tokens=3, n_ubatch=n) for n in (64, 2048))
    assert small.head_compute == large.head_compute
    assert small.compute < large.compute / 8


ROUNDS_IN = """
import resource
from pathlib import Path
from pymtp import Model
from pymtp.context import Context
from pymtp.sampling import Sampler, SamplingParams

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

with Model() as model, Context(model, n_ctx=256, draft_tokens=7, n_seq_max=2, n_threads=1) as c:
    for seq in (0, 1):
        c.set_sampling(Sampler(SamplingParams()), seq)
    c.prefill_batch({0: [1, 2, 3], 1: [1, 2, 3]})
    before, graphs = resident(), 0
    for seqs in ([0], [0, 1]):
        for n in range(8):
            if n:
                c.draft_chains(dict.fromkeys(seqs, 1), n)
            c.verify_chains(dict.fromkeys(seqs, [1] * (1 + n)))
            graphs += 1 + (n > 0)
    print((resident() - before) // graphs)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory use from Linux's /proc")
def test_cached_graph_takes_only_the_memory_of_its_nodes() -> None:
    command = [sys.executable, "-I", "-c", ROUNDS_IN]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 2e6


PLAN_IN = """
import json, resource, sys
from pathlib import Path
from pymtp import Model
from pymtp.context.memory import plan_memory
with Model(sys.argv[1], vocab_only=True) as model:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[2]),) * 2)
    (device,) = plan_memory(model, n_ctx=200_000, draft_tokens=32)
print(json.dumps(vars(device)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_memory_plan_of_the_largest_model_needs_no_weights_and_no_memory(tmp_path: Path) -> None:
    shape = replace(PRESETS["qwen3.6-27b"], n_vocab=8192)  # the names of 248,320 tokens would take seconds
    (path,) = make_model(shape, tmp_path / "27b.gguf", weight_type="q4_0", weights=False)
    assert path.stat().st_size > 13e9
    assert path.stat().st_blocks * 512 < 50e6
    room = 3_000_000_000  # bytes of address space, mostly for graphs, which are reserved for the maximum of nodes
    command = [sys.executable, "-I", "-c", PLAN_IN, str(path), str(room)]
    plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert plan["weights"] == pytest.approx(path.stat().st_size, rel=FILE_PADDING)
    assert plan["kv"] > 12e9
    assert 2.5e8 < plan["states"] < 3e8


@pytest.mark.parametrize("options", [{"draft_tokens": 65}, {"type_k": "q1"}, {"n_ctx": -1}])
def test_memory_plan_refuses_invalid_options(demo: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        planned(demo, **{"n_ctx": 512, **options})


def test_info_shows_the_memory_with_and_without_mtp(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--memory", "--ctx", "512", "--draft-tokens", "3", str(demo)]
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", *options, "--json"])
    told = json.loads(capsys.readouterr().out)
    (device,) = told["devices"]
    plan = planned(demo, n_ctx=512, draft_tokens=3)
    assert device["with_mtp"]["total"] == plan.total == sum(getattr(plan, name) for name in PARTS)
    assert device["mtp"]["head_kv"] == plan.head_kv > 0
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", *options])
    shown = capsys.readouterr().out
    assert "with drafts" in shown
    assert f"{plan.total / 2**20:,.1f}" in shown


@pytest.mark.parametrize(("given", "n_text"), [((), 31), (("-np", "5"), 15), (("--draft-text", "63"), 63)])
def test_info_counts_the_memory_of_drafts_from_text(
    demo: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], n_text: int
) -> None:
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", "--memory", "--ctx", "512", *given, str(demo), "--json"])
    told = json.loads(capsys.readouterr().out)
    options = {"n_ctx": 512, "n_seq_max": told["options"]["n_seq_max"], "draft_tokens": "auto"}
    assert (told["options"]["draft_tokens"], told["options"]["draft_text"]) == (7, n_text)
    (device,) = told["devices"]
    assert device["with_mtp"]["total"] == planned(demo, **options, draft_text=n_text).total
    assert device["with_mtp"]["total"] > planned(demo, **options).total


def test_info_plans_auto_draft_tokens_for_the_maximum_and_none_without_a_head(
    demo: Path, headless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, drafts in ((demo, MAX_AUTO), (headless, 0)):
        with pytest.raises(SystemExit, match="0"):
            app_main(["info", "--memory", "--ctx", "512", "--json", str(path)])
        assert json.loads(capsys.readouterr().out)["options"]["draft_tokens"] == drafts


def test_info_reports_a_missing_or_invalid_adapter(
    demo: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for adapter, why in (("gone.gguf", "no such adapter: gone.gguf"), (tmp_path, "is not a regular file")):
        with pytest.raises(SystemExit, match="3"):
            app_main(["info", "--memory", "--lora", str(adapter), str(demo)])
        assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("asked", "n_ctx"), [(0, 8192), (1, 256), (257, 512)])
def test_info_plans_the_rounded_context_size(
    demo: Path, capsys: pytest.CaptureFixture[str], asked: int, n_ctx: int
) -> None:
    found = []
    for ctx in (asked, n_ctx):
        for more in (["--json"], []):
            with pytest.raises(SystemExit, match="0"):
                app_main(["info", "--memory", "--ctx", str(ctx), *more, str(demo)])
            found.append(capsys.readouterr().out)
    assert found[:2] == found[2:]
    assert json.loads(found[0])["options"]["n_ctx"] == n_ctx
    with Model(demo) as model, Context(model, n_ctx=asked) as context:
        assert context.n_ctx == n_ctx


def test_info_reports_that_a_saved_prefix_is_not_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved.prefix"
    with LLM(n_ctx=256, n_threads=1, draft_tokens=0) as llm:
        llm.save_prefix("import ", saved)
    with pytest.raises(SystemExit, match="2"):
        app_main(["info", "--memory", str(saved)])
    assert "is a prefix, not a model" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("more", [[], ["--memory"]], ids=str)
def test_info_does_not_wait_for_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit, match="3"):
        app_main(["info", *more, str(tmp_path / "pipe")])
    assert "not a file" in capsys.readouterr().err


def test_info_plans_the_memory_of_several_sequences(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states = []
    for n in (1, 3):
        with pytest.raises(SystemExit, match="0"):
            app_main(["info", "--memory", "--ctx", "512", "--n-seq-max", str(n), "--json", str(demo)])
        (device,) = json.loads(capsys.readouterr().out)["devices"]
        states.append(device["with_mtp"]["states"])
    assert (
        2.9 * states[0] < states[1] < 3 * states[0]
    )  # a bit less than three times: the sequences share one row of zeros


@pytest.mark.parametrize(("draft_tokens", "n_seq_max"), [(0, 1), (3, 1), (3, 4)])
def test_memory_plan_counts_cached_prefixes(
    draft_tokens: int, n_seq_max: int, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--ctx", "512", "--draft-tokens", str(draft_tokens), "--n-seq-max", str(n_seq_max), str(demo)]
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", "--memory", "--json", *options])
    planned = json.loads(capsys.readouterr().out)["prefixes"]
    with Model(demo) as model, Context(model, n_ctx=512, draft_tokens=draft_tokens, n_seq_max=n_seq_max) as context:
        assert planned["token_bytes"] == context.state.cell_bytes
        # the plan counts llama.cpp's own convolution inputs, too, which are unused
        assert 0.85 < context.state.max_bytes / planned["checkpoint_bytes"] < 1.1
    assert planned["cache_bytes"] == default_cache_bytes()
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", "--memory", *options])
    n = planned["cache_bytes"] // (512 * planned["token_bytes"] + 2 * planned["checkpoint_bytes"])
    assert f"so {n:,} prompts of 512 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("mib", [0, 512])
def test_memory_plan_limits_cached_prefixes_to_cache_bytes(
    mib: int, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--ctx", "512", "--cache", str(mib), str(demo)]
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", "--memory", "--json", *options])
    planned = json.loads(capsys.readouterr().out)["prefixes"]
    assert planned["cache_bytes"] == mib * 2**20
    with pytest.raises(SystemExit, match="0"):
        app_main(["info", "--memory", *options])
    shown = capsys.readouterr().out
    n = mib * 2**20 // (512 * planned["token_bytes"] + 2 * planned["checkpoint_bytes"])
    assert f"take up to {mib} MiB" in shown
    assert f"so {n:,} prompts of 512 tokens" in shown


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_freed_prefix_memory_returns_to_the_system() -> None:
    host_bytes(2**24)  # after this call, malloc takes smaller blocks from its heap
    arrays = [host_bytes(256, 2**12) for _ in range(64)]
    for array in arrays:
        array[:] = 1
    before = resident()
    del arrays[::2], array
    assert before - resident() > 24 * 2**20
