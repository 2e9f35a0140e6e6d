"""Tests of examples/: each runs on the shipped model, whatever that writes."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ROOT
from helpers.servers import LONG, Server
from makers.make_mmproj import make_mmproj
from PIL import Image

EXAMPLES = ROOT / "examples"
MAX_LINES = 60

pytestmark = pytest.mark.timeout(420)  # Ray alone takes most of a minute on a busy machine
CITIES = ("Bergen", "Cairo", "Lima")


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs an example in an empty folder, and returns what it prints to stdout."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)

    def main(name: str, *arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return main


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(draft_tokens=3).ready()
    yield server
    server.close()


def test_agent_example_calls_a_tool_with_valid_arguments(server: Server, run: Run) -> None:
    first = run("agent", "--base-url", f"{server.url}/v1").splitlines()[0]
    (call,) = re.findall(r"^weather\((.*)\) -> \w+, \d+ degrees$", first)
    assert json.loads(call)["city"] in CITIES


def test_extraction_example_prints_the_fields_of_its_class(server: Server, run: Run) -> None:
    found = json.loads(run("extraction", "--base-url", f"{server.url}/v1"))
    assert list(found) == ["customer", "order", "reason", "wants"]
    assert found["wants"] in ("replacement", "refund", "answer")


def test_server_of_an_example_starts_although_a_port_is_taken_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        taken.bind(("127.0.0.1", int(command[command.index("--port") + 1])))
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with socket.socket() as taken, import_module("served").served(Namespace(base_url=None, model=None)) as url:
        assert httpx.get(f"{url}/models", timeout=LONG).status_code == 200


def test_batch_example_prints_a_line_for_each_prompt_and_the_same_again(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("import \ndef f(x):\nclass A:\n")
    printed = run("batch", "prompts.txt")
    assert [json.loads(line)["prompt"] for line in printed.splitlines()] == ["import ", "def f(x):", "class A:"]
    assert run("batch", "prompts.txt") == printed


def test_long_document_example_reuses_the_saved_prefix(run: Run, tmp_path: Path) -> None:
    (tmp_path / "document.txt").write_text("\n".join(f"def f{i}(x): return x + {i}" for i in range(60)))
    lines = run("long_document", "document.txt", "--n-ctx", "2048").splitlines()
    (saved,) = re.findall(r"^computed and saved: (\d+) tokens", lines[0])
    for line in lines[2:]:
        cached, total = map(int, re.findall(r"^(\d+) of (\d+) tokens cached", line)[0])
        assert int(saved) - 64 <= cached < total  # the last tokens before a question may merge with its first ones
    assert len(lines) == 4


def test_picture_example_shows_the_model_the_picture(run: Run, tmp_path: Path) -> None:
    projector = make_mmproj("demo", tmp_path / "mmproj.gguf")
    Image.new("RGB", (512, 512)).save(tmp_path / "a.png")
    options = ("--mmproj", projector, "--max-tokens", "8")
    drawn, given = (run("picture", *words, *options) for words in ((), ("a.png",)))
    drawn_tokens, given_tokens = (int(re.findall(r"^(\d+) tokens", each, re.MULTILINE)[0]) for each in (drawn, given))
    assert given_tokens - drawn_tokens == (512 // 32) ** 2 - (128 // 32) ** 2  # a token for 32 x 32 pixels


def test_ray_example_prints_a_text_for_each_row(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "on_ray.py"]
    env = os.environ | {"RAY_ADDRESS": "local"}  # a cluster that ended badly would be waited for
    # each process that Ray starts before it has work would import Ray
    env |= {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=400, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.endswith(("(length)", "(stop)"))]) == 6


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    assert path.stem == "served" or f"    python examples/{path.name}" in text
