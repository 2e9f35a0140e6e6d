"""Tests of the names of options in errors of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer.main

import pymtp
from pymtp.cli.app import app
from pymtp.cli.arguments import spellings
from pymtp.cli.command import BEFORE_NAME


def names(command: object) -> Iterator[str]:
    """Yield the names of the parameters of a command and of its subcommands."""
    yield from (param.name for param in spellings(getattr(command, "params", [])).values())
    for subcommand in getattr(command, "commands", {}).values():
        yield from names(subcommand)


def messages(source: str) -> Iterator[str]:
    """Yield the texts of the errors that a module raises, with {} for values."""
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Raise) and isinstance(call.exc, ast.Call) and call.exc.args):
            continue
        for node in ast.walk(call.exc.args[0]):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_errors_name_arguments_only_where_the_command_line_finds_them() -> None:
    options = "|".join(sorted({*names(typer.main.get_command(app))}, key=len, reverse=True))
    named = re.compile(rf"(?<![\w.'\"])({options})=(?=[^\s…,])")
    found = re.compile(rf"(?:{BEFORE_NAME})({options})=")
    files = (Path(pymtp.__file__).parent).rglob("*.py")
    texts = [text for file in files for text in messages(file.read_text(encoding="utf-8"))]
    assert sum(len(found.findall(text)) for text in texts) > 30
    assert [text for text in texts if len(named.findall(text)) > len(found.findall(text))] == []
