"""Tests of the installed package: its files, and the isolation of its native module."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.resources
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pymtp
from pymtp.native import _native, ffi, lib

ROOT = Path(__file__).parent.parent
GENERATE = """
import ctypes, sys
decoy = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
assert decoy.llama_decode and decoy.ggml_init
import pymtp
with pymtp.LLM(n_ctx=256, n_threads=1) as llm:
    print(llm.generate("def f(n):", pymtp.SamplingParams(max_tokens=4)).finish_reason)
"""


def version_of_checkout() -> str:
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    return str(version)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no global symbol scope")
def test_native_module_calls_no_functions_of_other_libraries_with_the_same_names(tmp_path: Path) -> None:
    # A fake library is loaded first into the global scope: its functions have the names of llama.cpp's functions and
    # abort. It represents another copy of llama.cpp in the process. CMakeLists.txt explains the isolation
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.fail("needs a C compiler, as the build did")
    headers = (ROOT / "vendor/llama.cpp").glob("**/include/*.h")
    declared = {name for file in headers for name in re.findall(r"\b((?:llama|ggml|gguf)_\w+)\s*\(", file.read_text())}
    functions = sorted(declared | {"llama_decode", "ggml_init"})
    abort_all = "".join(f"void {name}(void) {{ abort(); }}\n" for name in functions)
    source, decoy = tmp_path / "decoy.c", tmp_path / "decoy.so"
    source.write_text(f"void abort(void);\n{abort_all}")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", decoy, source], check=True)
    run = subprocess.run([sys.executable, "-c", GENERATE, decoy], capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stdout.strip()) == (0, "length"), run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows exports requested symbols only")
@pytest.mark.parametrize("name", ["llama_decode", "ggml_init", "gguf_init_from_file", "pymtp_last_error"])
def test_native_module_exports_no_symbols(name: str) -> None:
    module = ctypes.CDLL(_native.__file__)
    assert hasattr(module, "PyInit__native")
    assert not hasattr(module, name)


def test_build_has_the_patches_of_this_checkout() -> None:
    built = ffi.string(lib.pymtp_build_patches()).decode().split(";")
    assert built == sorted(patch.name for patch in (ROOT / "patches").glob("*.patch"))


def test_build_has_the_pinned_llama_cpp() -> None:
    commit = ffi.string(lib.pymtp_build_llama_commit()).decode()
    assert f"# llama.cpp commit: {commit}\n" in (ROOT / "vendor/requirements.txt").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows names classes in another way")
def test_native_module_has_the_architectures_that_pymtp_runs_and_no_others() -> None:
    names = re.findall(rb"\d+llama_model_([a-z0-9_]+)\0", Path(_native.__file__).read_bytes())  # as RTTI has them
    assert set(names) == {b"base", b"qwen35", b"qwen35moe", b"qwen3next"}


@pytest.mark.parametrize("name", ["py.typed", "model/demo.gguf", "server/static/katex/katex.min.js"])
def test_package_has_its_data_files(name: str) -> None:
    assert (importlib.resources.files("pymtp") / name).is_file()


def test_license_of_llama_cpp_is_installed() -> None:
    text = (importlib.resources.files("pymtp") / "native/LICENSE-llama.cpp.txt").read_text()
    assert "The ggml authors" in text


def test_no_sources_and_no_llama_cpp_installation_are_installed() -> None:
    installed = [str(file) for file in importlib.metadata.files("pymtp") or []]
    assert any(file.endswith("LICENSE-llama.cpp.txt") for file in installed)
    assert [file for file in installed if re.search(r"\.(c|h|hpp|cpp|cmake|pc|a|in)$|build_ffi", file)] == []


def test_import_from_the_source_folder_says_that_it_is_not_compiled(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pymtp", tmp_path / "pymtp", ignore=shutil.ignore_patterns("*.gguf"))
    # -S: without site-packages, where the installed package would be found
    run = subprocess.run([sys.executable, "-S", "-c", "import pymtp"], capture_output=True, text=True, cwd=tmp_path)
    assert "no compiled module: it is the source folder" in run.stderr


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("libcudart.so.13: cannot open shared object file", "pip install 'nvidia-cublas<14' 'nvidia-cuda-runtime<14'"),
        ("libgomp.so.1: cannot open shared object file", "libgomp.so.1: cannot open shared object file\n"),
    ],
)
def test_missing_cuda_library_error_names_the_package_to_install(tmp_path: Path, error: str, told: str) -> None:
    shutil.copytree(ROOT / "pymtp", tmp_path / "pymtp", ignore=shutil.ignore_patterns("*.gguf"))
    (tmp_path / "pymtp/native/_native.py").write_text(f"raise ImportError({error!r})\n")
    run = subprocess.run([sys.executable, "-S", "-c", "import pymtp"], capture_output=True, text=True, cwd=tmp_path)
    assert run.stderr.endswith(told) or told in run.stderr.splitlines()[-1]


def test_version_of_the_installation_is_that_of_this_checkout() -> None:
    assert importlib.metadata.version("pymtp") == pymtp.__version__ == version_of_checkout()


def test_changelog_and_citation_have_the_version_of_pyproject() -> None:
    newest, date = re.findall(r"^## \[([\d.]+)\] - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)[0]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {newest}\ndate-released: {date}\n" in citation
    assert newest == version_of_checkout()
