"""Builds, checks and measures pymtp on a machine with a GPU, in a given time, and continues where the last run ended.

    python tools/gpu/gpu_suite.py pack                               here, with a network: fills build/gpu
    python tools/gpu/gpu_suite.py all --minutes 9 --out results      there; run it again to continue

build/gpu travels along with the checkout, the files in --out come back and go into build/gpu. See
docs/developers/gpu-suite.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gpu_pack
import typer
from gpu_pack import RESULTS, BuildError, Folders

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS, PACK_SECONDS, CHECK_SECONDS = 480.0, 60.0, 240.0
LEAST_SECONDS = 45.0  # with which a bench is started: a model is loaded in half of them
LEADING = 6  # kinds of benches before that of images
GRACE = 20.0  # seconds for a process to end after SIGINT
KEPT_LINES = 400  # last lines of the output of tests, sanitizer and failed benches
PYMTP = ("-c", "from pymtp.cli import app_main; app_main()")
SANITIZED = """
import sys, pymtp
with pymtp.LLM(sys.argv[1], n_ctx=512, draft_tokens=3) as llm:
    params = pymtp.SamplingParams(max_tokens=12, ignore_eos=True)
    print(llm.generate([list(range(100)), list(range(50))], params)[1].stats.rounds, "rounds")
"""
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Scale:
    """The models and sizes of the suite.

    models: presets of make_model.py by the names of their files. sizes, long: of prompts. gen: tokens after a prompt.
    tokens: of a decode bench. threads: the option, if not all cores are used.
    seeing: the model that is measured with images. images: their sizes.
    """

    models: dict[str, str]
    weight_type: str
    sizes: tuple[int, ...]
    long: tuple[int, ...]
    gen: int = 128
    tokens: int = 256
    threads: str = ""
    seeing: str = "27b"
    images: str = "256x256,640x480,1024x1024,1280x1280,1536x1536,2048x2048"


FULL = Scale(
    {"35b-a3b": "qwen3.6-35b-a3b", "27b": "qwen3.6-27b"}, "iq4_nl", (1024, 8192, 32_768, 131_072), (65_536, 196_608)
)
SMOKE = Scale(
    {"tiny-moe": "tiny-moe", "tiny": "tiny"},
    "q4_0",
    (32, 64, 128),
    (192,),
    gen=8,
    tokens=12,
    threads="-t 1",
    seeing="tiny",
    images="64x64,96x64",
)


@dataclass(frozen=True)
class Bench:
    """A process that prints the JSON of a report.

    command: words after `pymtp`, for a peer after llama-bench, and for images after gpu_images.py.
    """

    name: str
    model: str
    command: str


def benches(scale: Scale) -> list[Bench]:
    """List all benches, the most important first."""
    first, second, *_, longest = scale.sizes
    n_ctx, work = max(*scale.sizes, *scale.long) + scale.gen, f"-p {second} -n {scale.gen} -d 0,{second}"
    own = f"-m {{model}} --gpu-layers {{layers}} {scale.threads} -o json"

    def prefill(sizes: Sequence[int], mode: str, depths: str = "3") -> str:
        what = f"--sizes {','.join(map(str, sizes))} --modes none,{mode} --depths {depths} --gen {scale.gen}"
        return f"bench prefill {what} -r 1 {accepted(0.75)} {own}"

    def decode(rate: float) -> str:
        what = f"--depths none,1,2,3,4,3:host-copy,auto --kinds code --temperatures 0 --tokens {scale.tokens}"
        return f"bench decode {what} -r 2 {accepted(rate)} {own}"

    def accepted(rate: float) -> str:
        """Accept each draft at this rate if those before it were: random weights accept none."""
        return "--synthetic-acceptance " + ",".join(str(round(rate**n, 6)) for n in range(1, 9))

    commands = {
        "prefill-MODEL": prefill(scale.sizes, "fused"),
        "memory-MODEL": f"info {{model}} --memory --ctx {n_ctx} --draft-tokens 3 --gpu-layers {{layers}} --json",
        "decode-MODEL-0.75": decode(0.75),
        "decode-MODEL-0": decode(0.0),
        "text-MODEL": f"bench decode --forced-text library --depths none,auto:head,auto -r 1 {own}",
        "batch-text-MODEL": f"bench batch --forced-text library --depths none,auto:head,auto -r 1 {own}",
        "prefill-MODEL-host-copy": prefill(scale.sizes[:-1], "host-copy"),
        "peer-MODEL": f"-m {{model}} -ngl {{layers}} {scale.threads} -fa auto -r 2 -o json {work}",
        "decode-MODEL-0.5": decode(0.5),
        "decode-MODEL-0.9": decode(0.9),
        "prefill-MODEL-long": prefill(scale.long, "fused"),
        "prefill-MODEL-all-outputs": prefill((first, second), "all-outputs"),
        "prefill-MODEL-depths": prefill(scale.sizes, "fused", "2,4"),
        "prefill-MODEL-host-copy-long": prefill((longest, *scale.long), "host-copy"),
    }
    found = [Bench(name.replace("MODEL", key), key, words) for name, words in commands.items() for key in scale.models]
    images = f"{{model}} {{mmproj}} --gpu-layers {{layers}} {scale.threads} --sizes {scale.images}"
    found.insert(LEADING * len(scale.models), Bench(f"images-{scale.seeing}", scale.seeing, images))
    return found


@dataclass
class Run:
    """A run of the suite: its folders, its scale, and its deadline.

    A result is a file, and what has a result is not measured again. Each is copied to `out` at once, so that it
    survives a machine that is taken away.
    """

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
    def environment(self) -> dict[str, str]:
        """Return the environment of processes: with the build, or with the installed pymtp."""
        return gpu_pack.environment(self.folders) if gpu_pack.is_built(self.folders) else dict(os.environ)

    def process(self, command: Sequence[object], seconds: float, out: Path, errors: Path | None = None) -> int | None:
        """Run a process with the build, and write its output to files. Return its status; None if the time was up.

        After `seconds` it gets SIGINT, with which a bench prints what it has measured, and is killed soon after.
        """
        self.folders.data.mkdir(parents=True, exist_ok=True)  # in the checkout, Python would import pymtp from there
        env = self.environment | ({"PYMTP_GPU_TESTS_ON_CPU": "1"} if self.cpu else {})
        words = [*map(str, command)]
        with (
            out.open("w") as stdout,
            (errors or out).open("a") as stderr,
            subprocess.Popen(words, cwd=self.folders.data, env=env, stdout=stdout, stderr=stderr) as process,
        ):
            for end, patience in ((signal.SIGINT, max(1.0, seconds)), (signal.SIGKILL, GRACE)):
                try:
                    status = process.wait(patience)
                    return status if end == signal.SIGINT else None
                except subprocess.TimeoutExpired:
                    process.send_signal(end)
        return None

    def keep(self, name: str, text: str) -> None:
        """Write a result, and copy all of them to `out`. A file is complete or not there."""
        self.folders.results.mkdir(parents=True, exist_ok=True)
        part = self.folders.data / "result.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.folders.results / name)
        gpu_pack.write_archive(self.out / "results.part", [(self.folders.results, ".")])
        os.replace(self.out / "results.part", self.out / RESULTS)

    def build(self) -> bool:
        """Build pymtp if needed. Return whether it can be used."""
        if gpu_pack.is_built(self.folders):
            gpu_pack.overlay(self.folders)
        elif not self.smoke:  # otherwise, the installed pymtp is used
            seconds = min(BUILD_SECONDS, self.left - PACK_SECONDS)
            try:
                options = [] if self.cpu else gpu_pack.cuda_options()
                log(gpu_pack.build(self.folders, options, out=self.out, seconds=seconds))
            except BuildError as error:
                log(f"build failed: {error}")
                return False
        return True

    def check(self) -> None:
        """Run the GPU tests, and the sanitizer on a tiny model. Their results go into check.json."""
        # collecting other tests would need packages that are not installed here
        files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
        pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--tb=short", "-m", "gpu")
        commands = {"tests": (sys.executable, *pytest, *files)}
        if shutil.which(SANITIZER[0]) and not self.smoke:
            file = self.model_file("sanitize", "tiny-moe", "q4_0")
            commands["sanitizer"] = (*SANITIZER, sys.executable, "-c", SANITIZED, file)
        results = json.loads(_read(self.folders.results / "check.json") or "{}")
        for name in [name for name in commands if name not in results]:
            output = self.folders.data / f"{name}.txt"
            status = self.process(commands[name], min(CHECK_SECONDS, self.left - GRACE), output)
            lines = _read(output).splitlines()
            self.keep(output.name, "\n".join(lines[-KEPT_LINES:]))
            ended = f"{_ending(status)}: {lines[-1].strip('= ') if lines else ''}"
            log(f"{name}: {ended}")
            if status is not None:
                results[name] = ended
                self.keep("check.json", json.dumps(results, indent=1))

    def model_file(self, name: str, preset: str, weight_type: str) -> Path:
        """Return the file of a model of random weights. It is made if it does not exist, and there is time."""
        return self._made(f"{name}-{weight_type}.gguf", "make_model.py", preset, "--type", weight_type)

    def _made(self, name: str, program: str, preset: str, *options: str) -> Path:
        file, started = self.folders.models / name, time.monotonic()
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")  # so that no partial file is taken for a model
            make = (sys.executable, ROOT / "tools/models" / program, preset, part, *options)
            if self.process(make, self.left - GRACE, self.folders.data / "make.txt") == 0:
                part.rename(file)
                log(f"{file.name}: {file.stat().st_size / 2**30:.1f} GiB in {time.monotonic() - started:.0f} s")
        return file

    def measure(self, bench: Bench) -> None:
        """Run a bench. What it printed is its result, NAME.json.

        If the time was up, that is NAME.cut.json, and the bench is repeated by the next run. If it failed without a
        report, the result is its output, NAME.failed.txt.
        """
        model = self.model_file(bench.model, self.scale.models[bench.model], self.scale.weight_type)
        if not model.is_file():
            return
        peer, values = bench.name.startswith("peer"), {"model": model}
        program: tuple[object, ...] = (self.folders.llama_bench,) if peer else (sys.executable, *PYMTP)
        if bench.name.startswith("images"):
            program = (sys.executable, ROOT / "tools/gpu/gpu_images.py")
            preset = self.scale.models[bench.model]
            values["mmproj"] = self._made(f"mmproj-{bench.model}.gguf", "make_mmproj.py", preset)
            if not values["mmproj"].is_file():
                return
        layers = 0 if self.cpu else 999 if peer else -1
        command = (*program, *(word.format(**values, layers=layers) for word in bench.command.split()))
        output, errors, started = self.folders.data / "bench.json", self.folders.data / "bench.txt", time.monotonic()
        errors.unlink(missing_ok=True)
        status = self.process(command, self.left - GRACE, output, errors)
        text, cut = _read(output), self.folders.results / f"{bench.name}.cut.json"
        if status is not None:
            cut.unlink(missing_ok=True)
        try:
            json.loads(text)
            self.keep(cut.name if status is None else f"{bench.name}.json", text)
        except ValueError:
            if status is not None:
                self.keep(f"{bench.name}.failed.txt", "\n".join((text + _read(errors)).splitlines()[-KEPT_LINES:]))
        log(f"{bench.name}: {_ending(status)} after {time.monotonic() - started:.0f} s, {self.left:.0f} s left")

    def measure_all(self, only: str) -> None:
        """Run the benches that have no result, as long as there is time."""
        for bench in benches(self.scale):
            done = any((self.folders.results / f"{bench.name}.{kind}").is_file() for kind in ("json", "failed.txt"))
            lacking = bench.name.startswith("peer") and not self.folders.llama_bench.is_file()
            wanted = bench.name.startswith(tuple(only.split(",")))
            if wanted and not done and not lacking and self.left > LEAST_SECONDS:
                self.measure(bench)


def log(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _ending(status: int | None) -> str:
    return "time was up" if status is None else f"exit {status}"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def report_lines(folder: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the results in a folder as Markdown: the tables of the benches, llama-bench, memory, checks, failures."""
    reports = {file.stem: json.loads(_read(file)) for file in sorted(folder.glob("*.json"))}
    for name, report in reports.items():
        if name.startswith(("prefill-", "decode-", "text-", "batch-")):
            shown = (sys.executable, *PYMTP, "bench", report["bench"], "--from", folder / f"{name}.json", "-o", "md")
            done = subprocess.run([*map(str, shown)], cwd=folder, env=env, capture_output=True, text=True)
            yield f"{name}\n\n{done.stdout or done.stderr}"
        elif name.startswith("images-"):
            yield from _images(name, report)
        elif name.startswith("peer-"):
            yield from _against_llama_bench(name, report, reports.get(name.replace("peer", "prefill", 1)))
        elif name.startswith("memory-"):
            for device in report["devices"]:
                without, mtp = (device[plan]["total"] / 2**20 for plan in ("without_mtp", "mtp"))
                yield f"{name}: {device['device']} {without:,.0f} MiB, MTP {mtp:,.0f} MiB more"
    yield from (f"check: {name}: {result}" for name, result in reports.get("check", {}).items())
    for file in sorted(folder.glob("*.failed.txt")):
        yield f"failed: {file.name.removesuffix('.failed.txt')}: {_read(file)[-200:]}"


def _images(name: str, report: dict[str, Any]) -> Iterator[str]:
    """Tell of each size how long an image of it takes, or how far the encoder came within the limit."""
    for one in report.get("sizes", ()):
        if "error" in one:
            yield f"{name}, {one['size']}: {one['error']}"
        elif len(one["encode_ms"]) == 2:
            prompt = f", prompt of {one['n_prompt']:,} tokens {one['prompt_ms']:,.1f} ms" if "n_prompt" in one else ""
            yield f"{name}, {one['size']}: encoder {one['encode_ms'][1]:,.1f} ms{prompt}"
        else:
            yield f"{name}, {one['size']}: {len(one['layers_ms'])} layers within {report['limit_s']:g} s"


def _against_llama_bench(name: str, records: list[dict[str, Any]], prefill: dict[str, Any] | None) -> Iterator[str]:
    """Compare tokens/s of plain prompts and of plain decoding after a prompt of the same length."""
    plain = {cell["size"]: cell for cell in (prefill or {"cells": []})["cells"] if cell["mode"] == "none"}
    for record in records:
        n, depth, speed = record["n_prompt"], record["n_depth"], record["avg_ts"]
        if bool(n) != bool(depth):  # no second prompt, and no decoding without a prompt
            what = f"a prompt of {n:,} tokens" if n else f"decoding after {depth:,} tokens"
            own = plain[n or depth]["prefill" if n else "decode"]["median"] if (n or depth) in plain else None
            ratio = "" if own is None else f", pymtp {own:,.1f}: {own / speed:.3f}"
            yield f"{name}, {what}: llama-bench {speed:,.1f} tokens/s{ratio}"


@app.command("pack")
def pack(python: Annotated[str, typer.Option(help="Version of Python on the machine with the GPU.")] = "3.12") -> None:
    """Put sources and wheels into build/gpu, to copy to the machine with the GPU. Needs a network."""
    try:
        files = gpu_pack.fill_pack(Folders(ROOT), python)
    except (BuildError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
    for file in files:
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 2**20:.1f} MiB")


@app.command("all")
def run_all(
    minutes: Annotated[float, typer.Option(help="Time limit of this command.")] = 9.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="build/gpu/out")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny models, with the installed pymtp.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Build and run for the CPU.")] = False,
    only: Annotated[str, typer.Option(help="Run what begins so: check, prefill-27b, decode.")] = "",
) -> None:
    """Build, check and measure what fits into the time, and show all results. Call it again to continue."""
    folders = Folders(ROOT, data="gpu-smoke" if smoke else "gpu-data")
    out = out if out is not None else folders.pack / "out"
    out.mkdir(parents=True, exist_ok=True)
    if not smoke and not folders.results.is_dir() and (folders.pack / RESULTS).is_file():
        gpu_pack.unpack(folders.pack / RESULTS, folders.results)
    run = Run(folders, SMOKE if smoke else FULL, out.resolve(), time.monotonic() + 60 * minutes, smoke, cpu)
    if not run.build():
        sys.exit(1)
    if "check".startswith(tuple(only.split(","))) and (run.left > CHECK_SECONDS or smoke):
        run.check()
    run.measure_all(only)
    text = "\n".join(report_lines(folders.results, run.environment))
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    log(f"{run.left:.0f} s left")


@app.command("report")
def report(folder: Annotated[Path, typer.Argument(help="Folder with reports.", exists=True, file_okay=False)]) -> None:
    """Show the reports in a folder, such as benchmarks/h100."""
    print("\n".join(report_lines(folder.resolve())))


if __name__ == "__main__":
    app()
