"""Measure the files of benchmarks/ that are missing or older than the code that they measure: one command.

    pip install --no-build-isolation -e '.[bench,test]'  # the commit that is measured, compiled
    python tools/bench/all.py --list                     # what is out of date, why, and how long each takes
    python tools/bench/all.py                            # measures these, and goes on where it was stopped
    python tools/bench/all.py --counts                   # only files of counts, for which the machine may be busy
    python tools/bench/all.py --times                    # only files of times: let the machine do nothing else
    python tools/bench/all.py server.json rows_q4_0.json # only these
    python tools/bench/all.py --check                    # exit code 1 if anything is out of date

plan.py says how each file is made. A file gets an entry `measured` with the commit, the command, the date, the seconds
and the processor. benchmarks/h100/ is not among them: tools/gpu/gpu_suite.py makes it. A file is out of date when a
file that it measures differs from that commit. Nothing is measured while the working tree has changes there, as no
commit would name them. Files of unfinished measurements are in build/bench/.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from plan import MODELS, PLAN, Measurement

from pymtp import build_info
from pymtp.bench.machine import machine

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
BUILD = ROOT / "build" / "bench"
NAME = re.compile(r"\{([\w.]+)\}")


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


def stamp(file: Path) -> dict[str, Any]:
    """Return what a file says of its measurement; empty if it says nothing."""
    content = json.loads(file.read_text("utf-8"))
    found: dict[str, Any] = content.get("measured", {}) if isinstance(content, dict) else {}
    return found


def why_out_of_date(name: str, plan: Measurement) -> str | None:
    """Return the reason why a file has to be measured; None if it need not."""
    missing = [each for each in (name, *plan.files) if not (FOLDER / each).is_file()]
    if missing:
        return f"{', '.join(missing)} missing"
    if (commit := stamp(FOLDER / name).get("commit")) is None:
        return "names no commit"
    done = git("diff", "--name-only", commit, "--", *plan.measures)
    if done.returncode:
        return f"commit {commit[:8]} is unknown here"
    changed = done.stdout.split()
    return f"{len(changed)} files changed since {commit[:8]}, such as {changed[0]}" if changed else None


def uncommitted(plan: Measurement) -> list[str]:
    """Return what a measurement would measure of the working tree that no commit has."""
    return [line[3:] for line in git("status", "--porcelain", "--", *plan.measures).stdout.splitlines()]


def stale_module() -> str | None:
    """Return why the compiled module is not that of this commit; None if it may be: it is newer than its sources."""
    code = "import pymtp.native._native as module; print(module.__file__)"
    module = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout.strip()
    if not module:
        return "pymtp is not installed"
    commit, seconds = git("log", "-1", "--format=%h %ct", "--", "pymtp/native", "patches", "vendor").stdout.split()
    return (
        f"{module} is older than commit {commit}: compile it" if Path(module).stat().st_mtime < int(seconds) else None
    )


def processor() -> dict[str, Any]:
    """Return the name of this machine's processor, the cores that are used, and the instructions of the build."""
    about = machine()
    return {"name": about["cpu"], "cores": about["cores"], "instructions": build_info()["cpu_features"]}


def model_file(name: str) -> Path:
    """Return the file of a model of the plan, and make it if there is none."""
    path = ROOT / "build" / "models" / f"{name}.gguf"
    if not path.is_file():
        preset, *options = MODELS[name].split()
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, ROOT / "tools/models/make_model.py", preset, part, *options], check=True)
        part.rename(path)
    return path


def filled(command: str, out: Path) -> str:
    """Return a command of the plan with the files that it names. Models are made."""

    def fill(match: re.Match[str]) -> str:
        if match[1] in MODELS:
            return str(model_file(match[1]))
        return {"pymtp": f"{sys.executable} -I -m pymtp", "python": sys.executable, "out": str(out)}[match[1]]

    return NAME.sub(fill, command)


def join_parts(out: Path, name: str) -> None:
    """Join the parts of a file, if it has any."""
    parts = sorted(out.glob(f"{Path(name).stem}.[0-9].json"))
    if parts:
        series = [json.loads(part.read_text("utf-8")) for part in parts]
        (out / name).write_text(json.dumps({"series": series}, indent=1) + "\n", encoding="utf-8")


def measure(name: str, plan: Measurement) -> float:
    """Run the commands of a file, put it into benchmarks/ with its stamp, and return the seconds.

    Raises CalledProcessError if a command fails; then the files that were there stay.
    """
    out = BUILD / Path(name).stem
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = filled(plan.command, out)
    commit = git("rev-parse", "HEAD").stdout.strip()
    begin = time.monotonic()
    subprocess.run(["bash", "-euc", command], cwd=ROOT, check=True)
    seconds = time.monotonic() - begin
    join_parts(out, name)
    record = json.loads((out / name).read_text("utf-8"))
    date = datetime.now(timezone.utc).date().isoformat()
    record["measured"] = {
        "commit": commit,
        "date": date,
        "seconds": round(seconds),
        "processor": processor(),
        "command": plan.command,
    }
    (out / name).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for each in (*plan.files, name):  # the stamp last
        shutil.move(out / each, FOLDER / each)
    return seconds


def minutes(name: str, plan: Measurement) -> float:
    """Return the minutes that a measurement took the last time, or those of the plan."""
    file = FOLDER / name
    seconds = stamp(file).get("seconds") if file.is_file() else None
    return plan.minutes if seconds is None else float(seconds) / 60


def show(names: Iterable[str], reasons: dict[str, str | None]) -> None:
    total = 0.0
    for name in names:
        took = minutes(name, PLAN[name])
        total += took if reasons[name] else 0
        typer.echo(f"{name:28} {took:6.1f} min  {reasons[name] or 'up to date'}")
    typer.echo(f"{'':28} {total:6.1f} min  for all that is out of date, without models and llama.cpp's programs")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Files of benchmarks/; all if none is named.")] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Show what would be measured, and how long it takes.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if anything is out of date.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure what is up to date, too.")] = False,
    timed: Annotated[bool | None, typer.Option("--times/--counts", help="Only files of times, or of counts.")] = None,
) -> None:
    """Measure what is missing or out of date."""
    chosen: Sequence[str] = names or [name for name, plan in PLAN.items() if timed in (None, plan.timed)]
    if unknown := set(chosen) - set(PLAN):
        raise typer.BadParameter(f"plan.py does not make {', '.join(sorted(unknown))}")
    reasons = {name: why_out_of_date(name, PLAN[name]) or ("--again" if again else None) for name in chosen}
    if only_list or check:
        show(chosen, reasons)
        raise typer.Exit(1 if check and any(reasons.values()) else 0)
    if stale := stale_module():
        raise typer.BadParameter(stale)
    failed = []
    due = [name for name in chosen if reasons[name]]
    for number, name in enumerate(due, 1):
        if dirty := uncommitted(PLAN[name]):
            raise typer.BadParameter(f"{name} would measure changes that are not committed: {', '.join(dirty[:3])}")
        typer.echo(
            f"[{number}/{len(due)}] {name}, about {minutes(name, PLAN[name]):.0f} min: {reasons[name]}", err=True
        )
        try:
            seconds = measure(name, PLAN[name])
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            failed.append(name)
            typer.echo(f"{name} failed: {error}", err=True)
        else:
            typer.echo(f"{name}: {seconds / 60:.1f} min", err=True)
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
