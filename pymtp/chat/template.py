"""The chat template of a model: what it is given, and what it is given when it refuses that.

environment.py, which imports jinja2, is imported where it is used: many programs have no chats, and jinja2
takes a tenth of the import of pymtp.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pymtp.chat import limits
from pymtp.chat.arrangements import arrangements, later_systems
from pymtp.chat.efforts import EFFORTS, nearest
from pymtp.chat.given import Message, Tools, check_messages, check_tools, compiled_template, read_variables
from pymtp.chat.limits import OverrunError
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.validation import shown, whole_text

_MARK = "pymtpxqzv"  # a word that no template knows and no message has


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


class ChatTemplate:
    """Turns messages ({"role": …, "content": …}) into the prompt that the model was trained on."""

    def __init__(self, model: Model, source: str | None = None, variables: Mapping[str, object] | None = None) -> None:
        """Compile the model's template. source: another one. variables: of the template, where `render` is given none
        of the name.

        Raises InvalidRequestError when the file has no template, or one that cannot be compiled.
        """
        found = model.chat_template if source is None else source
        if found is None:
            raise InvalidRequestError(
                f"{model.path.name} has no chat template: give one as chat_template=, or use generate with a prompt of "
                "your own"
            )
        self.source = found
        self._template = compiled_template(f"{model.path.name} has" if source is None else "chat_template is", found)
        self._defaults = read_variables(variables)
        self._special = {"bos_token": model.bos_token, "eos_token": model.eos_token}
        self._known_efforts: dict[str, str] = {}  # by efforts that the template refuses: one that it takes
        self._keeps_systems: bool | None = None  # whether later ones are in the prompt; None: not tried yet

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Make the prompt up to where the assistant's next turn begins. tools, chat_template_kwargs: see `Chat`.

        What the template refuses is given to it in other ways that say the same (`arrangements`, `efforts`): what it
        takes stays as it is. Half a character of UTF-16 becomes U+FFFD.

        Raises InvalidRequestError for messages without role or content, for a reasoning_effort that is none, for what
        the template refuses in any way, and where it takes too long or writes too much.
        """
        check_messages(messages)
        check_tools(tools)
        own, defaults = read_variables(chat_template_kwargs), dict(self._defaults)
        if "reasoning_effort" in own:
            defaults.pop("enable_thinking", None)  # the effort says whether
        variables = {**defaults, **own}
        # as transformers has it: templates take a missing name for none, and write None as text
        given = [{name: value for name, value in message.items() if value is not None} for message in messages]
        refusal: Exception | None = None
        deadline = time.thread_time() + limits.SECONDS  # for all ways together, once one was refused
        for asked in self._efforts(variables):
            incomplete: str | None = None
            for arranged in arrangements(given):
                if refusal is not None and time.thread_time() > deadline:
                    raise InvalidRequestError(f"the chat template refuses these messages: {refusal}") from refusal
                try:
                    text = self._text(arranged, tools, asked)
                except InvalidRequestError:
                    raise
                except Exception as error:  # a template is a program: it may raise anything
                    refusal = refusal or error
                    continue
                if arranged is given and not self._tells_all(given, tools, asked):
                    incomplete = text
                    continue
                self._learn(variables.get("reasoning_effort"), asked.get("reasoning_effort"))
                return whole_text(text)
            if incomplete is not None:  # it takes this effort, and the messages in no other way
                return whole_text(incomplete)
        raise InvalidRequestError(f"the chat template refuses these messages: {refusal}") from refusal

    def _text(self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, object]) -> str:
        """Render once. Raises what the template raises, and InvalidRequestError where it does too much."""
        from pymtp.chat.environment import rendered

        every = {"documents": None, **self._special, **variables, "messages": list(messages), "tools": tools}
        try:
            return rendered(self._template, {**every, "add_generation_prompt": True})
        except OverrunError as error:
            raise InvalidRequestError(f"the chat template cannot make this prompt: {error}") from error

    def _tells_all(self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, object]) -> bool:
        """Find out whether a text holds later messages of the system: some templates pass over them. Tried once for a
        template, with a word in their place."""
        later = later_systems(messages)
        if not later or self._keeps_systems:
            return True
        if self._keeps_systems is None:
            others = [{**each, "content": _MARK} if i in later else each for i, each in enumerate(messages)]
            try:
                self._keeps_systems = _MARK in self._text(others, tools, variables)
            except Exception:  # it reads them
                self._keeps_systems = True
        return self._keeps_systems

    def _efforts(self, variables: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Yield the variables, then some with other efforts, for a template that refuses the one asked for.

        "none" is thinking off where the template has that. Raises InvalidRequestError for a word that is no effort.
        """
        effort = variables.get("reasoning_effort")
        if effort is None:
            yield variables
            return
        if not isinstance(effort, str) or (effort not in EFFORTS and not self._names(effort, variables)):
            raise InvalidRequestError(
                f"reasoning_effort={shown(effort)} must be one of {', '.join(EFFORTS)}", "reasoning_effort"
            )
        if effort == "none":
            variables = {"enable_thinking": False, **variables}
        if effort in self._known_efforts:
            yield {**variables, "reasoning_effort": self._known_efforts[effort]}
        yield variables
        if effort not in EFFORTS:
            return
        if effort == "none":
            without = {name: value for name, value in variables.items() if name != "reasoning_effort"}
            if self._probe(without) != self._probe({**without, "enable_thinking": True}):
                yield without
        for other in nearest(effort):
            yield {**variables, "reasoning_effort": other}

    def _learn(self, asked: object, taken: object) -> None:
        """Keep an effort that the template takes in place of another, to try it first."""
        if asked != taken and isinstance(asked, str) and isinstance(taken, str):
            self._known_efforts[asked] = taken

    def _names(self, effort: str, variables: Mapping[str, object]) -> bool:
        """Find out whether the template knows a word of its own: another word is refused, or means another thing."""
        text = self._probe({**variables, "reasoning_effort": effort})
        other = self._probe({**variables, "reasoning_effort": _MARK})
        return text is not None and (other is None or other.replace(_MARK, effort) != text)

    def _probe(self, variables: Mapping[str, object]) -> str | None:
        """Render a small chat; None where the template refuses it."""
        try:
            return self._text([{"role": "user", "content": "a"}], None, variables)
        except InvalidRequestError:
            raise
        except Exception:
            return None
