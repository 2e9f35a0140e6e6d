"""Checks of the inputs of a chat template: messages, tools, variables, and a template that the caller gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pymtp.errors import InvalidRequestError
from pymtp.validation import read_path, replace_surrogates, shown

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, object]
Tools = Sequence[Mapping[str, object]]

_RESERVED_NAMES = ("messages", "tools", "add_generation_prompt")  # pymtp sets these variables itself


def check_tools(tools: object) -> None:
    """Raise InvalidRequestError for tools that are neither a list of mappings nor None."""
    several = isinstance(tools, Sequence) and not isinstance(tools, (str, bytes))
    if tools is not None and not (several and all(isinstance(tool, Mapping) for tool in tools)):  # type: ignore[attr-defined]
        raise InvalidRequestError(f"tools must be a list of mappings, not {shown(tools)}", "tools")


def check_messages(messages: object) -> None:
    """Raise InvalidRequestError unless there are one or more messages, each with a role, and content or tool calls."""
    if not isinstance(messages, Sequence):
        raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message or not {"content", "tool_calls"} & message.keys():
            raise InvalidRequestError(f'a message needs "role" and "content": {shown(message)}')
    if not messages:
        raise InvalidRequestError("a chat needs at least one message")


def read_variables(variables: object) -> dict[str, object]:
    """Check the variables of a template, and return them; {} for None.

    Raises InvalidRequestError for a value that is not a mapping of names, and for names that pymtp sets itself.
    """
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or any(
        not isinstance(name, str) or name in _RESERVED_NAMES for name in variables
    ):
        raise InvalidRequestError(
            f"chat_template_kwargs={shown(variables)} must map names other than {', '.join(_RESERVED_NAMES)} to values",
            "chat_template_kwargs",
        )
    return dict(variables)


def read_template(template: object) -> str | None:
    """Return the source of a template that is given as a string with Jinja tags, or as a file's path; None for None.

    Raises InvalidRequestError for a file that cannot be read, and for a template that cannot be compiled.
    """
    if template is None:
        return None
    if isinstance(template, str) and _has_jinja_tags(template):
        text, whose = replace_surrogates(template), "chat_template is"
    else:
        path = read_path("chat_template", template)
        text, whose = _read_file(path), f"chat_template={shown(str(path))} is"
    compile_template(whose, text)
    return text


def _has_jinja_tags(text: str) -> bool:
    return any(tag in text for tag in ("{{", "{%", "{#"))


def _read_file(path: Path) -> str:
    from pymtp.chat.jinja_environment import MAX_SOURCE

    try:
        # utf-8-sig: some editors of Windows write a byte order mark
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_SOURCE + 1)  # bounded: a device never ends. Longer text is refused below
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"chat_template={shown(str(path))} is neither a template, which has {{{{ }}}} or {{% %}}, nor a file that "
            f"can be read: {error}",
            "chat_template",
        ) from error
    if not _has_jinja_tags(text):
        raise InvalidRequestError(
            f"chat_template={shown(str(path))} is a file without {{{{ }}}} and {{% %}}, so it is not a template",
            "chat_template",
        )
    return text


def compile_template(whose: str, source: str) -> jinja2.Template:
    """Compile a template.

    whose: the beginning of the error message, which names the origin of the template.

    Raises InvalidRequestError for a template that cannot be compiled.
    """
    from pymtp.chat.jinja_environment import compile_source

    try:
        return compile_source(source)
    except Exception as error:  # Python compiles the code that jinja2 writes, and may raise anything
        line = f", line {error.lineno}" if isinstance(getattr(error, "lineno", None), int) else ""  # type: ignore[attr-defined]
        raise InvalidRequestError(
            f"{whose} a broken chat template{line}: {str(error) or type(error).__name__}", "chat_template"
        ) from error
