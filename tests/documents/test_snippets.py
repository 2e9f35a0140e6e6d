"""Tests of the blocks of code in README.md and docs/: each runs, in the order of its page, with the shipped model.

A page's blocks share a folder and, in Python, their names. Files that they name are stand-ins: any GGUF file is the
shipped model, and texts and pictures are made. Contexts are cut to 1,024 tokens. A block with a `title` is a file of
the folder. A block that cannot run says why in a comment before it: `<!-- not run: needs a GPU -->`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, which
from typing import Any

import pytest
import yaml
from conftest import ROOT
from helpers import command_server
from helpers.documents import PAGES, Block, blocks
from helpers.picture_files import picture
from helpers.servers import Server
from makers.head_file import write_pair
from makers.lora import make_delta, write_adapter
from makers.make_mmproj import make_mmproj

from pymtp import LLM
from pymtp.context import options as context_options
from pymtp.hub import from_pretrained
from pymtp.hub.model_download import LocalFiles

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.timeout(400)  # a page has several blocks, each of which may take 100 seconds
SHELL = ("sh", "bash")
DATA = {"json": json.loads, "toml": tomllib.loads, "yaml": lambda text: list(yaml.safe_load_all(text))}
PICTURES = ("text", "mermaid")  # outputs, and drawings
N_CTX = 1024
REFUSALS_FAIL = 'curl() { command curl -f "$@"; }\n'
# The server of a page has ended by itself (command_server.py), and its process id may be another's.
KILL = "kill() { [[ $1 =~ ^[0-9]+$ ]]; }\n"
TEXT = "The manual says how to install the pump, and how to clean it.\n" * 8
ALL = [block for page in PAGES for block in blocks(page)]
RUN = [page for page in PAGES if any(block.reason is None and block.language not in PICTURES for block in blocks(page))]


def place(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with the program `pymtp`, whose calls are forks of one process."""
    folder = tmp_path_factory.mktemp("bin")
    script, address = command_server.__file__, folder / "socket"
    process = subprocess.Popen([sys.executable, script, str(address)], stdin=subprocess.DEVNULL)
    (folder / "pymtp").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} {address} "$@"\n')
    (folder / "pymtp").chmod(0o755)
    end = time.monotonic() + 60
    while not address.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    yield folder
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server().ready()
    yield server
    server.close()


@pytest.fixture(scope="module")
def stand_ins(demo: Path, demo_f32: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a projector, a head and an adapter for the shipped model."""
    folder = tmp_path_factory.mktemp("models")
    _, head = write_pair(demo, folder)
    lora = write_adapter(folder / "lora.gguf", make_delta(demo_f32, ["blk.0.ffn_up.weight"], seed=0), alpha=1.0)
    return {"model": demo, "mmproj": make_mmproj("demo", folder / "mmproj.gguf"), "head": head, "lora": lora}


def fill(folder: Path, code: str, files: dict[str, Path]) -> None:
    """Put a stand-in for each file that the blocks of a page name into the page's folder."""
    for name in {*re.findall(r"(?<![\w./:*-])[\w.-][\w./-]*\.gguf", code), "MODEL"}:
        use = re.search(rf"\b(mmproj|head|lora)[a-z-]*[= ]\"?{re.escape(name)}", code)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copyfile(files[use[1] if use else "model"], folder / name)  # a link would let a block write the model
    for name in re.findall(r"(?<![\w./-])[\w-]+\.(?:txt|png)\b", code):
        (folder / name).write_bytes(picture() if name.endswith("png") else TEXT.encode())
    if "python tools/" in code:
        for name in ("tools", "tests"):
            (folder / name).symlink_to(ROOT / name)


def adapted(code: str) -> str:
    """Return code with small contexts and short trials."""
    code = code.replace("pymtp tap ", "pymtp tap --tokens 8 ")
    return re.sub(
        r"(\bn_ctx=|^ctx = |(?:--ctx|-c) )(\d+)",
        lambda match: f"{match[1]}{min(int(match[2]), N_CTX)}",
        code,
        flags=re.M,
    )


def run_shell(block: Block, code: str, folder: Path, commands: Path) -> None:
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", REFUSALS_FAIL + KILL + code],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{place(block)}\n{code}\n{done.stdout}{done.stderr}"


def run_python(block: Block, code: str, names: dict[str, Any]) -> None:
    # the lines of a traceback are those of the page
    exec(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_code_blocks_of_a_page_run(
    page: Path,
    tmp_path: Path,
    commands: Path,
    stand_ins: dict[str, Path],
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(from_pretrained, "download_model", lambda *_, **__: LocalFiles(demo))
    monkeypatch.setattr(context_options, "default_threads", lambda: 1)
    fill(tmp_path, "\n".join(block.code for block in blocks(page)), stand_ins)
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(adapted(block.code), encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is not None or ("curl " in block.code and which("curl") is None):
            continue
        code = adapted(block.code)
        if ":8080" in code:
            code = code.replace(":8080", f":{request.getfixturevalue('server').port}")
        if block.language in SHELL:
            run_shell(block, code, tmp_path, commands)
        elif block.language == "python":
            run_python(block, code, names)
        elif block.language in DATA:
            for text in code.splitlines() if (block.file or "").endswith(".jsonl") else [code]:
                assert DATA[block.language](text), place(block)
    for value in names.values():
        if isinstance(value, LLM):
            value.close()


def test_code_block_either_runs_or_says_why_not() -> None:
    known = {*SHELL, *DATA, *PICTURES, "python"}
    assert [place(block) for block in ALL if block.reason is None and block.language not in known] == []
    assert [
        place(block) for block in ALL if block.reason and not re.match(r"(needs|takes|changes) ", block.reason)
    ] == []
    reasons = Counter(block.reason for block in ALL if block.reason)
    programs = [block for block in ALL if block.reason is None and block.language not in PICTURES]
    print(len(programs), "blocks run;", *(f"{n} not: {reason};" for reason, n in reasons.most_common()))
    assert len(programs) > 30


def test_scripts_of_blocks_that_cannot_run_exist() -> None:
    named = {name for block in ALL for name in re.findall(r"(?:tools|tests|vendor)/[\w/]+\.py", block.code)}
    assert len(named) > 5
    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_blocks_of_a_page_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "One:\n\n    pymtp info\n\n    pymtp tap\n\n<!-- not run: needs a GPU -->\n```sh\nx\n```\n\n"
        '1. item\n\n   ```json title="a.json"\n   {"a":\n      1}\n   ```\n\n```\nnone\n```\n'
    )
    assert [(block.line, block.language, block.code, block.file, block.reason) for block in blocks(page)] == [
        (3, "sh", "pymtp info\n\npymtp tap\n", None, None),
        (9, "sh", "x\n", None, "needs a GPU"),
        (15, "json", '{"a":\n   1}\n', "a.json", None),
        (20, "none", "none\n", None, None),
    ]
