"""The steps of tools/gpu/gpu_bench.sh. Each ends in time, and is skipped when what it makes is there."""

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
from gpu_pack import Place
from gpu_plan import DECODE, FULL, PEER, PREFILL, SMOKE, Scale, next_job
from gpu_results import Results

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
BUILD_SECONDS, PACK_SECONDS, CHECK_SECONDS, SAVE_SECONDS = 480.0, 60.0, 240.0, 15.0
GRACE = 20.0  # for a process that is told to end
TIME_UP = 124
KEPT_LINES = 400  # of what tests and sanitizer say

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Step(str, Enum):
    """What can be done by itself."""

    build = "build"
    models = "models"
    prefill = "prefill"
    decode = "decode"
    peer = "peer"
    check = "check"
    report = "report"


@dataclass
class Run:
    """One command: where, how much, and when it must have ended."""

    place: Place
    scale: Scale
    out: Path
    ends: float
    smoke: bool
    cpu: bool

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    @property
    def results(self) -> Results:
        return Results(self.place.results)

    def python(self, *arguments: object, seconds: float, log: Path | None = None) -> int:
        """A process that finds what was built, its output in `log` if given; told to end after `seconds`, ended soon
        after. Returns its status, TIME_UP where it did not end by itself."""
        command = [sys.executable, *map(str, arguments)]
        self.place.data.mkdir(parents=True, exist_ok=True)  # from the checkout, Python would import its pymtp
        env = gpu_build.environment(self.place) if gpu_build.is_built(self.place) else dict(os.environ)
        if self.cpu:
            env["PYMTP_GPU_TESTS_ON_CPU"] = "1"
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("w")) if log else None
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=self.place.data, env=env, stdout=out, stderr=subprocess.STDOUT if out else None
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

    def file(self, key: str) -> Path:
        """Of a model."""
        return self.place.models / f"{key}-{self.scale.weight_type}.gguf"


def say(text: str) -> None:
    """With the time, as a later reader wants to know where it went."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def step_build(run: Run) -> bool:
    """Whether pymtp can be used now."""
    if gpu_build.is_built(run.place):
        gpu_build.overlay(run.place)
        return True
    if run.smoke:
        return True  # what is installed
    seconds = min(BUILD_SECONDS, run.left - PACK_SECONDS)
    try:
        options = [] if run.cpu else gpu_build.cuda_options(gpu_build.this_gpu())
        say(gpu_build.build(run.place, options, out=run.out, seconds=seconds))
    except gpu_build.BuildError as error:
        say(f"build failed: {error}")
        return False
    return True


def step_models(run: Run, keys: list[str]) -> None:
    """Writes the files of models that are not there."""
    for shape in run.scale.shapes:
        file = run.file(shape.key)
        if shape.key not in keys or file.is_file():
            continue
        started = time.monotonic()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # a file half written is not taken for a model
        arguments = (shape.preset, part, "--type", run.scale.weight_type)
        if run.python(TOOLS / "models" / "make_model.py", *arguments, seconds=run.left - GRACE) == 0:
            part.rename(file)
            say(f"{file.name}: {file.stat().st_size / 2**30:.1f} GiB in {time.monotonic() - started:.0f} s")
        else:
            part.unlink(missing_ok=True)
            say(f"{file.name} was not made")


def step_measure(run: Run, benches: list[str]) -> None:
    """Runs jobs, most valuable first, as long as one fits."""
    if not run.place.llama_bench.is_file():
        benches = [bench for bench in benches if bench != PEER]
    while True:
        made = [shape.key for shape in run.scale.shapes if run.file(shape.key).is_file()]
        left = run.left - GRACE - SAVE_SECONDS
        job = next_job(run.scale, run.results.done(), left, None, made, benches)
        if job is None:
            return
        before = len(run.results.done())
        step_models(run, [job.model])
        if not run.file(job.model).is_file():
            return
        common = [run.file(job.model), job.model, run.place.results, *(["--smoke"] if run.smoke else [])]
        common += ["--gpu-layers", 0 if run.cpu else -1]
        left = run.left - GRACE - SAVE_SECONDS
        if job.bench == PEER:
            options = ["--program", run.place.llama_bench, "--turn", job.turn]
            status = run.python(TOOLS / "gpu" / "gpu_peer.py", *common, *options, seconds=left)
        else:
            options = ["--seconds", left, "--benches", ",".join(benches), "--made", ",".join({*made, job.model})]
            status = run.python(TOOLS / "gpu" / "gpu_measure.py", *common, *options, seconds=left)
        cut = run.results.cut_off(time_up=status == TIME_UP)
        if status != 0:
            say(f"measuring ended with {status}" + (f", cut off: {cut}" if cut else ""))
        if len(run.results.done()) == before:
            return  # nothing came of it, and nothing would


def step_check(run: Run) -> None:
    """The tests for GPUs, and the sanitizer on a tiny model; what they said is in check.json."""
    # to collect the others takes packages that are not here
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
    commands: dict[str, tuple[object, ...]] = {
        "tests": ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--tb=short", "-m", "gpu", *files)
    }
    if shutil.which("compute-sanitizer") and not run.smoke:
        commands["sanitizer"] = (TOOLS / "gpu" / "gpu_sanitize.py", run.place.data)
    told: dict[str, str] = run.results.read("check.json") or {}
    for name, command in commands.items():
        if name in told:
            continue
        log = run.place.data / f"{name}.txt"
        status = run.python(*command, seconds=min(CHECK_SECONDS, run.left - GRACE), log=log)
        shown = log.read_text(errors="replace").splitlines()
        run.results.write(log.name, "\n".join(shown[-KEPT_LINES:]))
        told[name] = f"exit {status}: {shown[-1].strip('= ') if shown else ''}"
        run.results.write("check.json", json.dumps(told, indent=1))
        say(f"{name}: {told[name]}")


def step_report(run: Run) -> None:
    """What comes home, and the table."""
    text = "\n".join(gpu_report.lines(run.place.results))
    (run.out / "report.md").write_text(text + "\n", encoding="utf-8")
    gpu_pack.write_archive(run.out / gpu_pack.RESULTS, [(run.place.results, ".")])
    print(text)


# ── The command line ──────────────────────────────────────────────────────────────────────────────────────────────────

Minutes = Annotated[float, typer.Option(help="That this command may take.")]
Out = Annotated[Path | None, typer.Option(help="Folder for what comes home.", show_default="build/gpu/out")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Tiny models, and what was built or else is installed.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Build and run for the CPU.")]


def _run(minutes: float, out: Path | None, smoke: bool, cpu: bool) -> Run:
    place = Place.of(ROOT, data="gpu-smoke" if smoke else "gpu-data")
    folder = out if out is not None else place.pack / "out"
    folder.mkdir(parents=True, exist_ok=True)
    if not smoke and not place.results.is_dir() and (place.pack / gpu_pack.RESULTS).is_file():
        gpu_pack.unpack(place.pack / gpu_pack.RESULTS, place.results)
    return Run(place, SMOKE if smoke else FULL, folder, time.monotonic() + 60 * minutes, smoke, cpu)


@app.command("pack")
def pack(python: Annotated[str, typer.Option(help="Version of Python on the machine with the GPU.")] = "3.12") -> None:
    """Put sources and wheels into build/gpu, which is to travel along. Needs a network."""
    try:
        files = gpu_pack.pack(Place.of(ROOT), python)
    except (gpu_pack.BuildError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
    for file in files:
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 2**20:.1f} MiB")


@app.command("prebuild")
def prebuild(
    architecture: Annotated[str, typer.Argument(help="Of the GPU that is elsewhere: 90 for an H200.")],
) -> None:
    """Compile what was packed, here, for that GPU: no minute there is spent on it. Takes an hour on two cores."""
    place = Place.of(ROOT, work="gpu-prebuild")
    options = [*gpu_build.cuda_options(architecture), *gpu_build.PORTABLE]
    try:
        say(gpu_build.build(place, options, out=place.pack, seconds=24 * 3600))
    except gpu_build.BuildError as error:
        sys.exit(f"error: {error}")


@app.command("home")
def home(
    folder: Annotated[Path, typer.Argument(help="With what came back.", exists=True, file_okay=False)],
    benchmarks: Annotated[Path, typer.Option(help="Where reports go.")] = ROOT / "benchmarks" / "h200",
) -> None:
    """Keep what came back: in build/gpu for the next time, and the reports in benchmarks."""
    for file in gpu_pack.take_home(Place.of(ROOT), folder, benchmarks):
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

    command.__doc__ = f"{HELP[step]} What is missing before it is done first."
    return command


HELP = {
    Step.build: "Build for this machine's GPU, or unpack the build that travelled along.",
    Step.models: "Make the models' files.",
    Step.prefill: "Compare the ways to prefill.",
    Step.decode: "Compare depths, at several rates of acceptance.",
    Step.peer: "Compare with llama-bench.",
    Step.check: "Run the tests for GPUs, and compute-sanitizer.",
    Step.report: "Show what was measured.",
}
for one in Step:
    app.command(one.value)(_single(one))


@app.command("all")
def everything(minutes: Minutes = 9.0, out: Out = None, smoke: Smoke = False, cpu: Cpu = False) -> None:
    """Do all that fits into the time, and say what came out. Call it again to go on."""
    run = _run(minutes, out, smoke, cpu)
    say(f"build; {run.left:.0f} s left")
    built = step_build(run)
    if built:
        if run.left > CHECK_SECONDS or smoke:
            say(f"check; {run.left:.0f} s left")
            step_check(run)
        say(f"measure; {run.left:.0f} s left")
        step_measure(run, [PREFILL, DECODE, PEER])
    step_report(run)
    say(f"{run.left:.0f} s left")
    if not built:
        sys.exit(1)


if __name__ == "__main__":
    app()
