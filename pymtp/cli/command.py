"""The classes of all commands: their help pages, and the arguments that they take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from pymtp.cli.arguments import read_arguments, spellings
from pymtp.cli.help_pages import PAGES, TOPICS, HelpPage
from pymtp.errors import InvalidRequestError

MORE = "More options"
RANGE = r"(?:[\d.-]+<=?)?x(?:[<>]=?[\d.-]+)?(?=\])"  # typer's help shows the range of a number so
MINUS_ONE = ("max_tokens", "seed", "n_threads")  # arguments whose None is -1 on the command line
NAME = re.compile(r"--?[\w-]+")
# where an error names an argument, as in "the n_ctx=1 tokens": elsewhere it quotes a path or a text
BEFORE_WORDS = (":", ",", "the", "of", "with", "and", "or", "not", "than", "needs", "need", "use", "give", "by", "to")
BEFORE_NAME = "|".join(["^", *(f"(?<={word} )" for word in BEFORE_WORDS)])


class Command(TyperCommand):
    """A command whose help page shows the common options first, and which takes options of llama.cpp."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a line, and notes and errors would disturb it
            return list(super().parse_args(ctx, args))
        params = self.get_params(ctx)
        takes_prompt = any(param.name == "prompt" and param.param_type_name == "argument" for param in params)
        others = _options_of_all(ctx.find_root().command)
        args = read_arguments(args, spellings(params), others, takes_prompt=takes_prompt)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Its InvalidRequestError names options as the command line does: "n_ctx=1" → "--ctx 1"."""
        try:
            return super().invoke(ctx)
        except InvalidRequestError as error:
            names = {param.name: _shown_names(param.opts)[-1] for param in spellings(self.params).values()}
            given = [str(value) for value in ctx.params.values() if isinstance(value, str | Path)]
            text = _with_options(str(error), names, given)
            if error.param in names:  # such as for an API key, without its value
                text = re.sub(rf"(^|: ){error.param} ", rf"\1{names[error.param]} ", text, count=1)
            if error.param in MINUS_ONE:
                text = text.replace("or None", "or -1")
            error.args = (text,)
            raise

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_intro(self, _page(ctx), formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = [param for param in self.get_params(ctx) if param.get_help_record(ctx) is not None]
        for title, chosen in _sections(params, _page(ctx)):
            with formatter.section(title):
                formatter.write_dl([_record(param, ctx) for param in chosen])
        if further := [record for param in params if (record := _further_names(param))]:
            with formatter.section("Other names of options"):
                formatter.write_dl(further)
        if more := _paragraphs(self)[1:]:
            formatter.write_paragraph()
            for paragraph in more:
                formatter.write_text(paragraph)


class Group(TyperGroup):
    """A command with subcommands, whose help page has an example."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_intro(self, _page(ctx), formatter)


def _with_options(message: str, names: dict[str, str], given: Sequence[str]) -> str:
    """Return a message with names of options in place of those of arguments: "n_ctx=1" → "--ctx 1".

    given: texts that were given on the command line. What the message quotes of them stays as it is.
    """
    quoted = [match.span() for text in given if text for match in re.finditer(re.escape(text), message)]

    def rename(match: re.Match[str]) -> str:
        if any(begin <= match.start() and match.end() <= end for begin, end in quoted):
            return match[0]
        return f"{names[match[1]]} "

    return re.sub(rf"(?:{BEFORE_NAME})({'|'.join(names)})=(?=[^\s…])", rename, message)


def _page(ctx: Any) -> HelpPage:
    """Return the help page of the command of a context."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return PAGES[" ".join(words)]


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")]


def _write_intro(command: Any, page: HelpPage, formatter: Any) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(_paragraphs(command)[0])
        formatter.write_text(f"Example: {page.example}")


def _sections(params: Sequence[Any], page: HelpPage) -> Iterator[tuple[str, list[Any]]]:
    """Yield the title of each section of options with its parameters. The first section has the common ones."""
    by_name = {param.name: param for param in params}
    common = [by_name[name] for name in page.common]
    rest = [param for param in params if param not in common]
    yield "Common options", [param for param in params if param.param_type_name == "argument"] + common
    rest = [param for param in rest if param.param_type_name == "option"]
    topics = {name: title for title, names in TOPICS.items() for name in names}
    for title in (*TOPICS, MORE):
        if chosen := [param for param in rest if topics.get(param.name, MORE) == title]:
            yield title, chosen


def _shown_names(names: Sequence[str]) -> list[str]:
    """Return the short name and the first long name of an option."""
    short = [name for name in names if not name.startswith("--")]
    long = [name for name in names if name.startswith("--")]
    return [*short[:1], *long[:1]]


def _record(param: Any, ctx: Any) -> tuple[str, str]:
    """Return the names and the help of a parameter, as a help page shows them."""
    names, text = param.get_help_record(ctx)
    text = re.sub(r"\[default: \((.*?)\)", r"[default: \1", text.replace("  [", " ["))
    text = re.sub(rf" \[{RANGE}\]", "", re.sub(rf"; {RANGE}", "", text))
    if param.param_type_name == "argument":
        return names, text
    kind = "" if getattr(param, "is_flag", False) else NAME.sub("", names).strip(" ,/;")
    kind = re.sub(r"<list\[(\w+)\]>", r"<\1>", kind).replace(" range>", ">")
    kind = kind.strip("<>") if "|" in kind else kind
    spelled = ", ".join(_shown_names(param.opts))
    if param.secondary_opts:
        spelled += " / " + ", ".join(_shown_names(param.secondary_opts))
    return f"{spelled} {kind}".strip(), text


def _further_names(param: Any) -> tuple[str, str] | None:
    """Return the names of an option that `_record` does not show, and what they stand for; None if there are none."""
    if param.param_type_name != "option":
        return None
    further = [
        name for names in (param.opts, param.secondary_opts) for name in names if name not in _shown_names(names)
    ]
    return (", ".join(further), f"the same as {_shown_names(param.opts)[-1]}") if further else None


def _options_of_all(root: Any) -> dict[str, str]:
    """Return the names of the options of all commands, each with the first command that has it."""
    found: dict[str, str] = {}
    groups = [("pymtp", root)]
    while groups:
        path, group = groups.pop(0)
        for name, command in getattr(group, "commands", {}).items():
            if hasattr(command, "commands"):
                groups.append((f"{path} {name}", command))
            for option in spellings(command.params):
                found.setdefault(option, f"`{path} {name}`")
    return found
