"""Build the files of a release and check each in an empty environment: one command, one table.

    python tools/release/release.py                                    # sdist and wheel of all levels, into dist/
    python tools/release/release.py --sdist A.tar.gz --wheel B.whl     # checks files that are there, builds none

It needs `typer`, and what tools/wheel/build_wheel.py needs. A file passes if twine finds its metadata valid, if it
installs into an empty environment, if the program and the module run there, if the import is fast, and if
nothing of it is left once it is uninstalled. To install an sdist compiles it. See docs/developers/releasing.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
NAME = "pymtp"
TIMEOUT = 3600.0  # seconds: the installation of an sdist compiles llama.cpp
ONE_LINE = f"import {NAME}; print(len({NAME}.generate('def f(x):', max_tokens=4, ignore_eos=True).token_ids))"


class FailedError(Exception):
    """A check that failed, with what was found."""


@dataclass(frozen=True)
class Result:
    """The result of a check. found: what it printed or measured, or why it failed."""

    file: str
    check: str
    passed: bool
    seconds: float
    found: str


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return what it prints, stderr first. Raises FailedError with its last line if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}  # such as PYTHONPATH
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
    )
    printed = done.stderr + done.stdout
    if done.returncode:
        raise FailedError(f"exit code {done.returncode}: {last_line(printed)}")
    return printed


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1][:200]


class Installed:
    """A file of a release, installed into an environment of its own. Each method is a check, in this order."""

    def __init__(self, file: Path, folder: Path) -> None:
        """file: wheel or sdist. folder: an empty one, in which commands run, because sources may lie in others."""
        self._file = file.resolve()
        self._folder = folder
        self._environment = folder / "environment"

    def run(self, program: str, *arguments: str | Path) -> str:
        """Run a program of the environment."""
        return run(self._environment / "bin" / program, *arguments, cwd=self._folder)

    def pip(self, *arguments: str | Path) -> str:
        """Run the pip of this Python on the environment, which has none."""
        options = ("--python", self._environment / "bin/python", "--disable-pip-version-check")
        return run(sys.executable, "-m", "pip", *options, *arguments, cwd=self._folder)

    def install(self) -> str:
        venv.create(self._environment)
        return last_line(self.pip("install", self._file))

    def tell_version(self, version: str) -> str:
        told = self.run(NAME, "--version").strip()
        if not told.startswith(f"{NAME} {version}, "):
            raise FailedError(f"{told}, not {version}")
        return told

    def tell_information(self) -> str:
        return last_line(self.run(NAME, "info"))

    def generate(self) -> str:
        return last_line(self.run(NAME, "generate", "-n", "8", "def f(x):"))

    def generate_in_python(self) -> str:
        if (printed := self.run("python", "-I", "-c", ONE_LINE).strip()) != "4":
            raise FailedError(f"{last_line(printed)}, not 4 tokens")
        return "4 tokens"

    def be_typed(self) -> str:
        files = self.run(
            "python", "-I", "-c", f"import importlib.resources as r; print(r.files('{NAME}') / 'py.typed')"
        )
        if not Path(files.strip()).is_file():
            raise FailedError("there is no py.typed")
        return "py.typed"

    def be_imported(self, limit: float) -> str:
        """Measure the import, the shortest of three, by Python's -X importtime."""
        command = ("-I", "-X", "importtime", "-c", f"import {NAME}")
        pattern = re.compile(rf"\| *(\d+) \| {NAME}$", re.MULTILINE)
        seconds = min(int(pattern.findall(self.run("python", *command))[0]) / 1e6 for _ in range(3))
        if seconds > limit:
            raise FailedError(f"{seconds:.2f} s, more than {limit:g} s")
        return f"{seconds:.2f} s"

    def uninstall(self) -> str:
        self.pip("uninstall", "-y", NAME)
        left = sorted(str(path.relative_to(self._environment)) for path in self._environment.rglob(f"{NAME}*"))
        if left:
            raise FailedError(f"left behind: {', '.join(left)[:200]}")
        return "nothing left"


def check(file: Path, version: str, twine: Path, limit: float) -> Iterator[Result]:
    """Yield the result of each check of a file. After a failed installation there are no others."""
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(file, Path(folder))
        steps: dict[str, Callable[[], str]] = {
            "twine check": lambda: last_line(run(twine, "check", "--strict", file)),
            "pip install": installed.install,
            f"{NAME} --version": partial(installed.tell_version, version),
            f"{NAME} info": installed.tell_information,
            f"{NAME} generate": installed.generate,
            "a line of Python": installed.generate_in_python,
            "types": installed.be_typed,
            "import": partial(installed.be_imported, limit),
            "pip uninstall": installed.uninstall,
        }
        for name, step in steps.items():
            begin = perf_counter()
            try:
                found, passed = step(), True
            except (FailedError, IndexError, subprocess.TimeoutExpired) as error:
                found, passed = str(error), False
            yield Result(file.name, name, passed, perf_counter() - begin, found)
            if name == "pip install" and not passed:
                return


def tools() -> Path:
    """Return the folder of programs of an environment with build and twine."""
    folder = ROOT / "build" / "release" / "venv"
    if not (folder / "bin" / "twine").exists():
        venv.create(folder, with_pip=True)
        run(folder / "bin" / "python", "-m", "pip", "install", "-q", "build>=1.2", "twine>=6.1")
    return folder / "bin"


def build(output: Path) -> list[Path]:
    """Build the sdist and the wheel of all levels of this processor family, and return both files."""
    subprocess.run([tools() / "python", "-m", "build", "--sdist", "--outdir", output, ROOT], check=True)
    subprocess.run([sys.executable, ROOT / "tools/wheel/build_wheel.py", "--output", output], check=True)
    return [max(output.glob(kind), key=lambda path: path.stat().st_mtime) for kind in ("*.tar.gz", "*.whl")]


def read_version() -> str:
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    return str(version)


Files = Annotated[list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Check this file, and build none.")]


def main(
    sdist: Files = None,
    wheel: Files = None,
    output: Annotated[Path, typer.Option(help="Where the built files go.")] = ROOT / "dist",
    import_limit: Annotated[float, typer.Option(help="Seconds that the import may take on an idle machine.")] = 1.0,
) -> None:
    """Build and check the files of a release."""
    results = []
    for file in [*(sdist or []), *(wheel or [])] or build(output):
        for result in check(file, read_version(), tools() / "twine", import_limit):
            results.append(result)
            typer.echo(f"{result.file} {result.check}: {result.found}", err=True)
    typer.echo("| file | check | result | seconds | |\n|---|---|---|---:|---|")
    for each in results:
        result = "passed" if each.passed else "FAILED"
        typer.echo(f"| {each.file} | {each.check} | {result} | {each.seconds:.1f} | {each.found.replace('|', ' ')} |")
    if not all(result.passed for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
