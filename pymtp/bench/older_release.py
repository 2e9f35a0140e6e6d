"""An older release of a module, made from the module by edits that a developer makes between two releases."""

from __future__ import annotations

import ast
import keyword
import re
from random import Random


def older_release(source: str, random: Random) -> str:
    """Return a module as an older release might have been: it lacks branches, comments and parts of docstrings.

    It also has other names, other imports' order, and a constant in place of a parameter.
    """
    lines = source.splitlines(keepends=True)
    edits: dict[int, tuple[int, list[str]]] = {}  # by first line: the line after the last one, and the new lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            _edit_function(node, lines, edits, random)
    for i, line in enumerate(lines):
        if line.lstrip().startswith("#") and random.random() < 0.3:
            edits.setdefault(i, (i + 1, []))
    imports = [i for i, line in enumerate(lines) if re.match(r"(import|from) \w+", line) and "(" not in line]
    for i, line in zip(imports, sorted((lines[i] for i in imports), reverse=True), strict=True):
        edits[i] = i + 1, [line]
    end = len(lines)
    for start, (stop, new) in sorted(edits.items(), reverse=True):
        if stop <= end:  # else the piece surrounds another one
            lines[start:stop], end = new, start
    return _rename("".join(lines), random)


def _edit_function(
    node: ast.FunctionDef, lines: list[str], edits: dict[int, tuple[int, list[str]]], random: Random
) -> None:
    docstring = node.body[0]
    if ast.get_docstring(node) and docstring.end_lineno != docstring.lineno and random.random() < 0.5:
        first = lines[docstring.lineno - 1].rstrip()
        quotes = first.lstrip()[:3]
        if quotes == '"""' and first.strip() != quotes:  # only the first line of the docstring
            edits[docstring.lineno - 1] = docstring.end_lineno or 0, [f"{first}{quotes}\n"]
    for body in [inner.body for inner in ast.walk(node) if isinstance(inner, (ast.FunctionDef, ast.For, ast.While))]:
        for statement in body[:-1]:
            is_branch = isinstance(statement, ast.If) and not statement.orelse
            if is_branch and statement.end_lineno and random.random() < 0.3:
                edits[statement.lineno - 1] = statement.end_lineno, []
    header = lines[node.lineno - 1]
    parameter = re.fullmatch(r"( *)def \w+\([^*]*?(, (\w+)=(\w+))\):\n", header)
    if parameter and random.random() < 0.5:
        indent, text, name, value = parameter.groups()
        edits[node.lineno - 1] = node.lineno, [header.replace(text, ""), f"{indent}    {name} = {value}\n"]


def _rename(source: str, random: Random) -> str:
    """Give a function another name in all places, and a parameter of two functions another name within each."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    lines = source.splitlines(keepends=True)
    with_parameters = [node for node in functions if _parameters(node)]
    for node in random.sample(with_parameters, min(2, len(with_parameters))):
        body = slice(node.lineno - 1, node.end_lineno)
        lines[body] = _with_other_name("".join(lines[body]), random.choice(_parameters(node))).splitlines(keepends=True)
    names = sorted({node.name for node in functions if "__" not in node.name})
    source = "".join(lines)
    return _with_other_name(source, random.choice(names)) if names else source


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]


def _with_other_name(source: str, name: str) -> str:
    """Replace a name by a shorter or longer one, unless that is in the source already."""
    new = name[:3] if len(name) > 5 else f"{name}_value"
    if keyword.iskeyword(new) or re.search(rf"\b{new}\b", source):
        return source
    return re.sub(rf"\b{name}\b", new, source)
