"""Claims about `import pymtp`: it brings what every program needs, and the rest comes when it is asked for."""

from __future__ import annotations

import subprocess
import sys

SELDOM = ("asyncio", "jinja2", "importlib.metadata", "rich", "typer", "fastapi", "huggingface_hub", "ray")


def run(code: str) -> str:
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_import_leaves_out_what_few_programs_need() -> None:
    assert run(f"import sys, pymtp; print([name for name in {SELDOM} if name in sys.modules])") == "[]\n"


def test_what_is_imported_later_is_there_all_the_same() -> None:
    assert run("from pymtp import *; import pymtp; print(AsyncLLM is pymtp.AsyncLLM, AsyncLLM.__name__)").split() == [
        "True",
        "AsyncLLM",
    ]
    assert run("import pymtp\ntry: pymtp.Nothing\nexcept AttributeError as error: print(error)").endswith("'Nothing'\n")
