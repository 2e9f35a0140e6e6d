"""Tests of tools/gpu/gpu_suite.py without a GPU: builds are restored, benches fit into the time, results survive."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import gpu_pack
import gpu_suite
import pytest
from conftest import ROOT
from gpu_pack import BuildError, Folders
from gpu_suite import FULL, SMOKE, Bench, Run, benches, report_lines
from helpers.command import run as run_command
from typer.testing import CliRunner


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Make a checkout with sources and the files of a build."""
    folders = Folders(tmp_path / "checkout")
    sources = ("CMakeLists.txt", "patches/0001-a.patch", "vendor/requirements.txt", "pymtp/native/a.cpp", "pymtp/b.py")
    for name in sources:
        (folders.root / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.root / name).write_text(name)
    shutil.copytree(folders.root, folders.source)
    built = (
        "site/pymtp/native/_native.so",
        "site/pymtp/b.py",
        "site/pymtp-0.1.0.dist-info/METADATA",
        "bin/llama-bench",
    )
    for name in built:
        (folders.work / name).parent.mkdir(parents=True, exist_ok=True)
        (folders.work / name).write_bytes(os.urandom(3000))
    (folders.work / "site" / "cffi").mkdir()
    folders.pack.mkdir(parents=True)
    return folders


def elsewhere(folders: Folders) -> Folders:
    return Folders(folders.root, work="elsewhere")


def test_saved_build_is_restored_from_its_parts(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_pack, "PART", 4000)
    parts = gpu_pack.save_build(folders, folders.pack)
    assert len(parts) == 4
    assert all(part.stat().st_size <= 4000 for part in parts)
    fresh = elsewhere(folders)
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
    before = (folders.site / "pymtp/native/_native.so").read_bytes()
    (folders.root / "pymtp/native/_native.so").write_text("compiled elsewhere")
    gpu_pack.overlay(folders)
    assert (folders.site / "pymtp/b.py").read_text() == "pymtp/b.py"
    assert (folders.site / "pymtp/native/_native.so").read_bytes() == before


def test_build_is_reused_until_the_sources_change(folders: Folders) -> None:
    gpu_pack.save_build(folders, folders.pack)
    gpu_pack.write_archive(folders.pack / gpu_pack.SOURCES, [(folders.source, ".")])
    fresh = elsewhere(folders)
    assert not gpu_pack.is_built(fresh)
    assert "unpacked a build" in gpu_pack.build(fresh, [], out=folders.pack, seconds=1)
    assert gpu_pack.is_built(fresh)
    (folders.root / "CMakeLists.txt").write_text("another")
    assert not gpu_pack.is_built(fresh)


def test_missing_or_stale_pack_is_an_error_with_a_hint(folders: Folders) -> None:
    with pytest.raises(BuildError, match=r"tools/gpu/gpu_suite\.py pack"):
        gpu_pack.build(folders, [], out=folders.pack, seconds=1)
    gpu_pack.write_archive(folders.pack / gpu_pack.SOURCES, [(folders.root / "CMakeLists.txt", "CMakeLists.txt")])
    with pytest.raises(BuildError, match="other sources than this checkout"):
        gpu_pack.build(elsewhere(folders), [], out=folders.pack, seconds=1)


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


def fake_programs(folder: Path, **outputs: str) -> str:
    """Write programs that print a line, and return their folder for PATH."""
    folder.mkdir()
    for name, words in outputs.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{words}'\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_build_is_for_the_gpu_of_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "bin", nvcc=""))
    assert gpu_pack.cuda_options() == ["-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=native"]
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "none"))
    assert gpu_pack.cuda_options()[-1] == f"-DCMAKE_CUDA_COMPILER={gpu_pack.DEFAULT_NVCC}"


def test_cuda_libraries_come_from_the_toolkit_or_python_packages(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit, package = tmp_path / "cuda", tmp_path / "site" / "nvidia" / "cu13"
    (toolkit / "lib64").mkdir(parents=True)
    (package / "lib").mkdir(parents=True)
    fake_programs(toolkit / "bin", nvcc="")
    monkeypatch.setenv("PATH", fake_programs(tmp_path / "scripts", nvcc="calls the other"))
    monkeypatch.setattr(gpu_pack, "DEFAULT_NVCC", str(toolkit / "bin" / "nvcc"))
    (toolkit / "lib64" / "libcudart.so.13").touch()
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        (package / "lib" / name).touch()

    def linked_folders() -> dict[str, Path]:
        return {link.name: link.resolve().parent for link in folders.libraries.iterdir()}

    assert gpu_pack.link_libraries(folders, []) == {}
    assert linked_folders().keys() == {"libcudart.so", "libcudart.so.13"}
    variables = gpu_pack.link_libraries(folders, ["", str(tmp_path / "site")])
    assert variables == {"CPATH": str(package / "include"), "CMAKE_LIBRARY_PATH": str(folders.libraries)}
    assert linked_folders()["libcudart.so.13"] == toolkit / "lib64"
    assert {linked_folders()[name] for name in ("libcublas.so", "libcublas.so.13", "libcublasLt.so.13")} == {
        package / "lib"
    }
    assert gpu_pack.environment(folders)["LD_LIBRARY_PATH"].startswith(str(folders.libraries))
    (toolkit / "lib64" / "libcublas.so.13").touch()
    assert gpu_pack.link_libraries(folders, [str(tmp_path / "site")]) == {}


# ── Benches ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_benches_cover_all_sizes_depths_and_rates_beside_none() -> None:
    assert len({bench.name for bench in benches(FULL)}) == len(benches(FULL))
    for model in FULL.models:
        mine = [bench.command for bench in benches(FULL) if bench.model == model]
        prompts = set[tuple[int, str, int]]()
        for found in re.findall(r"--sizes (\S+) --modes none,(\S+) --depths (\S+)", "\n".join(mine)):
            sizes, mode, depths = found
            prompts |= {(int(size), mode, int(depth)) for size in sizes.split(",") for depth in depths.split(",")}
        sizes = (1024, 8192, 32_768, 65_536, 131_072, 196_608)
        assert {(size, mode, 3) for size in sizes for mode in ("fused", "host-copy")} <= prompts
        assert {(size, "fused", depth) for size in sizes[:3] for depth in (2, 3, 4)} <= prompts
        assert (1024, "all-outputs", 3) in prompts
        rates = [
            words.split()[0] for words in "\n".join(c for c in mine if "bench decode" in c).split("acceptance ")[1:]
        ]
        assert [rate.split(",")[0] for rate in rates] == ["0.75", "0.0", "0.5", "0.9"]
        assert all(
            "--depths none,1,2,3,4,3:host-copy,auto" in command
            for command in mine
            if "acceptance" in command and "decode" in command
        )
        assert any("-d 0,8192" in command for command in mine)  # llama-bench
        assert sum("--forced-text library" in command for command in mine) == 2


def test_most_important_benches_of_all_models_come_first() -> None:
    names = [bench.name for bench in benches(FULL)]
    assert names[:2] == ["prefill-35b-a3b", "prefill-27b"]
    assert names.index("decode-27b-0") < names.index("prefill-35b-a3b-host-copy")
    assert "long" in names[-1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with a minute, and a model that is there."""
    (tmp_path / "out").mkdir()
    run = Run(Folders(tmp_path), SMOKE, tmp_path / "out", time.monotonic() + 60, smoke=True, cpu=True)
    run.folders.models.mkdir(parents=True)
    (run.folders.models / "tiny-q4_0.gguf").touch()
    return run


def measured(run: Run, monkeypatch: pytest.MonkeyPatch, program: str, seconds: float = 60.0) -> set[str]:
    """Measure the tiny model's first bench with another program. Return the names of the results that came back."""
    monkeypatch.setattr(gpu_suite, "PYMTP", ("-c", program))
    monkeypatch.setattr(gpu_suite, "LEAST_SECONDS", 0.0)
    run.deadline = time.monotonic() + seconds + gpu_suite.GRACE
    run.measure_all("prefill-tiny-depths")
    if not (run.out / gpu_pack.RESULTS).is_file():
        return set()
    gpu_pack.unpack(run.out / gpu_pack.RESULTS, run.out / "unpacked")
    found = {file.name for file in (run.out / "unpacked").iterdir()}
    shutil.rmtree(run.out / "unpacked")
    return found


PRINTS, FAILS = "print('{\"n\": 1}')", "raise MemoryError('no memory')"
IS_CUT = """
import time
try:
    time.sleep(60)
except KeyboardInterrupt:
    print('{"n": 0}')
"""


def test_result_is_kept_at_once_and_not_measured_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(run, monkeypatch, PRINTS) == {"prefill-tiny-depths.json"}
    assert measured(run, monkeypatch, FAILS) == {"prefill-tiny-depths.json"}


def test_failed_bench_is_not_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(run, monkeypatch, FAILS) == {"prefill-tiny-depths.failed.txt"}
    assert "no memory" in (run.folders.results / "prefill-tiny-depths.failed.txt").read_text()
    assert measured(run, monkeypatch, PRINTS) == {"prefill-tiny-depths.failed.txt"}


def test_bench_that_is_cut_keeps_what_it_measured_and_is_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(run, monkeypatch, IS_CUT, seconds=2) == {"prefill-tiny-depths.cut.json"}
    assert measured(run, monkeypatch, PRINTS) == {"prefill-tiny-depths.json"}


def test_hung_bench_is_killed_within_the_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_suite, "GRACE", 0.5)
    hangs = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    assert measured(run, monkeypatch, hangs, seconds=2) == set()
    assert -1.0 < run.left < 1.0


def test_no_bench_is_started_without_time_or_a_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(run, monkeypatch, PRINTS, seconds=-gpu_suite.GRACE) == set()
    (run.folders.models / "tiny-q4_0.gguf").unlink()
    monkeypatch.setattr(Run, "process", lambda *_, **__: 1)
    run.measure(Bench("prefill-tiny", "tiny", "bench"))
    (run.folders.models / "tiny-q4_0.gguf").touch()
    run.measure(Bench("images-tiny", "tiny", "{model} {mmproj}"))  # nor without its projector
    assert not run.folders.results.exists()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands of pymtp in this process, where a start of a dozen processes would take longer than their work."""
    process = Run.process

    def run_here(self: Run, command: Any, seconds: float, out: Path, errors: Path | None = None) -> int | None:
        if command[1] not in ("bench", "info"):
            return process(self, command, seconds, out, errors)
        done = run_command(*command[1:])
        out.write_text(done.stdout)
        return done.returncode

    monkeypatch.setattr(gpu_suite, "PYMTP", ())
    monkeypatch.setattr(Run, "process", run_here)
    monkeypatch.setattr(gpu_suite.subprocess, "run", lambda words, **_: run_command(*words[1:]))


@pytest.mark.usefixtures("in_this_process")
def test_smoke_run_writes_reports_that_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_suite, "Folders", lambda root, data: Folders(tmp_path, data=data))
    only = "prefill-tiny-host-copy,decode-tiny-0.5,images-tiny,memory-tiny"
    arguments = ["all", "--smoke", "--cpu", "--only", only, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(gpu_suite.app, arguments)
    assert done.exit_code == 0, done.output
    results = tmp_path / "build" / "gpu-smoke" / "results"
    prefill, decode = (json.loads((results / f"{name}.json").read_text()) for name in only.split(",")[:2])
    assert {(cell["size"], cell["mode"]) for cell in prefill["cells"]} == {
        (size, mode) for size in (32, 64) for mode in ("none", "host-copy")
    }
    assert prefill["settings"]["synthetic"] == [round(0.75**n, 6) for n in range(1, 9)]
    images = json.loads((results / "images-tiny.json").read_text())
    assert [(one["size"], len(one["encode_ms"]), len(one["layers_ms"])) for one in images["sizes"]] == [
        ("64x64", 2, 3),
        ("96x64", 2, 3),
    ]
    assert any("flash attention" in line for line in images["log"])
    assert {cell["arm"] for cell in decode["cells"]} == {"none", "1", "2", "3", "4", "3:host-copy", "auto"}
    (results / "check.json").write_text(json.dumps({"tests": "exit 0: 9 passed"}))
    (results / "decode-tiny-0.9.failed.txt").write_text("no memory")
    peers = [{"n_prompt": n, "n_depth": depth, "avg_ts": 10.0} for n in (64, 0) for depth in (0, 64)]
    (results / "peer-tiny.json").write_text(json.dumps(peers))
    (results / "prefill-tiny.json").write_text(json.dumps(prefill))
    text = "\n".join(report_lines(results))
    assert len(re.findall(r"images-tiny, \d+x64: encoder [\d.]+ ms, prompt of \d+ tokens [\d.]+ ms", text)) == 2
    for words in ("| 64 | host-copy |", "| 3:host-copy |", "memory-tiny: CPU", "tests: exit 0: 9 passed"):
        assert words in text
    assert "failed: decode-tiny-0.9: no memory" in text
    assert len(re.findall(r"peer-tiny, .* tokens: llama-bench 10\.0 tokens/s, pymtp [\d.,]+: \d", text)) == 2


def test_run_continues_from_the_results_in_the_pack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "memory-27b.json").write_text('{"devices": []}')
    folders.pack.mkdir(parents=True)
    gpu_pack.write_archive(folders.pack / gpu_pack.RESULTS, [(tmp_path / "home", ".")])
    monkeypatch.setattr(gpu_suite, "Folders", lambda root, data: folders)
    monkeypatch.setattr(Run, "build", lambda self: True)
    monkeypatch.setattr(Run, "measure", lambda *_: pytest.fail("it is measured again"))
    assert CliRunner().invoke(gpu_suite.app, ["all", "--only", "memory-27b"]).exit_code == 0


@pytest.mark.usefixtures("in_this_process")
def test_published_results_are_shown() -> None:
    done = CliRunner().invoke(gpu_suite.app, ["report", str(ROOT / "benchmarks" / "h100")])
    assert done.exit_code == 0, done.output
    assert done.output.count("27b-iq4_nl.gguf") >= 3
    assert "memory-27b: CUDA0 26,532 MiB" in done.output
