"""The steps of tools/gpu/gpu_bench.sh. Each ends in time, and is skipped if its results exist."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import gpu_build
import gpu_pack
import gpu_report
import typer
from gpu_pack import Folders
from gpu_plan import DECODE, FULL, PEER, PREFILL, SMOKE, Scale, next_job
from gpu_results import Results

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
BUILD_SECONDS, PACK_SECONDS, CHECK_SECONDS, SAVE_SECONDS = 480.0, 60.0, 240.0, 15.0
GRACE = 20.0  # seconds for a process to end after SIGINT
TIME_UP = 124
KEPT_LINES = 400  # last lines of the output of tests and sanitizer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Step(str, Enum):
    """A step with a command of its own."""

    build = "build"
    models = "models"
    prefill = "prefill"
    decode = "decode"
    peer = "peer"
    check = "check"
    report = "report"


@dataclass
class Run:
    """A run of a command: its folders, its scale, and its deadline."""

    folders: Folders
    scale: Scale
    out: Path
    deadline: float
    smoke: bool
    cpu: bool

    @property
    def left(self) -> float:
        """Return the seconds left."""
        return self.deadline - time.monotonic()

    @property
    def results(self) -> Results:
        return Results(self.folders.results)

    def python(self, *arguments: object, seconds: float, log: Path | None = None) -> int:
        """Run a Python process with the build. Return its status, or TIME_UP if it did not end by itself.

        After `seconds` it gets SIGINT, and is killed soon after. log: file for its output.
        """
        command = [sys.executable, *map(str, arguments)]
        self.folders.data.mkdir(parents=True, exist_ok=True)  # in the checkout, Python would import pymtp from there
        env = gpu_build.environment(self.folders) if gpu_build.is_built(self.folders) else dict(os.environ)
        if self.cpu:
            env["PYMTP_GPU_TESTS_ON_CPU"] = "1"
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("w")) if log else None
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=self.folders.data, env=env, stdout=out, stderr=subprocess.STDOUT if out else None
                )
            )
            try:
                return process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            return TIME_UP

    def model_file(self, key: str) -> Path:
        """Return the path of a model's file."""
        return self.folders.models / f"{key}-{self.scale.weight_type}.gguf"


def log_line(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_build(run: Run) -> bool:
    """Build pymtp if needed. Return whether it can be used."""
    if gpu_build.is_built(run.folders):
        gpu_build.overlay(run.folders)
        return True
    if run.smoke:
        return True  # use the installed pymtp
    seconds = min(BUILD_SECONDS, run.left - PACK_SECONDS)
    try:
        options = [] if run.cpu else gpu_build.cuda_options(gpu_build.this_gpu())
        log_line(gpu_build.build(run.folders, options, out=run.out, seconds=seconds))
    except gpu_build.BuildError as error:
        log_line(f"build failed: {error}")
        return False
    return True


def step_models(run: Run, keys: list[str]) -> None:
    """Write the missing files of models."""
    for shape in run.scale.shapes:
        file = run.model_file(shape.key)
        if shape.key not in keys or file.is_file():
            continue
        started = time.monotonic()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # so that no partial file is taken for a model
        arguments = (shape.preset, part, "--type", run.scale.weight_type)
        if run.python(TOOLS / "models" / "make_model.py", *arguments, seconds=run.left - GRACE) == 0:
            part.rename(file)
            log_line(f"{file.name}: {file.stat().st_size / 2**30:.1f} GiB in {time.monotonic() - started:.0f} s")
        else:
            part.unlink(missing_ok=True)
            log_line(f"{file.name} was not made")


def step_measure(run: Run, benches: list[str]) -> None:
    """Run jobs, most valuable first, as long as one fits."""
    if not run.folders.llama_bench.is_file():
        benches = [bench for bench in benches if bench != PEER]
    while True:
        made = [shape.key for shape in run.scale.shapes if run.model_file(shape.key).is_file()]
        left = run.left - GRACE - SAVE_SECONDS
        job = next_job(run.scale, run.results.done(), left, None, made, benches)
        if job is None:
            return
        n_before = len(run.results.done())
        step_models(run, [job.model])
        if not run.model_file(job.model).is_file():
            return
        common = [run.model_file(job.model), job.model, run.folders.results, *(["--smoke"] if run.smoke else [])]
        common += ["--gpu-layers", 0 if run.cpu else -1]
        left = run.left - GRACE - SAVE_SECONDS
        if job.bench == PEER:
            options = ["--program", run.folders.llama_bench, "--turn", job.turn]
            status = run.python(TOOLS / "gpu" / "gpu_peer.py", *common, *options, seconds=left)
        else:
            options = ["--seconds", left, "--benches", ",".join(benches), "--made", ",".join({*made, job.model})]
            status = run.python(TOOLS / "gpu" / "gpu_measure.py", *common, *options, seconds=left)
        cut = run.results.cut_off(time_up=status == TIME_UP)
        if status != 0:
            log_line(f"measuring ended with {status}" + (f", cut off: {cut}" if cut else ""))
        if len(run.results.done()) == n_before:
            return  # no result: another try would end the same


def step_check(run: Run) -> None:
    """Run the GPU tests, and the sanitizer on a tiny model. Their results go into check.json."""
    # collecting other tests would need packages that are not installed here
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
    commands: dict[str, tuple[object, ...]] = {
        "tests": ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--tb=short", "-m", "gpu", *files)
    }
    if shutil.which("compute-sanitizer") and not run.smoke:
        commands["sanitizer"] = (TOOLS / "gpu" / "gpu_sanitize.py", run.folders.data)
    results: dict[str, str] = run.results.read("check.json") or {}
    for name, command in commands.items():
        if name in results:
            continue
        log = run.folders.data / f"{name}.txt"
        status = run.python(*command, seconds=min(CHECK_SECONDS, run.left - GRACE), log=log)
        lines = log.read_text(errors="replace").splitlines()
        run.results.write(log.name, "\n".join(lines[-KEPT_LINES:]))
        results[name] = f"exit {status}: {lines[-1].strip('= ') if lines else ''}"
        run.results.write("check.json", json.dumps(results, indent=1))
        log_line(f"{name}: {results[name]}")


def step_report(run: Run) -> None:
    """Write the results for the way home, and print the table."""
    text = "\n".join(gpu_report.lines(run.folders.results))
    (run.out / "report.md").write_text(text + "\n", encoding="utf-8")
    gpu_pack.write_archive(run.out / gpu_pack.RESULTS, [(run.folders.results, ".")])
    print(text)


# ── The command line ──────────────────────────────────────────────────────────────────────────────────────────────────

Minutes = Annotated[float, typer.Option(help="Time limit of this command.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="build/gpu/out")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Tiny models, with the build, or else the installed pymtp.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Build and run for the CPU.")]


def _run(minutes: float, out: Path | None, smoke: bool, cpu: bool) -> Run:
    folders = Folders.of(ROOT, data="gpu-smoke" if smoke else "gpu-data")
    folder = out if out is not None else folders.pack / "out"
    folder.mkdir(parents=True, exist_ok=True)
    if not smoke and not folders.results.is_dir() and (folders.pack / gpu_pack.RESULTS).is_file():
        gpu_pack.unpack(folders.pack / gpu_pack.RESULTS, folders.results)
    return Run(folders, SMOKE if smoke else FULL, folder, time.monotonic() + 60 * minutes, smoke, cpu)


@app.command("pack")
def pack(python: Annotated[str, typer.Option(help="Version of Python on the machine with the GPU.")] = "3.12") -> None:
    """Put sources and wheels into build/gpu, to copy to the machine with the GPU. Needs a network."""
    try:
        files = gpu_pack.pack(Folders.of(ROOT), python)
    except (gpu_pack.BuildError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
    for file in files:
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 2**20:.1f} MiB")


@app.command("prebuild")
def prebuild(
    architecture: Annotated[str, typer.Argument(help="Architecture of the other machine's GPU: 90 for an H200.")],
) -> None:
    """Compile the pack here for that GPU, to save time there. Takes an hour on two cores."""
    folders = Folders.of(ROOT, work="gpu-prebuild")
    options = [*gpu_build.cuda_options(architecture), *gpu_build.PORTABLE]
    try:
        log_line(gpu_build.build(folders, options, out=folders.pack, seconds=24 * 3600, runs_here=False))
    except gpu_build.BuildError as error:
        sys.exit(f"error: {error}")


@app.command("home")
def home(
    folder: Annotated[Path, typer.Argument(help="Folder with the results.", exists=True, file_okay=False)],
    benchmarks: Annotated[Path, typer.Option(help="Where reports go.")] = ROOT / "benchmarks" / "h200",
) -> None:
    """Store the results: in build/gpu for the next time, and the reports in benchmarks."""
    for file in gpu_pack.store_results(Folders.of(ROOT), folder, benchmarks):
        print(file)


def _single(step: Step) -> Callable[..., None]:
    def command(minutes: Minutes = 9.0, out: Out = None, smoke: Smoke = False, cpu: Cpu = False) -> None:
        run = _run(minutes, out, smoke, cpu)
        if not step_build(run):
            sys.exit(1)
        if step in (Step.prefill, Step.decode, Step.peer):
            step_measure(run, [step.value])
        elif step is Step.models:
            step_models(run, [shape.key for shape in run.scale.shapes])
        elif step is Step.check:
            step_check(run)
        step_report(run)

    command.__doc__ = f"{HELP[step]} Missing earlier steps are done first."
    return command


HELP = {
    Step.build: "Build for this machine's GPU, or unpack a build from the pack.",
    Step.models: "Make the models' files.",
    Step.prefill: "Compare the ways to prefill.",
    Step.decode: "Compare depths, at several rates of acceptance.",
    Step.peer: "Compare with llama-bench.",
    Step.check: "Run the tests for GPUs, and compute-sanitizer.",
    Step.report: "Show the results.",
}
for step in Step:
    app.command(step.value)(_single(step))


@app.command("all")
def everything(minutes: Minutes = 9.0, out: Out = None, smoke: Smoke = False, cpu: Cpu = False) -> None:
    """Do all steps that fit into the time, and show the results. Call it again to continue."""
    run = _run(minutes, out, smoke, cpu)
    log_line(f"build; {run.left:.0f} s left")
    built = step_build(run)
    if built:
        if run.left > CHECK_SECONDS or smoke:
            log_line(f"check; {run.left:.0f} s left")
            step_check(run)
        log_line(f"measure; {run.left:.0f} s left")
        step_measure(run, [PREFILL, DECODE, PEER])
    step_report(run)
    log_line(f"{run.left:.0f} s left")
    if not built:
        sys.exit(1)


if __name__ == "__main__":
    app()
