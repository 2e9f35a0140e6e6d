"""Text pairs made from the source and documentation of the running Python's library: the same ones in each run.

Each kind repeats its prompt in another way:

rewrite: the prompt holds a module, the text is its next release. Python's library comes in one release only, so the
    older one is made from it, by edits of the kind that a developer undoes or makes between two releases.
quote: the prompt holds the documentation of a module, the text quotes it, with a few words between the quotes.
json: the prompt holds records as JSON, the text the same records with renamed, kept and computed fields.
tools: the prompt holds tools and the lines that a search found, the text calls a tool for each line.
prose: the prompt and the text are different paragraphs of documentation, which repeat no long piece.
"""

from __future__ import annotations

import ast
import json
import mimetypes
import re
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from encodings.aliases import aliases
from html.entities import name2codepoint
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

from pymtp.bench.older_release import older_release
from pymtp.bench.text_pairs import TextPair
from pymtp.errors import InvalidRequestError

LIBRARY = "library"  # the name of these pairs, in place of a file
VARIANTS = 4  # pairs of each kind, of prose twice as many
MIXED = ("rewrite", "prose", "quote", "prose", "json", "prose", "tools", "prose")  # half of them repeat their prompts
_MAX_SOURCE = 3600  # characters of a module in a pair
_N_CALLS, _N_RECORDS, _N_QUOTES = 12, 18, 14
_N_PARAGRAPHS = 8  # in each prompt and each text of prose

_REWRITTEN = ("bisect", "fnmatch", "linecache", "getpass")
_QUOTED = ("configparser", "socketserver", "statistics", "fileinput")
_PROSE = "argparse ast difflib functools inspect os pdb pickle random shutil smtplib socket ssl subprocess threading"
_PROSE += " typing doctest turtle tempfile uuid optparse pydoc site timeit traceback wave platform mailbox locale cmd"


def library_pairs() -> list[TextPair]:
    """Make VARIANTS pairs of each kind, and twice as many of prose.

    Raises InvalidRequestError if the library's source files cannot be read.
    """
    makers: dict[str, Callable[[int], tuple[str, str]]] = {
        "rewrite": _rewrite,
        "quote": _quote,
        "json": _json,
        "tools": _tools,
    }
    repeating = [TextPair(kind, *make(variant)) for kind, make in makers.items() for variant in range(VARIANTS)]
    return [*repeating, *(TextPair("prose", *parts) for parts in _prose(2 * VARIANTS))]


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _source(module: str) -> str:
    try:
        return (_library() / f"{module}.py").read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"texts cannot be made from the library of this Python, {module}.py cannot be read: give texts in a file"
        ) from error


# ── rewrite ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rewrite(variant: int) -> tuple[str, str]:
    module = _REWRITTEN[variant]
    new = _first_definitions(_source(module))
    prompt = (
        f"This is {module}.py as it was:\n\n```python\n{older_release(new, Random(module))}```\n\n"
        f"Write {module}.py again: use the longer names, restore what the branches and comments say, and keep the rest."
        "\n\n```python\n"
    )
    return prompt, f"{new}```\n"


def _first_definitions(source: str) -> str:
    """Return the first statements of a module, up to _MAX_SOURCE characters."""
    lines, end = source.splitlines(keepends=True), 0
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        if end and sum(map(len, lines[: statement.end_lineno])) > _MAX_SOURCE:
            break
        end = statement.end_lineno
    return "".join(lines[:end])


# ── quote ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_BETWEEN = (
    "The text says: “{}”\n\n",
    "It goes on, further down: “{}”\n\n",
    "On another point one reads “{}”\n\n",
    "This is also of interest: “{}”\n\n",
    "And elsewhere: “{}” That is clear enough.\n\n",
)


def _quote(variant: int) -> tuple[str, str]:
    module = _QUOTED[variant]
    document = ast.get_docstring(ast.parse(_source(module))) or ""
    sentences = [sentence for sentence in re.split(r"(?<=[.:])\s+", document) if len(sentence) > 40]
    random = Random(module)
    starts = sorted(random.sample(range(len(sentences) - 1), min(_N_QUOTES, len(sentences) - 1)))
    random.shuffle(starts)
    quotes = []
    for start in starts:
        first, last = sentences[start], sentences[start + 1]
        begin = document.index(first)
        quotes.append(document[begin : document.index(last, begin) + len(last)])
    text = "".join(random.choice(_BETWEEN).format(quote) for quote in quotes)
    return f"{document}\n\nQuote what this text says, word for word, piece by piece.\n\n", text[:_MAX_SOURCE]


# ── json ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _json(variant: int) -> tuple[str, str]:
    records = list(_RECORDS[variant]())
    chosen = Random(variant).sample(records, _N_RECORDS)
    before, after = (json.dumps([pair[i] for pair in chosen], indent=2, ensure_ascii=False) for i in range(2))
    names = ", ".join(chosen[0][1])
    return f"```json\n{before}\n```\n\nGive each record these fields: {names}.\n\n```json\n", f"{after}\n```\n"


def _statuses() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    classes = {1: "informational", 2: "success", 3: "redirection", 4: "client error", 5: "server error"}
    for status in HTTPStatus:
        record = {"code": status.value, "name": status.name, "phrase": status.phrase, "text": status.description}
        kind = classes[status.value // 100]
        yield record, {"status": status.value, "title": status.phrase, "class": kind, "description": status.description}


def _media_types() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for suffix, kind in sorted(mimetypes.MimeTypes(()).types_map[True].items()):
        major, _, minor = kind.partition("/")
        yield {"ext": suffix, "type": kind}, {"suffix": suffix, "media_type": kind, "family": major, "format": minor}


def _characters() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for entity, code in sorted(name2codepoint.items()):
        name = unicodedata.name(chr(code), "")
        record = {"entity": entity, "code": code, "unicode_name": name, "category": unicodedata.category(chr(code))}
        yield record, {"symbol": f"&{entity};", "hex": f"U+{code:04X}", "unicode_name": name, "code": code}


def _codecs() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for codec in sorted(set(aliases.values())):
        names = sorted(alias for alias, other in aliases.items() if other == codec)
        yield {"codec": codec, "aliases": names}, {"id": codec, "n_names": len(names), "names": names, "open": True}


_RECORDS = (_statuses, _media_types, _characters, _codecs)

# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_SEARCHES = (
    ("raise ValueError(", "raise InvalidValueError("),
    ("isinstance(", "is_instance("),
    ("warnings.warn(", "deprecations.warn("),
    (" = open(", " = open_text("),
)


def _function(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _tools(variant: int) -> tuple[str, str]:
    old, new = _SEARCHES[variant]
    file = {"path": "The path of the file, relative to the project."}
    tools = [
        _function("search", "Find the lines that contain a text.", pattern="The text to find."),
        _function("read_file", "Read a file.", **file),
        _function("replace_line", "Replace a line.", **file, old="The line as it is.", new="The line as it will be."),
    ]
    found = Random(variant).sample(list(_lines_with(old)), _N_CALLS)
    listing = "\n".join(f"{path}:{number}:{line}" for path, number, line in found)
    prompt = "\n".join(
        [
            "<|im_start|>system\n# Tools\n\n<tools>",
            *map(json.dumps, tools),
            f"</tools><|im_end|>\n<|im_start|>user\nUse `{new}` in place of `{old}`.<|im_end|>",
            f"<|im_start|>assistant\n{_call('search', pattern=old)}<|im_end|>",
            f"<|im_start|>user\n<tool_response>\n{listing}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ]
    )
    calls = (_call("replace_line", path=path, old=line, new=line.replace(old, new)) for path, _, line in found)
    return prompt, "\n".join(calls) + "<|im_end|>"


def _call(name: str, **arguments: str) -> str:
    """Return a tool call as Qwen's models write it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _lines_with(part: str) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of the library's top folder with a text: file, number and line."""
    for file in sorted(_library().glob("*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            if part in line and len(line) < 90:
                yield f"Lib/{file.name}", number, line


# ── prose ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prose(n: int) -> Iterator[tuple[str, str]]:
    """Yield n pairs of prose, of which no two share a paragraph."""
    paragraphs = list(_paragraphs())
    Random(0).shuffle(paragraphs)
    for i in range(0, 2 * n * _N_PARAGRAPHS, 2 * _N_PARAGRAPHS):
        prompt, text = (paragraphs[start : start + _N_PARAGRAPHS] for start in (i, i + _N_PARAGRAPHS))
        yield "\n\n".join([*prompt, ""]), "\n\n".join([*text, ""])


def _paragraphs() -> Iterator[str]:
    """Yield paragraphs of the library's documentation, of which no two share eight words in a row."""
    seen: set[tuple[str, ...]] = set()
    for module in _PROSE.split():
        for node in ast.walk(ast.parse(_source(module))):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                words = paragraph.split()
                rows = {tuple(words[i : i + 8]) for i in range(len(words) - 7)}
                is_prose = len(words) > 30 and not re.search(r"[>={}|]|^\s|  ", paragraph)
                if is_prose and not rows & seen:
                    seen |= rows
                    yield paragraph
