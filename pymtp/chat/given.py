"""What callers give for a chat, looked at before a template sees it; and the template itself, where they give one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pymtp.errors import InvalidRequestError
from pymtp.validation import read_path, shown, whole_text

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, object]
Tools = Sequence[Mapping[str, object]]

_OWN = ("messages", "tools", "add_generation_prompt")  # variables that have another way in, or none


def check_tools(tools: object) -> None:
    """Raises InvalidRequestError for tools that are no list of mappings, None aside."""
    several = isinstance(tools, Sequence) and not isinstance(tools, (str, bytes))
    if tools is not None and not (several and all(isinstance(tool, Mapping) for tool in tools)):  # type: ignore[attr-defined]
        raise InvalidRequestError(f"tools are a list of mappings, not {shown(tools)}", "tools")


def check_messages(messages: object) -> None:
    """Raises InvalidRequestError for what is no list of messages, one at least, with role and content."""
    if not isinstance(messages, Sequence):
        raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message or not {"content", "tool_calls"} & message.keys():
            raise InvalidRequestError(f'a message needs "role" and "content": {shown(message)}')
    if not messages:
        raise InvalidRequestError("a chat needs at least one message")


def read_variables(variables: object) -> dict[str, object]:
    """Look at variables of a template, {} for None. Raises InvalidRequestError for what is no mapping of names, and for
    names that have another way in."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or any(not isinstance(name, str) or name in _OWN for name in variables):
        raise InvalidRequestError(
            f"chat_template_kwargs={shown(variables)} must map names other than {', '.join(_OWN)} to values",
            "chat_template_kwargs",
        )
    return dict(variables)


def read_template(given: object) -> str | None:
    """Read a template: a text with tags of Jinja, or a path of one; None for None.

    Raises InvalidRequestError for a file that cannot be read, and for what cannot be compiled.
    """
    if given is None:
        return None
    if isinstance(given, str) and _is_template(given):
        text, whose = whole_text(given), "chat_template is"
    else:
        path = read_path("chat_template", given)
        text, whose = _read_file(path), f"chat_template={shown(str(path))} is"
    compiled_template(whose, text)
    return text


def _is_template(text: str) -> bool:
    return any(tag in text for tag in ("{{", "{%", "{#"))


def _read_file(path: Path) -> str:
    from pymtp.chat.environment import MAX_SOURCE

    try:
        with path.open(encoding="utf-8-sig") as file:
            # editors of Windows write a mark before a text
            text = file.read(MAX_SOURCE + 1)  # a device never ends; what is longer is refused when it is compiled
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"chat_template={shown(str(path))} is neither a template, which has {{{{ }}}} or {{% %}}, nor a file that "
            f"can be read: {error}",
            "chat_template",
        ) from error
    if not _is_template(text):
        raise InvalidRequestError(
            f"chat_template={shown(str(path))} is a file without {{{{ }}}} and {{% %}}: it is no template",
            "chat_template",
        )
    return text


def compiled_template(whose: str, source: str) -> jinja2.Template:
    """Compile a template. Raises InvalidRequestError where that cannot be. whose: how the message begins."""
    from pymtp.chat.environment import compiled

    try:
        return compiled(source)
    except Exception as error:  # of Python's compiler, too, which compiles what jinja2 makes of it
        line = f", line {error.lineno}" if isinstance(getattr(error, "lineno", None), int) else ""  # type: ignore[attr-defined]
        raise InvalidRequestError(
            f"{whose} a broken chat template{line}: {str(error) or type(error).__name__}", "chat_template"
        ) from error
