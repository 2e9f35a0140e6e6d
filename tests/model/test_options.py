"""Tests of ModelOptions: placement of weights, mapping and locking, NUMA. They need no GPU."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_llm
from helpers.scripts import run_script as lines_of
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from pymtp import LLM, AsyncLLM, InvalidRequestError, Model
from pymtp.cli import app_main
from pymtp.cli.app import app
from pymtp.cli.placing import PlacementOptions
from pymtp.context.memory import plan_memory
from pymtp.model.options import ModelOptions, experts_pattern
from pymtp.native import ffi, lib
from pymtp.options import LLMOptions
from pymtp.sampling import SamplingParams

PARAMS = SamplingParams(max_tokens=24)


def text(**keywords: Any) -> str:
    with make_llm(**keywords) as llm:
        return llm.generate("import ", PARAMS).text


@pytest.fixture(scope="module")
def plain() -> str:
    return text()


@pytest.mark.parametrize(
    "options",
    [
        {"n_cpu_moe": 3},
        {"override_tensor": {r"blk\.[01]\.ffn_": "CPU"}},
        {"override_tensor": r"ffn_up=CPU,blk\.1\..*=CPU", "n_cpu_moe": 1},
        {"tensor_split": [3, 1]},
        {"split_mode": "none", "main_gpu": 0},
        {"split_mode": "row"},
        {"use_mmap": False},
        {"offload_kqv": False},
        {"n_gpu_layers": "auto"},
    ],
    ids=str,
)
def test_placement_options_do_not_change_the_text_without_a_gpu(plain: str, options: dict[str, Any]) -> None:
    assert text(**options) == plain


def overridden(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Return the tensors that llama.cpp logs as overridden to host memory, in the file's layout or in that of AMX."""
    said = (re.match(r"tensor (\S+) .*buffer type overridden to (CPU|AMX)", message) for message in caplog.messages)
    return {found[1] for found in said if found}


@pytest.fixture
def debug_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture llama.cpp's debug log, which has a line for each tensor. The import of pymtp has set a higher level."""
    lib.pymtp_set_log(lib.pymtp_on_log, 1)
    with caplog.at_level(logging.DEBUG, "pymtp.native"):
        yield caplog
    lib.pymtp_set_log(lib.pymtp_on_log, 2)


EXPERTS = {f"ffn_{part}_exps.weight" for part in ("up", "down", "gate")}


@pytest.mark.parametrize("n", [0, 1, 2])
def test_n_cpu_moe_keeps_experts_in_host_memory(moe: Model, debug_log: pytest.LogCaptureFixture, n: int) -> None:
    Model(moe.path, n_cpu_moe=n).close()
    assert overridden(debug_log) == {f"blk.{i}.{name}" for i in range(n) for name in EXPERTS}


def test_override_tensor_places_only_the_named_tensors(demo: Path, debug_log: pytest.LogCaptureFixture) -> None:
    Model(demo, override_tensor=r"blk\.[01]\.ffn_up=CPU,output_norm=CPU").close()
    assert overridden(debug_log) == {"blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output_norm.weight"}


def test_override_without_a_matching_tensor_gives_a_warning(
    demo: Path, moe: Model, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(path: Path, **options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pymtp.native"):
            Model(path, use_mmap=False, **options).close()
        return caplog.messages

    nothing = "override_tensor: no tensor that is loaded has a name that matches ffn_upp"
    assert warned(demo, override_tensor="ffn_upp=CPU,ffn_up=CPU", n_cpu_moe=2) == [
        nothing,
        "n_cpu_moe: the model has no experts",
    ]
    assert warned(moe.path, override_tensor="ffn_upp=CPU", n_cpu_moe=2) == [nothing]
    assert warned(moe.path, n_cpu_moe=1) == warned(demo) == []


def test_hints_of_llama_cpp_name_pymtps_options() -> None:
    # This runs in a process of its own, because llama.cpp logs the hint only once in a process
    (line,) = lines_of("""
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
pymtp.Model(override_tensor="output_norm=CPU")
""")
    assert "use_mmap=False, --no-mmap" in line
    assert "load-mode" not in line


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_experts_pattern_matches_the_layers_below_n(n: int, layer: int) -> None:
    named = re.search(experts_pattern(n), f"blk.{layer}.ffn_gate_up_exps.weight")
    assert bool(named) == (layer < n)


def test_options_are_passed_to_llama_cpp() -> None:
    options, _kept = ModelOptions(
        tensor_split=[3, 1], split_mode="row", use_mmap=False, use_mlock=True, lora={"a.gguf": 0.5, "b.gguf": 2}
    ).model_params(mtp=True, vocab_only=False, layers=7)
    assert [options.tensor_split[i] for i in range(options.n_tensor_split)] == [3, 1]
    assert (options.split_mode, options.n_gpu_layers) == (lib.LLAMA_SPLIT_MODE_ROW, 7)
    assert (options.use_mmap, options.use_mlock) == (False, True)
    assert [options.lora_scales[i] for i in range(options.n_lora)] == [0.5, 2]
    assert [ffi.string(options.lora[i]) for i in range(2)] == [b"a.gguf", b"b.gguf"]


def test_options_with_the_same_meaning_compare_equal() -> None:
    one = ModelOptions(override_tensor={"ffn": "CPU"}, tensor_split=[1, 2], lora=["a.gguf"])
    other = ModelOptions(override_tensor=[["ffn", "CPU"]], tensor_split=(1.0, 2.0), lora={Path("a.gguf"): 1})  # type: ignore[arg-type]
    assert one == other
    assert hash(one) == hash(other)
    assert ModelOptions(override_tensor=None, tensor_split=None, lora=None) == ModelOptions()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_cpu_moe": -1}, "n_cpu_moe=-1 must be a whole number"),
        ({"override_tensor": "("}, r"override_tensor='\(' must be regular expressions, of up to"),
        ({"override_tensor": {"(": "CPU"}}, r"\( is no regular expression"),
        ({"override_tensor": "ffn=CUDA77"}, "no buffer type CUDA77 here, only .*CPU"),
        ({"tensor_split": [-1, 2]}, "shares of 1e-12 to 1e\\+12, or 0"),
        ({"tensor_split": [0, 0]}, "not all 0"),
        ({"tensor_split": {1, 2}}, "must be up to [0-9]+ shares"),
        ({"tensor_split": [1] * 99}, "must be up to [0-9]+ shares"),
        ({"tensor_split": "3,1"}, "must be up to [0-9]+ shares"),
        ({"main_gpu": -1}, "main_gpu=-1"),
        ({"split_mode": "rows"}, "use one of none, layer, row"),
        ({"use_mmap": 1}, "use_mmap=1 must be True or False"),
        ({"use_mlock": "yes"}, "use_mlock='yes' must be True or False"),
        ({"numa": "mirror"}, "use one of distribute, isolate, numactl"),
        ({"n_gpu_layers": "most"}, "n_gpu_layers='most' must be a whole number"),
        ({"lora": [("a.gguf", "much")]}, "must be files, each alone or with a scale"),
        ({"lora": 3}, "lora=3 must be files"),
        ({"lora": [("a.gguf", True)]}, "must be files, each alone or with a scale"),
        ({"lora": [("a.gguf", 1e300)]}, "must be files, each alone or with a scale"),
        ({"lora": ["a\0.gguf"]}, "must be files"),
        ({"lora": ["\ud800.gguf"]}, "must be files"),
        ({"lora": [""]}, "must be files"),
        ({"lora": [b"a.gguf"]}, "must be files"),
        ({"override_tensor": b"a=CPU"}, "must be regular expressions"),
        ({"override_tensor": [("a", "CPU", "b")]}, "must be regular expressions"),
        ({"override_tensor": ["a=CPU"]}, "must be regular expressions"),
        ({"override_tensor": {"a\0b": "CPU"}}, "must be regular expressions"),
        ({"override_tensor": {"\ud800": "CPU"}}, "must be regular expressions"),
        ({"override_tensor": {"(" * 20_000 + ")" * 20_000: "CPU"}}, "of up to 1000 characters"),
        ({"override_tensor": "blk.{1,2}=CPU"}, "give an expression that contains a comma in a dict"),
        ({"tensor_split": {0: 1}}, "must be up to [0-9]+ shares"),
        ({"tensor_split": [True]}, "must be up to [0-9]+ shares"),
        ({"tensor_split": [1e300]}, "must be up to [0-9]+ shares"),
        ({"tensor_split": [1e-300]}, "must be up to [0-9]+ shares"),
        ({"tensor_split": 3}, "must be up to [0-9]+ shares"),
        ({"tensor_split": np.array(3.0)}, "must be up to [0-9]+ shares"),
        ({"override_tensor": np.array(1)}, "must be regular expressions"),
        ({"numa": np.zeros(2)}, "use one of distribute"),
        ({"split_mode": np.zeros(2)}, "use one of none"),
        ({"rope_scaling": np.zeros(2)}, "use one of none"),
        ({"n_gpu_layers": np.zeros(2)}, "must be a whole number"),
    ],
    ids=lambda value: f"{value!r:.60}",
)
def test_invalid_value_is_refused_with_the_valid_values(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        LLM(**options)


def test_offload_kqv_must_be_a_bool() -> None:
    with pytest.raises(InvalidRequestError, match="offload_kqv=3 must be"):
        make_llm(offload_kqv=3)


def test_unknown_keyword_raises_type_error() -> None:
    with pytest.raises(TypeError, match="n_cpu_mo"):
        LLM(n_cpu_mo=3)
    with pytest.raises(TypeError, match="n_cpu_mo"):
        Model(n_cpu_mo=3)


@pytest.mark.parametrize("options", [{"n_gpu_layers": 3}, {"use_mmap": False}, {"n_gpu_layers": "auto"}])
def test_llm_with_a_loaded_model_refuses_model_options(dense: Model, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"loaded already: give {next(iter(options))} to Model"):
        LLM(dense, **options)


@pytest.mark.parametrize("name", ["use_mmap", "n_cpu_moe", "split_mode", "main_gpu"])
def test_none_is_refused_for_options_that_are_not_lists(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}=None"):
        LLM(**{name: None})


def test_none_means_the_default_for_list_options(dense: Model) -> None:
    with make_llm(dense, lora=None, override_tensor=None, tensor_split=None, numa=None, n_gpu_layers=None) as llm:
        assert llm.model is dense


def test_async_llm_takes_model_options() -> None:
    with pytest.raises(InvalidRequestError, match="n_cpu_moe"):
        AsyncLLM(n_cpu_moe=-1)


def test_model_refuses_auto_layers_without_a_context() -> None:
    with pytest.raises(InvalidRequestError, match=r"auto.* works with an LLM only"):
        Model(n_gpu_layers="auto")  # type: ignore[arg-type]


def test_memory_plan_takes_model_options(moe: Model, debug_log: pytest.LogCaptureFixture) -> None:
    with Model(moe.path, vocab_only=True) as model:
        plan_memory(model, placing=ModelOptions(n_cpu_moe=1), n_ctx=256)
    assert overridden(debug_log) == {f"blk.0.{name}" for name in EXPERTS}


LOCK_IN = """
import ctypes, logging, resource
# with CAP_IPC_LOCK, which is bit 14, root may lock any memory
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
assert libc.capget(header, sets) == 0
sets[0] &= ~(1 << 14)
assert libc.capset(header, sets) == 0
logging.basicConfig(level=logging.WARNING, format="%(message)s")
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
from pymtp import LLM, SamplingParams
with LLM(use_mlock=True, n_ctx=256, n_threads=1) as llm:
    print(llm.generate("import ", SamplingParams(max_tokens=4)).stats.completion_tokens)
"""
NUMA_IN = """
from pymtp import InvalidRequestError, LLM, SamplingParams
with LLM(numa="distribute", n_ctx=256, n_threads=1) as llm:
    llm.generate("import ", SamplingParams(max_tokens=4))
LLM(numa="distribute", n_ctx=256).close()
try:
    LLM(numa="isolate")
except InvalidRequestError as error:
    print(error)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory with setrlimit and capset, as on Linux")
def test_mlock_without_permission_gives_a_warning() -> None:
    ran = run(LOCK_IN)
    assert ran.stdout == "4\n"
    assert "failed to mlock" in ran.stderr


def test_second_numa_strategy_in_a_process_is_refused() -> None:
    assert 'numa="isolate" cannot be set: numa="distribute" was set first' in run(NUMA_IN).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--override-tensor", "ffn=CUDA77"], "no buffer type CUDA77"),
        (["--tensor-split", "3,x"], "'x' is not a number"),
        (["--gpu-layers", "most"], 'must be a whole number or "auto"'),
        (["--split-mode", "rows"], "--split-mode 'rows'"),
        (["--numa", "mirror"], "--numa 'mirror'"),
        (["--rope-scaling", "log"], "--rope-scaling 'log'"),
        (["--lora-scaled", "a.gguf:much"], "'much' is not a number"),
        (["--lora-scaled", "a.gguf:nan"], "'nan' is not a number"),
        (["--lora-scaled", ":0.5"], "must be FILE:SCALE"),
        (["--lora-scaled", "a.gguf:1e13"], "--lora-scaled 'a.gguf:1e13': a scale is at most 1e+12"),
        (["--lora", ""], "--lora '' must name a file"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["generate", "import "], ["serve", "--port", "0"]], ids=lambda c: c[0])
def test_command_line_errors_name_the_command_line_option(
    command: list[str], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app_main([*command, *arguments])
    assert said in " ".join(capsys.readouterr().err.split())


def test_command_line_has_all_model_options(capsys: pytest.CaptureFixture[str], plain: str) -> None:
    given = (
        "--gpu-layers auto --n-cpu-moe 2 --tensor-split 3,1 --split-mode layer --main-gpu 0 --no-mmap --no-kv-offload"
    )
    base = ["import ", "--max-tokens", "24", "--temperature", "0", "--threads", "1"]
    with pytest.raises(SystemExit, match="0"):
        app_main(["generate", *base, *given.split(), "--override-tensor", "ffn_up=CPU"])
    assert plain.strip() in capsys.readouterr().out


@pytest.mark.parametrize("name", ["generate", "chat", "info", "serve"])
def test_command_line_takes_llama_cpps_short_options(name: str) -> None:
    forms = (
        "--gpu-layers 5 --n-cpu-moe 2 -ot a=CPU --tensor-split 3,1 --split-mode row --main-gpu 1 --no-kv-offload",
        "--n-gpu-layers 5 -ncmoe 2 --override-tensor a=CPU -ts 3,1 -sm row -mg 1 -nkvo",
        "-ngl 5 -ncmoe 2 -ot a=CPU -ts 3,1 -sm row -mg 1 -kvo -nkvo",
    )
    command = get_command(app).commands[name]
    read = [command.make_context(name, form.split()).params for form in forms]
    assert all(each == read[0] for each in read)
    assert read[0].items() >= {"n_cpu_moe": 2, "tensor_split": "3,1", "main_gpu": 1, "offload_kqv": False}.items()


def test_command_line_options_become_llm_options() -> None:
    placed = PlacementOptions(
        n_cpu_moe=2,
        override_tensor=["ffn_up=CPU", "output=CPU,attn=CPU"],
        tensor_split="3,1",
        main_gpu=0,
        split_mode="row",
        use_mmap=False,
        use_mlock=True,
        cache_type="q8_0",
        cache_bytes=3,
        draft_vocab="640",
        draft_tokens="2",
        n_gpu_layers="auto",
        numa="isolate",
        lora=["a.gguf"],
        lora_scaled=["c:/b.gguf:0.5"],
        rope_scaling="yarn",
        yarn_orig_ctx=7,
    )
    assert placed.options("m.gguf", n_seq_max=2) == LLMOptions(
        "m.gguf",
        n_seq_max=2,
        n_cpu_moe=2,
        override_tensor=[("ffn_up", "CPU"), ("output", "CPU"), ("attn", "CPU")],
        tensor_split=(3, 1),
        split_mode="row",
        use_mmap=False,
        use_mlock=True,
        numa="isolate",
        lora=[("a.gguf", 1), ("c:/b.gguf", 0.5)],
        rope_scaling="yarn",
        yarn_orig_ctx=7,
        type_k="q8_0",
        type_v="q8_0",
        cache_bytes=3 * 2**20,
        draft_vocab=640,
        draft_tokens=2,
        n_gpu_layers="auto",
    )


def test_auto_layers_without_a_gpu_give_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymtp.native import build_info as build

    monkeypatch.setattr(build, "_cuda_architectures", lambda: ["90"])
    monkeypatch.setattr(build, "_finds_gpu", lambda: False)
    build.warn_without_gpu.cache_clear()
    with caplog.at_level(logging.WARNING, "pymtp.native"):
        make_llm(n_gpu_layers="auto", n_ctx=256).close()
    build.warn_without_gpu.cache_clear()
    assert caplog.messages == []
