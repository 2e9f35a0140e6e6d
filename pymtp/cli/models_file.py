"""The TOML file of `pymtp serve --models`: the models of a server, each with its options.

Options that stand before the first table hold for all models, as do those of the command line. A table is a model,
and what it sets holds, whatever the command line says:

    ctx = 32768

    [coder]
    model = "hf:OWNER/NAME:Q4_K_M"
    temp = 0.6

    [small]
    model = "small.gguf"     # as on the command line, relative paths begin in the working directory
    n_seq_max = 4
    draws = "host"           # an option of LLM that the command line does not have
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pymtp.errors import InvalidRequestError
from pymtp.options import OPTION_NAMES
from pymtp.validation import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_MMPROJ, _MMPROJ_OPTIONS = "mmproj", ("mmproj", "mmproj_auto")


@dataclass(frozen=True)
class FileModel:
    """A model of the file.

    name: the name of its table. model: its file, or its name on the hub.
    params: the values of the command's options, by the names of its parameters. given: those that a user has set.
    keywords: keywords of LLM.
    where: the file and the table, for messages.
    """

    name: str
    model: str
    params: Mapping[str, Any]
    given: frozenset[str]
    keywords: Mapping[str, Any]
    where: str


def read_models(file: Path, context: typer.Context, allowed: Collection[str]) -> list[FileModel]:
    """Read the models of a file.

    context: that of the command, whose options hold for models that do not set them.
    allowed: the parameters of the command that a model may set.

    Raises InvalidRequestError for a file that cannot be read, and for options that are unknown or have a wrong value,
    with their line.
    """
    try:
        text = file.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise InvalidRequestError(f"cannot read the models from {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} is no TOML: {error}") from error
    common = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    models = {name: table for name, table in tables.items() if isinstance(table, dict)}
    if not models:
        raise InvalidRequestError(f'{file} has no model: add a table such as [name] with model = "FILE" in it')
    if "model" in common:
        raise InvalidRequestError(f"{_place(file, text, None, 'model')}: model must stand in a table such as [name]")
    return [_read_table(file, text, name, common, table, context, allowed) for name, table in models.items()]


def _read_table(
    file: Path,
    text: str,
    name: str,
    common: Mapping[str, Any],
    table: Mapping[str, Any],
    context: typer.Context,
    allowed: Collection[str],
) -> FileModel:
    where = f"{file}: [{name}]"
    model = table.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError(f'{where} must have model = "FILE", or "hf:OWNER/NAME"')
    options = _options(context, allowed)
    given = {key: context.params[key] for key in allowed if is_given(context, key)}
    arguments: list[str] = []
    keywords: dict[str, Any] = {}
    set_by_table = {_target(key, options) for key in table}
    for key, value in {**common, **table}.items():
        word = key.replace("-", "_")
        if key == "model" or (key not in table and _target(key, options) in set_by_table):
            continue
        place = _place(file, text, name if key in table else None, key)
        if word in OPTION_NAMES:
            keywords[word] = value
        elif word in options:
            written = _arguments(options[word], word, value, place)
            if not written:  # false or []: what the command line says must not hold
                given.pop(options[word].name, None)
            arguments += written
        else:
            known = word in _options(context, [param.name or "" for param in context.command.params])
            raise InvalidRequestError(
                f"{place}: {shown(key)} holds for the whole server: give it on the command line"
                if known
                else f"{place}: there is no option {shown(key)} of a model"
            )
    try:
        parsed = context.command.make_context("serve", arguments, default_map=given)
    except typer.BadParameter as error:
        raise InvalidRequestError(f"{where}: {error.format_message()}") from error
    names = frozenset(key for key in allowed if key in given or is_given(parsed, key))
    # click has () for an option that may be given several times and was not given; typer has None
    params = {key: None if value == () else value for key, value in parsed.params.items()}
    return FileModel(name, model, params, names | keywords.keys(), keywords, where)


def is_given(context: Any, name: str) -> bool:
    """Return whether a user has set a parameter, on the command line or by a variable of the environment.

    context: that of the command, of typer or of the click that typer uses.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _options(context: typer.Context, allowed: Collection[str]) -> dict[str, Any]:
    """Return the options of the command by their spellings, without dashes in front and with _ between words."""
    return {
        spelling.lstrip("-").replace("-", "_"): param
        for param in context.command.params
        if param.name in allowed
        for spelling in (*param.opts, *param.secondary_opts)
    }


def _target(key: str, options: Mapping[str, Any]) -> str:
    """Return the name of the parameter that a key sets: several keys may set the same."""
    word = key.replace("-", "_")
    name: str = options[word].name if word in options else word
    return _MMPROJ if name in _MMPROJ_OPTIONS else name  # so that a table's no-mmproj replaces a projector for all


def _arguments(option: Any, word: str, value: Any, place: str) -> list[str]:
    """Write an option as arguments of the command line; none for a flag that is off, and for an empty list.

    word: the key, which may be that of a flag's opposite, such as no_mmproj. place: where the value stands.

    Raises InvalidRequestError, with the place, for a value of another kind than the option's.
    """
    on, off = option.opts, option.secondary_opts
    if any(name.lstrip("-").replace("-", "_") == word for name in off):
        on, off = off, on
    long = next(name for name in on if name.startswith("--"))
    if isinstance(value, list) and option.multiple:
        return [argument for each in value for argument in _arguments(option, word, each, place)]
    if isinstance(value, list) or isinstance(value, bool) != option.is_flag:
        expected = "true or false" if option.is_flag else "one value, and neither a list nor true or false"
        raise InvalidRequestError(f"{place}: {long} must have {expected}, not {shown(value)}")
    if isinstance(value, bool):
        return [long] if value else list(off[:1])
    return [f"{long}={json.dumps(value) if isinstance(value, dict) else value}"]


def _place(file: Path, text: str, table: str | None, key: str) -> str:
    """Return the file with the line of a key, if it is found. table: the key's table, None for the first lines."""
    now: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*(.+?)\s*\]", line):
            now = header[1].strip("\"'")
        elif now == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
            return f"{file}, line {number}"
    return f"{file}: [{table}]" if table else str(file)
