"""Tests of the docstrings, from which the reference of the API is made."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest
from conftest import ROOT
from helpers.documents import blocks

import pymtp
import pymtp.chat
import pymtp.ray

MODULES = {"pymtp": pymtp, "pymtp.chat": pymtp.chat}
PUBLIC: list[str] = [
    f"{prefix}.{name}"
    for prefix, module in MODULES.items()
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value)
]
PUBLIC += [f"pymtp.ray.{name}" for name in pymtp.ray.__all__]  # not yet imported: Ray Serve takes a second to import
PUBLIC += ["pymtp.context.Context", "pymtp.options.LLMOptions"]


def own(value: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class has from classes of pymtp."""
    for base in value.__mro__:
        if base.__module__.startswith("pymtp."):
            for name, member in vars(base).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
                if not name.startswith("_") and inspect.isfunction(inspect.unwrap(function)):
                    yield name, function


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_and_its_methods_have_docstrings(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert len(value.__doc__ or "") > 10
    assert not (value.__doc__ or "").startswith(f"{value.__name__}(")  # dataclass writes such a line itself
    if inspect.isclass(value):
        missing = {
            method for method, function in own(value) if not getattr(value, method).__doc__ and not function.__doc__
        }
        assert missing == set()


def test_reference_of_the_api_has_every_public_name() -> None:
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    listed = {line.removeprefix("::: ").strip() for line in text.splitlines() if line.startswith("::: ")}
    errors = {f"pymtp.{name}" for name in pymtp.__all__ if name.endswith("Error")}
    names = {name for name in PUBLIC if not name.startswith("pymtp.chat.")} - errors
    assert names <= listed
    assert blocks(ROOT / "docs/reference/api.md") == []
