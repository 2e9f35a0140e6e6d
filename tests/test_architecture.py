"""Claims about the floors of pymtp: a file uses what stands below it, and no two files import each other."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pymtp"

# From the ground up. A package stands for all its files; a name may import its own floor and those below.
FLOORS = (
    ("errors", "values", "paths", "cores", "cpu_quota", "forks", "normalization", "native"),
    (
        *(
            "exclusive",
            "build",
            "hub",
            "numa",
            "placing_values",
            "model_options",
            "model_files",
            "rope_options",
            "model",
            "sampling",
            "sampling_defaults",
            "chat",
            "text",
        ),
        *("grammar", "schema", "schema_keywords", "weaker_schemas", "rules", "integers", "pattern"),
    ),
    (
        "answers",
        "chat_prompt",
        "context_options",
        "host_memory",
        "memory",
        "operations",
        "counters",
        "inspected",
        "saving",
    ),
    (
        *("context", "fit", "llm_options", "tensor_file", "prefix_file", "prefix_writer", "depth", "first_costs"),
        *("stats", "thinking"),
    ),
    ("engine",),
    ("turns", "stream", "prefix_prompt", "llm_prefixes", "llm_hub", "collected", "llm", "once"),
    ("async_driver", "async_llm", "loading", "asks"),
    ("openai_format", "openai_answers"),
    ("batch",),
    ("__init__", "bench", "ray", "server"),
    ("cli",),
)
# Who may hold a C pointer.
BORDER = {"build", "depth", "memory", "model", "model_files", "model_options", "numa", "operations", "placing_values"}
BORDER |= {"rope_options", "sampling"}
BORDER |= {"context", "context_options", "inspected", "saving"}  # all a Context


def modules() -> dict[str, Path]:
    """The files by dotted name within pymtp; a package by its own name, pymtp itself as __init__."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


def imports(path: Path, known: set[str]) -> set[str]:
    """The files of pymtp that a file names in imports, wherever they stand: within functions, for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            while package == "pymtp" and parts and ".".join(parts) not in known:
                parts.pop()
            if package == "pymtp":
                found.add(".".join(parts) or "__init__")
    return found


def graph() -> dict[str, set[str]]:
    known = set(modules())
    # the compiled module is no file of ours: native's import of it reads as one of itself
    return {name: imports(path, known) - {name} for name, path in modules().items()}


def floor(name: str) -> int:
    top = name.split(".")[0]
    assert top in set(chain(*FLOORS)), f"pymtp/{top} stands on no floor: give it one in FLOORS"
    return next(i for i, names in enumerate(FLOORS) if top in names)


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("import pymtp.a\nfrom pymtp import b, LLM\ndef f():\n    from pymtp.c import d, e\n")
    assert imports(path, {"a", "b", "c", "c.d"}) == {"a", "b", "__init__", "c.d", "c"}


def test_no_file_imports_a_higher_floor() -> None:
    upwards = [
        f"{name} imports {used}" for name, all_used in graph().items() for used in all_used if floor(used) > floor(name)
    ]
    assert upwards == []


def test_no_files_import_each_other() -> None:
    TopologicalSorter(graph()).prepare()  # raises CycleError, which names them


def test_a_ring_of_imports_is_seen() -> None:
    with pytest.raises(ValueError, match="cycle"):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_c_pointers_stay_on_the_ground_floors() -> None:
    users = {name for name, used in graph().items() if "native" in used and not name.startswith("native")}
    assert users == BORDER
