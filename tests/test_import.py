"""Tests of `import pymtp`: it loads only modules that every program needs, and the others at their first use."""

from __future__ import annotations

import subprocess
import sys

SELDOM = ("asyncio", "jinja2", "PIL", "importlib.metadata", "rich", "typer", "fastapi", "huggingface_hub", "ray")


def run(code: str) -> str:
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_import_does_not_load_rarely_used_modules() -> None:
    assert run(f"import sys, pymtp; print([name for name in {SELDOM} if name in sys.modules])") == "[]\n"


def test_lazily_imported_attributes_of_pymtp_are_available() -> None:
    assert run("from pymtp import *; import pymtp; print(AsyncLLM is pymtp.AsyncLLM, AsyncLLM.__name__)").split() == [
        "True",
        "AsyncLLM",
    ]
    assert run("import pymtp\ntry: pymtp.Nothing\nexcept AttributeError as error: print(error)").endswith("'Nothing'\n")


def test_module_runs_as_the_program_of_the_same_name_and_tells_its_version() -> None:
    program = subprocess.run(
        [sys.executable, "-I", "-m", "pymtp", "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert run("import pymtp; print(pymtp.__version__)").strip() in program
