"""The chat template that a GGUF carries, rendered in jinja2's sandbox: a model file is not to be trusted with more.

jinja2 is imported where it is used: many programs have no chats, and it takes a tenth of the import of pymtp."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pymtp.errors import InvalidRequestError
from pymtp.model import Model
from pymtp.values import shown

Message = Mapping[str, object]
Tools = Sequence[Mapping[str, object]]

_OWN = ("messages", "tools", "add_generation_prompt")  # variables that have another way in, or none


@dataclass(frozen=True)
class Chat:
    """What a template makes a prompt of.

    tools: functions that the model may call, mostly in OpenAI's format.
    chat_template_kwargs: further variables of the template, such as {"enable_thinking": False}.
    """

    messages: Sequence[Message]
    tools: Tools | None = None
    chat_template_kwargs: Mapping[str, object] | None = None


def answer_message(text: str, prompt: str) -> Message:
    """The assistant's message, of the text after a prompt. What it thought stands apart in `reasoning_content`, for
    templates that drop it in later turns."""
    if not prompt.rstrip().endswith("<think>") and not text.lstrip().startswith("<think>"):
        return {"role": "assistant", "content": text}
    thought, _, said = text.partition("</think>")
    thought = thought.lstrip().removeprefix("<think>").strip("\n")
    return {"role": "assistant", "reasoning_content": thought, "content": said.lstrip("\n")}


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _check_tools(tools: object) -> None:
    several = isinstance(tools, Sequence) and not isinstance(tools, (str, bytes))
    if tools is not None and not (several and all(isinstance(tool, Mapping) for tool in tools)):  # type: ignore[attr-defined]
        raise InvalidRequestError(f"tools are a list of mappings, not {shown(tools)}", "tools")


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """Turns messages ({"role": …, "content": …}) into the prompt that the model was trained on."""

    def __init__(self, model: Model) -> None:
        """Raises InvalidRequestError when the file has no template, or one that is no Jinja."""
        if model.chat_template is None:
            raise InvalidRequestError(f"{model.path.name} has no chat template: use generate with a prompt of your own")
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # the options that the authors of templates rely on; see transformers' apply_chat_template
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda fmt: datetime.now().strftime(fmt)
        try:
            self._template = environment.from_string(model.chat_template)
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"{model.path.name} has a broken chat template: {error}") from error
        self._special = {"bos_token": model.bos_token, "eos_token": model.eos_token}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt up to where the assistant's next turn begins. tools, chat_template_kwargs: see `Chat`.

        Raises InvalidRequestError for messages without role or content, and for what the template refuses.
        """
        if not isinstance(messages, Sequence):
            raise InvalidRequestError(f"a chat is a sequence of messages, not {shown(messages)}")
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
                raise InvalidRequestError(f'a message needs "role" and "content": {shown(message)}')
        if not messages:
            raise InvalidRequestError("a chat needs at least one message")
        _check_tools(tools)
        variables = {} if chat_template_kwargs is None else chat_template_kwargs
        if not isinstance(variables, Mapping) or any(not isinstance(name, str) or name in _OWN for name in variables):
            raise InvalidRequestError(
                f"chat_template_kwargs must map names other than {', '.join(_OWN)} to values, not {shown(variables)}"
            )
        every = {**self._special, **variables, "messages": list(messages), "tools": tools}
        try:
            return self._template.render(every, add_generation_prompt=True)
        except Exception as error:  # a template is a program: whatever it raises is the messages' fault or its own
            raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error
