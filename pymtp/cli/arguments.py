"""Arguments of a command before they are parsed: llama.cpp's options, and options that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pymtp.cli.llama_names import IGNORED, REFUSED, TRANSLATED
from pymtp.cli.model_file import show_note
from pymtp.errors import InvalidRequestError
from pymtp.validation import shown

PROMPT = ("-p", "--prompt")  # llama.cpp's option for what is an argument here


def spellings(params: Iterable[Any]) -> dict[str, Any]:
    """Return the options of a command by all their names. params: typer's parameters."""
    return {
        name: param
        for param in params
        for name in (*param.opts, *param.secondary_opts)
        if param.param_type_name == "option"
    }


def read_arguments(
    arguments: Sequence[str],
    options: Mapping[str, Any],
    others: Mapping[str, str],
    *,
    takes_prompt: bool,
) -> list[str]:
    """Return the arguments without llama.cpp's options that have no effect, for each of which a note is shown.

    options: those of the command, by name. others: names of options of other commands, with the command of each.
    takes_prompt: whether the command has a prompt as its argument.

    Raises InvalidRequestError for an option that the command does not have.
    """
    result: list[str] = []
    prompts: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            result += [word, *rest]
            break
        name, equals, value = word.partition("=")
        if not name.startswith("-") or name == "-":
            result.append(word)
        elif name in options:
            result += _known(options[name], word, equals, rest)
        elif name in PROMPT and takes_prompt:
            prompts.append(value if equals else _value(name, rest))
        elif name in TRANSLATED and _takes(TRANSLATED[name], options):
            option, form = TRANSLATED[name]
            given = "" if "{}" not in form else value if equals else _value(name, rest)
            result.append(f"{option}={form.format(given)}")
        elif name in IGNORED and (IGNORED[name].needs is None or IGNORED[name].needs in options):
            _ignore(name, value if equals else None, rest)
        elif name in REFUSED:
            raise InvalidRequestError(f"there is no option {name}: {REFUSED[name]}")
        elif _is_short(name, options):
            result.append(word)
        else:
            raise InvalidRequestError(_unknown(name, options, others))
    if prompts:
        result += [*([] if "--" in result else ["--"]), *prompts]
    return result


def _takes(translated: tuple[str, str], options: Mapping[str, Any]) -> bool:
    """Return whether a command has the option that a name is translated to, with a value."""
    option = options.get(translated[0])
    return option is not None and not getattr(option, "is_flag", False)


def _is_short(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a word is a short option with its value, such as -n64."""
    short = options.get(name[:2])
    return short is not None and not getattr(short, "is_flag", False) and f"-{name}" not in options


def _known(param: Any, word: str, equals: str, rest: list[str]) -> list[str]:
    """Take an option, and its value if it has one, from the arguments."""
    if equals or getattr(param, "is_flag", False) or getattr(param, "count", False):
        return [word]
    if param.name == "flash_attn" and (not rest or rest[0].startswith("-")):
        return [word, "on"]  # older versions of llama.cpp have -fa without a value
    taken = [rest.pop(0)] if rest else []
    return [word, *taken]


def _value(name: str, rest: list[str]) -> str:
    if not rest:
        raise InvalidRequestError(f"{name} needs a value")
    return rest.pop(0)


def _ignore(name: str, value: str | None, rest: list[str]) -> None:
    """Take an option without an effect, and its value. Raises InvalidRequestError if the value has one."""
    option = IGNORED[name]
    if option.n_values and value is None:
        value = _value(name, rest)
    if option.values is not None and not set((value or "").split(",")) <= set(option.values):
        raise InvalidRequestError(f"there is no option {name} {shown(value)}: {option.otherwise}")
    show_note(f"{name} has no effect: {option.reason}")


def _unknown(name: str, options: Mapping[str, Any], others: Mapping[str, str]) -> str:
    if name in ("-o", "--output", "--format") and "--json" in options:
        return f"there is no option {name}: --json prints JSON"
    if name in others:
        return f"there is no option {name}: it is an option of {others[name]}"
    long = [option.lstrip("-") for option in options if option.startswith("--")]
    near = get_close_matches(name.lstrip("-"), long, n=1)
    return f"there is no option {shown(name)}" + (
        f": the nearest is --{near[0]}" if near else ", --help lists the options"
    )
