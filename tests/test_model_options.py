"""Claims about how a model is loaded: where weights go, mapping and locking, NUMA. Without a GPU."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm

from pymtp import LLM, AsyncLLM, InvalidRequestError, Model
from pymtp.cli import app_main
from pymtp.memory import plan_memory
from pymtp.model_options import ModelOptions
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
def test_placing_does_not_change_the_text_of_a_machine_without_gpu(plain: str, options: dict[str, Any]) -> None:
    assert text(**options) == plain


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_cpu_moe": -1}, "n_cpu_moe=-1 must be a whole number"),
        ({"override_tensor": "("}, r"override_tensor='\(' must be regular expressions with types of buffers"),
        ({"override_tensor": {"(": "CPU"}}, r"\( is no regular expression"),
        ({"override_tensor": "ffn=CUDA77"}, "no buffer type CUDA77 here, only .*CPU"),
        ({"tensor_split": [-1, 2]}, "tensor_split=.* not negative"),
        ({"tensor_split": [0, 0]}, "not all 0"),
        ({"tensor_split": [1] * 99}, "must be up to [0-9]+ shares"),
        ({"tensor_split": "3,1"}, "must be up to [0-9]+ shares"),
        ({"main_gpu": -1}, "main_gpu=-1"),
        ({"split_mode": "rows"}, "use one of none, layer, row"),
        ({"use_mmap": 1}, "use_mmap=1 must be True or False"),
        ({"use_mlock": "yes"}, "use_mlock='yes' must be True or False"),
        ({"numa": "mirror"}, "use one of distribute, isolate, numactl"),
        ({"n_gpu_layers": "most"}, "n_gpu_layers='most' must be a whole number"),
        ({"lora": [("a.gguf", "much")]}, "must be files, each alone or with a scale"),
    ],
    ids=str,
)
def test_odd_values_are_refused_with_what_would_be_right(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        LLM(**options)


def test_offload_kqv_is_true_or_false() -> None:
    with pytest.raises(InvalidRequestError, match="offload_kqv=3 must be"):
        make_llm(offload_kqv=3)


def test_a_keyword_of_no_options_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="n_cpu_mo"):
        LLM(n_cpu_mo=3)
    with pytest.raises(TypeError, match="n_cpu_mo"):
        Model(n_cpu_mo=3)


@pytest.mark.parametrize("options", [{"n_gpu_layers": 3}, {"use_mmap": False}, {"n_gpu_layers": "auto"}])
def test_a_loaded_model_takes_no_options_of_loading(dense: Model, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"loaded already: {next(iter(options))} must be given to it"):
        LLM(dense, **options)


def test_an_async_llm_takes_them_too() -> None:
    with pytest.raises(InvalidRequestError, match="n_cpu_moe"):
        AsyncLLM(n_cpu_moe=-1)


def test_a_model_alone_cannot_know_what_fits() -> None:
    with pytest.raises(InvalidRequestError, match=r"auto.* goes with an LLM"):
        Model(n_gpu_layers="auto")  # type: ignore[arg-type]


def test_a_plan_takes_the_same_options(demo: Path) -> None:
    with Model(demo, vocab_only=True) as model:
        placed = ModelOptions(override_tensor={"ffn": "CPU"})
        assert plan_memory(model, placing=placed, n_ctx=256) == plan_memory(model, n_ctx=256)


LOCK_IN = """
import logging, resource, sys
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


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does it")
def test_memory_that_cannot_be_locked_is_a_warning() -> None:
    ran = run(LOCK_IN)
    assert ran.stdout == "4\n"
    from os import geteuid

    assert geteuid() == 0 or "mlock" in ran.stderr.lower()  # root may lock what it likes


def test_numa_is_for_the_whole_process() -> None:
    assert 'numa="isolate" comes too late: this process has numa="distribute"' in run(NUMA_IN).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--override-tensor", "ffn=CUDA77"], "no buffer type CUDA77"),
        (["--tensor-split", "3,x"], "'x' is no number"),
        (["--gpu-layers", "most"], 'must be a whole number or "auto"'),
        (["--split-mode", "rows"], "--split-mode 'rows'"),
        (["--numa", "mirror"], "--numa 'mirror'"),
        (["--rope-scaling", "log"], "--rope-scaling 'log'"),
        (["--lora-scaled", "a.gguf:much"], "'much' is no number"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["generate", "import "], ["serve", "--port", "0"]], ids=lambda c: c[0])
def test_the_command_line_refuses_them_by_its_own_names(
    command: list[str], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        app_main([*command, *arguments])
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_command_line_takes_all_of_them(capsys: pytest.CaptureFixture[str], plain: str) -> None:
    given = (
        "--gpu-layers auto --n-cpu-moe 2 --tensor-split 3,1 --split-mode layer --main-gpu 0 --no-mmap --no-kv-offload"
    )
    base = ["import ", "--max-tokens", "24", "--temperature", "0", "--threads", "1"]
    with pytest.raises(SystemExit, match="0"):
        app_main(["generate", *base, *given.split(), "--override-tensor", "ffn_up=CPU"])
    assert plain.strip() in capsys.readouterr().out


def test_auto_layers_are_not_warned_about(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymtp import build

    monkeypatch.setattr(build, "_cuda_architectures", lambda: ["90"])
    monkeypatch.setattr(build, "_finds_gpu", lambda: False)
    build.warn_without_gpu.cache_clear()
    with caplog.at_level(logging.WARNING, "pymtp.native"):
        make_llm(n_gpu_layers="auto", n_ctx=256).close()
    build.warn_without_gpu.cache_clear()
    assert caplog.messages == []
