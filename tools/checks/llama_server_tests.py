"""Run the tests of llama.cpp's own server against `pymtp serve`, and count them by file.

The tests are those of a checkout (tools/server/tests), at about the pinned commit: the source distribution that
vendor/requirements.txt pins has them, too. Their requests and expectations stay as they are. A shim in place of
llama-server maps its options, and every test gets one small model of ours: the shipped one, with the tokens of a
vocabulary that can fill in text, and a projector of random weights. So tests that expect the texts or token counts of
their own models must fail; they are counted apart. Images come from this machine (llama_server_plugin.py).

They need the packages requests, filelock and aiohttp.

    python tools/checks/llama_server_tests.py ~/llama.cpp -n 2
    python tools/checks/llama_server_tests.py ~/llama.cpp unit/test_completion.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from common import SCREEN, run_command
from llama_server_reasons import REASONS
from makers.make_mmproj import make_mmproj
from rich.table import Table

from pymtp.model.model import demo_model

CHECKS = Path(__file__).resolve().parent
OTHER = "other"


def main(
    checkout: Annotated[Path, typer.Argument(exists=True, help="Directory of llama.cpp's sources.")],
    tests: Annotated[list[str] | None, typer.Argument(help="Files or tests; all that are not slow by default.")] = None,
    processes: Annotated[int, typer.Option("-n", help="Tests at the same time, each with a server.")] = 1,
    timeout: Annotated[int, typer.Option(help="Seconds until a test is stopped.")] = 120,
    show: Annotated[bool, typer.Option(help="List the failures that no reason explains.")] = True,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        environment = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(write_shim(Path(folder))),
            "PYMTP_SHIM_MODEL": str(demo_model()),
            "PYMTP_SHIM_MMPROJ": str(make_mmproj("demo", Path(folder) / "mmproj.gguf")),
            "PYTHONPATH": os.pathsep.join([str(CHECKS), os.environ.get("PYTHONPATH", "")]),
        }
        options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "llama_server_plugin", "--tb=line"]
        options += ["--timeout", str(timeout), "-n", str(processes), f"--junitxml={report}"]
        directory = checkout / "tools" / "server" / "tests"
        subprocess.run([sys.executable, "-m", "pytest", *options, *(tests or [])], cwd=directory, env=environment)
        outcomes = read_outcomes(report)
    SCREEN.print(outcome_table(outcomes))
    unexplained = [name for name, outcome in outcomes.items() if outcome == OTHER]
    if show and unexplained:
        SCREEN.print("\n".join(["Failures without a known reason:", *unexplained]))
    raise typer.Exit(bool(unexplained))


def write_shim(folder: Path) -> Path:
    """Write the program that the tests start as llama-server, and return its path."""
    shim = folder / "llama-server"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CHECKS / "llama_server_shim.py"}" "$@"\n')
    shim.chmod(0o755)
    return shim


def read_outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test of a JUnit report: passed, skipped, a reason of REASONS, or OTHER."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = (case.get("classname") or "").rpartition(".")[2]
        name = f"{file}::{case.get('name')}"
        if case.find("skipped") is not None:
            outcomes[name] = "skipped"
        elif case.find("failure") is None and case.find("error") is None:
            outcomes[name] = "passed"
        else:
            outcomes[name] = failure_reason(name)
    return outcomes


def failure_reason(name: str) -> str:
    """Return why a test is known to fail; OTHER if it should pass. name: such as test_basic::test_no_ui."""
    return next((reason for pattern, reason in REASONS if re.match(pattern, name)), OTHER)


def outcome_table(outcomes: dict[str, str]) -> Table:
    """Return a table with a row for each file, and the numbers of its outcomes."""
    counts: dict[str, Counter[str]] = {}
    for name, outcome in outcomes.items():
        counts.setdefault(name.partition("::")[0], Counter())[outcome] += 1
    kinds = ["passed", "skipped", *dict.fromkeys(reason for _, reason in REASONS), OTHER]
    table = Table("file", *kinds)
    for file, found in sorted(counts.items()):
        table.add_row(file, *(str(found[kind] or "") for kind in kinds))
    total = sum(counts.values(), Counter())
    table.add_row("all", *(str(total[kind] or "") for kind in kinds))
    return table


if __name__ == "__main__":
    run_command(main)
