"""Tests of tools/gpu/gpu_bench.sh without a GPU: packs and builds are restored, and results become reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpu_build
import gpu_measure
import gpu_pack
import gpu_report
import pytest
from conftest import ROOT
from gpu_pack import Folders
from gpu_plan import DECODE, PREFILL, SMOKE, Job
from gpu_results import Results
from makers.make_model import make_model

from pymtp import Model
from pymtp.bench import decode_report, prefill_report

QUICK = (Job("tiny", PREFILL, 64, 3, ("none", "fused")), Job("tiny", PREFILL, 64, 3, ("none", "host-copy")))
DECODED = (
    Job("tiny", DECODE, modes=("none", "3:host-copy", "3"), rate=0.5),
    Job("tiny", DECODE, modes=("none", "1"), rate=0.5, turn=1),
)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Make a checkout with sources and the files of a build."""
    root = tmp_path / "checkout"
    for name in (
        "CMakeLists.txt",
        "patches/0001-a.patch",
        "vendor/requirements.txt",
        "pymtp/native/a.cpp",
        "pymtp/b.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    folders = Folders.of(root)
    for name in (
        "site/pymtp/native/_native.so",
        "site/pymtp/b.py",
        "site/pymtp-0.1.0.dist-info/METADATA",
        "bin/llama-bench",
    ):
        (folders.work / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.work / name).write_bytes(os.urandom(3000))
    (folders.work / "site" / "cffi").mkdir()
    for name in ("CMakeLists.txt", "patches", "vendor", "pymtp"):
        (folders.source / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.source / name).symlink_to(root / name)
    folders.pack.mkdir(parents=True)
    return folders


def test_saved_build_is_restored_from_its_parts(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pack, "PART", 4000)
    parts = gpu_pack.save_build(folders, folders.pack)
    assert len(parts) == 4
    assert all(part.stat().st_size <= 4000 for part in parts)
    fresh = replace(folders, work=folders.root / "elsewhere")
    assert gpu_pack.restore_build(fresh)
    for name in ("site/pymtp/native/_native.so", "site/pymtp-0.1.0.dist-info/METADATA", "bin/llama-bench"):
        assert (fresh.work / name).read_bytes() == (folders.work / name).read_bytes()
    assert not (fresh.work / "site" / "cffi").exists()


def test_build_of_other_sources_or_with_a_missing_part_is_not_used(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_pack, "PART", 4000)
    *_, last = gpu_pack.save_build(folders, folders.pack)
    (folders.root / "pymtp/b.py").write_text("Python is laid over a build")
    assert gpu_pack.restore_build(folders)
    content = last.read_bytes()
    last.unlink()
    assert not gpu_pack.restore_build(folders)
    last.write_bytes(content)
    (folders.root / "patches/0001-a.patch").write_text("another")
    assert not gpu_pack.restore_build(folders)
    gpu_pack.drop_other_builds(folders)
    assert not list(folders.pack.iterdir())


def test_overlay_has_the_python_code_of_the_checkout(folders: Folders) -> None:
    gpu_build.overlay(folders)
    assert (folders.site / "pymtp/b.py").read_text() == "pymtp/b.py"
    assert (folders.site / "pymtp/native/_native.so").is_file()


def test_build_is_reused_until_the_sources_change(folders: Folders) -> None:
    gpu_pack.save_build(folders, folders.pack)
    gpu_pack.write_archive(folders.pack / gpu_pack.SOURCES, [(folders.source, ".")])
    fresh = replace(folders, work=folders.root / "elsewhere")
    assert not gpu_build.is_built(fresh)
    assert "unpacked a build" in gpu_build.build(fresh, [], out=folders.pack, seconds=1)
    assert gpu_build.is_built(fresh)
    (folders.root / "CMakeLists.txt").write_text("another")
    assert not gpu_build.is_built(fresh)


def test_missing_or_stale_pack_is_an_error_with_a_hint(folders: Folders) -> None:
    with pytest.raises(gpu_build.BuildError, match=r"tools/gpu/gpu_bench\.sh pack"):
        gpu_build.build(folders, [], out=folders.pack, seconds=1)
    gpu_pack.write_archive(folders.pack / gpu_pack.SOURCES, [(folders.root / "CMakeLists.txt", "CMakeLists.txt")])
    stale = replace(folders, work=folders.root / "elsewhere")
    with pytest.raises(gpu_build.BuildError, match="other sources than this checkout"):
        gpu_build.build(stale, [], out=folders.pack, seconds=1)


def test_archive_has_the_same_bytes_for_the_same_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    for number, name in enumerate(("one.tar.xz", "two.tar.xz")):
        os.utime(tmp_path / "a" / "x", (number, number))
        gpu_pack.write_archive(tmp_path / name, [(tmp_path / "a", "b")])
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    gpu_pack.unpack(tmp_path / "one.tar.xz", tmp_path / "out")
    assert (tmp_path / "out" / "b" / "x").read_text() == "x"


def test_native_digest_ignores_compiled_files(tmp_path: Path) -> None:
    for pattern in gpu_pack.NATIVE:
        for file in ROOT.glob(pattern):
            if file.is_file() and file.suffix not in gpu_pack.COMPILED:
                copy = tmp_path / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
    digest = gpu_pack.native_digest(ROOT)
    assert gpu_pack.native_digest(tmp_path) == digest
    (tmp_path / "pymtp/native/pair.cpp").write_text("")
    assert gpu_pack.native_digest(tmp_path) != digest


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure some jobs of a tiny model, one of them twice, with results in one folder."""
    folder = tmp_path_factory.mktemp("gpu")
    (path,) = make_model("tiny", folder / "tiny.gguf", weight_type="q4_0")
    results = Results(folder / "results")
    gpu_measure.write_plan(path, "tiny", SMOKE, results, 0)
    with Model(path) as model:
        for job in (*QUICK, *DECODED, QUICK[0]):
            assert gpu_measure.ModelBench(model, "tiny", SMOKE, results, 0).run(job) == ""
            results.end(job, 1.0)
    return results.folder


def test_results_of_jobs_become_reports_of_the_benches(measured: Path) -> None:
    prefill = prefill_report.load(measured / "prefill-tiny.json")
    assert sorted((m.round, m.mode) for m in prefill.measurements) == [
        (0, "fused"),
        (0, "none"),
        (1, "host-copy"),
        (1, "none"),
    ]
    assert [cell.prefill_ratio is None for cell in prefill.cells()] == [True, False, False]
    assert prefill.settings["synthetic"] == [round(0.75**n, 6) for n in range(1, 9)]
    decoded = decode_report.load(measured / "decode-tiny-0.5.json")
    assert [(cell.arm, cell.measurements) for cell in decoded.cells()] == [
        ("none", 2),
        ("1", 1),
        ("3", 1),
        ("3:host-copy", 1),
    ]
    assert all(cell.decode_ratio is not None for cell in decoded.cells() if cell.arm != "none")


def test_report_shows_every_measurement_and_failure(measured: Path) -> None:
    results = Results(measured)
    results.end(Job("tiny", PREFILL, 128, 3, ("none", "fused")), 1.0, "no memory")
    results.write("check.json", json.dumps({"tests": "exit 0: 9 passed"}))
    text = "\n".join(gpu_report.lines(measured))
    for words in (
        "no GPU",
        "| 64 | fused | 3 |",
        "| 64 | host-copy | 3 |",
        "| 3:host-copy | 0.5 |",
        "memory: tiny.gguf, 200 tokens, 3 drafts: CPU",
        "tests: exit 0: 9 passed",
    ):
        assert words in text
    assert "failed: tiny.prefill.128.d3.none+fused.t0: no memory" in text


def test_store_results_fills_the_pack_and_the_benchmarks(measured: Path, folders: Folders, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    gpu_pack.write_archive(results / gpu_pack.RESULTS, [(measured, ".")])
    (results / "built-0-0.0").write_bytes(b"part")
    reports = gpu_pack.store_results(folders, results, tmp_path / "benchmarks")
    assert {"prefill-tiny.json", "decode-tiny-0.5.json"} <= {report.name for report in reports}
    assert prefill_report.load(tmp_path / "benchmarks" / "prefill-tiny.json").measurements
    assert {file.name for file in folders.pack.iterdir()} == {gpu_pack.RESULTS, "built-0-0.0"}


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_script_help_names_every_step() -> None:
    env = {"PYTHON": sys.executable, "PATH": os.environ["PATH"]}
    shown = subprocess.run(
        [ROOT / "tools/gpu/gpu_bench.sh", "--help"], capture_output=True, text=True, check=True, env=env
    ).stdout
    for step in ("pack", "build", "models", "prefill", "decode", "peer", "check", "report", "all", "home", "prebuild"):
        assert step in shown


def fake_programs(folder: Path, **outputs: str) -> str:
    """Write programs that print a line, and return their folder for PATH."""
    folder.mkdir()
    for name, words in outputs.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\necho '{words}'\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    return str(folder)


def test_build_is_for_this_gpu_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "bin", nvidia_smi="9.0", nvcc=""))
    assert gpu_build.this_gpu() == "90"
    assert gpu_build.cuda_options("90") == ["-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=90-real"]
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "none"))
    with pytest.raises(gpu_build.BuildError, match="no GPU to build for"):
        gpu_build.this_gpu()


def test_cuda_libraries_come_from_the_toolkit_or_python_packages(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, package = tmp_path / "cuda", tmp_path / "site" / "nvidia" / "cu13"
    (toolkit / "lib64").mkdir(parents=True)
    (package / "lib").mkdir(parents=True)
    fake_programs(toolkit / "bin", nvcc="")
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "scripts", nvcc="calls the other"))
    monkeypatch.setattr(gpu_build, "DEFAULT_NVCC", str(toolkit / "bin" / "nvcc"))
    (toolkit / "lib64" / "libcudart.so.13").touch()
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        (package / "lib" / name).touch()

    def linked_folders() -> dict[str, Path]:
        return {link.name: link.resolve().parent for link in folders.libraries.iterdir()}

    assert gpu_build.link_libraries(folders, []) == {}
    assert linked_folders().keys() == {"libcudart.so", "libcudart.so.13"}
    variables = gpu_build.link_libraries(folders, ["", str(tmp_path / "site")])
    assert variables == {"CPATH": str(package / "include"), "CMAKE_LIBRARY_PATH": str(folders.libraries)}
    assert linked_folders()["libcudart.so.13"] == toolkit / "lib64"
    assert {linked_folders()[name] for name in ("libcublas.so", "libcublas.so.13", "libcublasLt.so.13")} == {
        package / "lib"
    }
    assert gpu_build.environment(folders)["LD_LIBRARY_PATH"].startswith(str(folders.libraries))
    (toolkit / "lib64" / "libcublas.so.13").touch()
    assert gpu_build.link_libraries(folders, [str(tmp_path / "site")]) == {}
