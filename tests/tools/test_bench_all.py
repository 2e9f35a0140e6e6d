"""Tests of all.py: its plan makes each file of benchmarks/, and it measures what is out of date and nothing else."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import figures
import plan
import pytest
import typer
from conftest import ROOT
from helpers.command import parse
from plan import PLAN, Measurement

measure_all = importlib.import_module("all")  # its name is that of a builtin function

MADE = {name: main for main, each in PLAN.items() for name in (main, *each.files)}
MOST_MINUTES = {True: 75, False: 40}  # of all files of times, and of all files of counts


def tool_command(path: str) -> Any:
    """Return the command of a tool, as typer makes it."""
    module = importlib.import_module(Path(path).stem)
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    app = typer.Typer()
    app.command()(module.main)
    return typer.main.get_command(app)


def lines(name: str, demo: Path) -> list[list[str]]:
    """Return the words of each line of a file's command, with the shipped model in place of all others."""
    filled = PLAN[name].command
    for model in plan.MODELS:
        filled = filled.replace(f"{{{model}}}", str(demo))
    return [shlex.split(line.split("> ")[0]) for line in filled.splitlines()]


def test_plan_makes_each_file_of_benchmarks() -> None:
    assert {path.name for path in (ROOT / "benchmarks").iterdir() if path.is_file()} == set(MADE)


@pytest.mark.parametrize("file", MADE)
def test_each_file_of_the_plan_is_quoted_by_a_page(file: str) -> None:
    quotes = re.compile(rf"<!-- {re.escape(file)}: |!\[[^\]]*\]\([^)]*benchmarks/{re.escape(file)}\)")
    assert any(quotes.search(page.read_text(encoding="utf-8")) for page in figures.pages())


@pytest.mark.parametrize("timed", [True, False])
def test_plan_takes_less_than_two_hours(timed: bool) -> None:
    assert sum(each.minutes for each in PLAN.values() if each.timed == timed) <= MOST_MINUTES[timed]


@pytest.mark.parametrize("name", PLAN)
def test_command_of_the_plan_parses_and_writes_its_file(
    name: str, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools/models")
    for program, *words in lines(name, demo):
        words = [word.replace("{out}", str(tmp_path)) for word in words]
        (tmp_path / "mmproj-0.8b.gguf").touch()
        if program == "{pymtp}":
            parse(*words)
        else:
            command = tool_command(words[0])
            arguments = words[1:]
            if arguments[0] in getattr(command, "commands", {}):
                command = command.commands[arguments.pop(0)]
            command.make_context(words[0], arguments)
    assert any(
        out in PLAN[name].command for out in (f"{{out}}/{name}", f"{{out}}/{Path(name).stem}.1.json", "folder {out}")
    )


@pytest.mark.parametrize("name", PLAN)
def test_plan_names_what_is_measured_and_there(name: str) -> None:
    paths = [path.removeprefix(":(exclude)") for path in PLAN[name].measures]
    assert [path for path in paths if not [*ROOT.glob(path)]] == []


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with a source, and a plan with one file that counts how often it was made."""
    command = "echo once >> {out}/../runs; echo '{\"figure\": 1}' > {out}/a.1.json; cat source > {out}/a.svg"
    for name, value in (("ROOT", tmp_path), ("FOLDER", tmp_path / "benchmarks"), ("BUILD", tmp_path / "build")):
        monkeypatch.setattr(measure_all, name, value)
    monkeypatch.setattr(measure_all, "PLAN", {"a.json": Measurement(command, 3, ("source",), files=("a.svg",))})
    monkeypatch.setattr(measure_all, "stale_module", lambda: None)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / ".gitignore").write_text("build\n")
    (tmp_path / "source").write_text("one")
    commit(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path, *words: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for command in [words] if words else [("add", "-A"), (*names, "commit", "-qm", "a")]:
        subprocess.run(["git", *command], cwd=folder, check=True)


def measure(*names: str, **options: bool) -> None:
    measure_all.main(list(names), **{"only_list": False, "check": False, "again": False, "timed": None} | options)


def n_runs(folder: Path) -> int:
    return len((folder / "build/runs").read_text().split())


def test_all_measures_a_file_once_and_again_after_a_commit_to_what_it_measures(repository: Path) -> None:
    measure()
    measure()
    assert n_runs(repository) == 1
    record = json.loads((repository / "benchmarks/a.json").read_text())
    assert record["series"] == [{"figure": 1}]
    head = measure_all.git("rev-parse", "HEAD").stdout.strip()
    assert record["measured"]["commit"] == head
    assert record["measured"]["processor"].keys() == {"name", "cores", "instructions"}
    commit(repository)  # of the results
    (repository / "other").write_text("two")
    commit(repository)
    measure()
    assert n_runs(repository) == 1
    (repository / "source").write_text("two")
    commit(repository)
    assert "1 files changed" in str(measure_all.why_out_of_date("a.json", measure_all.PLAN["a.json"]))
    measure()
    assert n_runs(repository) == 2
    assert (repository / "benchmarks/a.svg").read_text() == "two"


def test_all_does_not_measure_uncommitted_changes(repository: Path) -> None:
    (repository / "source").write_text("two")
    with pytest.raises(typer.BadParameter, match="not committed: source"):
        measure()


def test_failed_measurement_leaves_the_file_and_is_reported(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "benchmarks/a.json").write_text("{}")
    (repository / "benchmarks/a.svg").write_text("old")
    fails = Measurement("echo x > {out}/a.svg; false", 1, ("source",), files=("a.svg",))
    monkeypatch.setitem(measure_all.PLAN, "a.json", fails)
    with pytest.raises(typer.Exit):
        measure()
    assert (repository / "benchmarks/a.svg").read_text() == "old"
    assert "failed: a.json" in capsys.readouterr().err


def test_check_exits_with_1_while_a_file_is_out_of_date(repository: Path) -> None:
    with pytest.raises(typer.Exit) as before:
        measure(check=True)
    measure()
    with pytest.raises(typer.Exit) as after:
        measure(check=True)
    assert (before.value.exit_code, after.value.exit_code) == (1, 0)


def test_list_tells_the_minutes_of_the_last_measurement(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        measure(only_list=True)
    assert "3.0 min  a.json, a.svg missing" in capsys.readouterr().out
    measure()
    record = json.loads((repository / "benchmarks/a.json").read_text())
    record["measured"]["seconds"] = 600
    (repository / "benchmarks/a.json").write_text(json.dumps(record))
    with pytest.raises(typer.Exit):
        measure(only_list=True)
    assert "10.0 min  up to date" in capsys.readouterr().out


def test_times_and_counts_are_measured_apart(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Measurement("echo '{}' > {out}/b.json", 1, ("source",), timed=False)
    monkeypatch.setitem(measure_all.PLAN, "b.json", counted)
    measure(timed=False)
    made = [path.name for path in (repository / "benchmarks").iterdir()]
    assert made == ["b.json"]
    measure(timed=True)
    assert (repository / "benchmarks/a.json").is_file()


def test_unknown_file_is_refused(repository: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"does not make b\.json"):
        measure("b.json")


@pytest.mark.parametrize(("date", "stale"), [("2001-01-01", False), ("2037-01-01", True)])
def test_module_older_than_a_commit_to_its_sources_is_not_measured(
    date: str, stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_all, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"{date}T00:00:00")
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/a.patch").touch()
    commit(tmp_path, "init", "-q")
    commit(tmp_path)
    assert ("is older than commit" in str(measure_all.stale_module())) is stale
