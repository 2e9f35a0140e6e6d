"""The chat template of a model, and the fallbacks for templates that refuse some messages or a reasoning effort.

jinja_environment.py imports jinja2, so it is imported inside the functions that use it: jinja2 would take a tenth of
pymtp's import time, and many programs have no chats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pymtp.chat import render_budget
from pymtp.chat.message_rewrites import late_system_messages, message_rewrites
from pymtp.chat.render_budget import RenderLimitError
from pymtp.chat.template_inputs import Message, Tools, check_messages, check_tools, compile_template, read_variables
from pymtp.chat.tools import GivenToolChoice
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model
from pymtp.validation import replace_surrogates, shown

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # from no thinking to the most
_PROBE_WORD = "pymtpxqzv"  # a word that no template knows and no message holds


@dataclass(frozen=True)
class Chat:
    """A chat, which a template turns into a prompt.

    tools: functions that the model may call, in OpenAI's format.
    chat_template_kwargs: further variables of the template, such as {"enable_thinking": False}.
    tool_choice: which tools the model must call; see `read_tool_choice`. The template is not told.
    """

    messages: Sequence[Message]
    tools: Tools | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    tool_choice: GivenToolChoice = None


def assistant_message(text: str, prompt: str) -> Message:
    """Build the assistant's message from the text that followed a prompt.

    The reasoning goes into a field of its own, `reasoning_content`, because templates drop it in later turns.
    """
    if not prompt.rstrip().endswith("<think>") and not text.lstrip().startswith("<think>"):
        return {"role": "assistant", "content": text}
    reasoning, _, content = text.partition("</think>")
    reasoning = reasoning.lstrip().removeprefix("<think>").strip("\n")
    return {"role": "assistant", "reasoning_content": reasoning, "content": content.lstrip("\n")}


class ChatTemplate:
    """The template that turns messages ({"role": …, "content": …}) into the prompt that the model was trained on."""

    def __init__(self, model: Model, source: str | None = None, variables: Mapping[str, object] | None = None) -> None:
        """Compile the model's template.

        source: a template to use instead of the model's.
        variables: values of template variables that are used where a call of `render` sets no other.

        Raises InvalidRequestError if the model's file has no template, or if the template cannot be compiled.
        """
        template = model.chat_template if source is None else source
        if template is None:
            raise InvalidRequestError(
                f"{model.path.name} has no chat template: give one as chat_template=, or use generate with a prompt of "
                "your own"
            )
        self.source = template
        self._template = compile_template(f"{model.path.name} has" if source is None else "chat_template is", template)
        self._defaults = read_variables(variables)
        self._special_tokens = {"bos_token": model.bos_token, "eos_token": model.eos_token}
        self._effort_substitutes: dict[str, str] = {}  # for each refused effort, the one to use instead
        self._keeps_late_systems: bool | None = None  # whether late system messages reach the prompt; None: unknown

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render the prompt up to where the assistant's next turn begins. tools, chat_template_kwargs: see `Chat`.

        add_generation_prompt: whether the prompt ends with the beginning of that turn.

        If the template refuses the messages or the reasoning effort, rewritten messages and other efforts are tried.
        Messages and efforts that the template accepts are used unchanged. Half of a surrogate pair becomes U+FFFD.

        Raises InvalidRequestError for messages without role or content, for an unknown reasoning_effort, for a chat
        that the template refuses in every form, and for a template that takes too long or writes too much.
        """
        check_messages(messages)
        check_tools(tools)
        own, defaults = read_variables(chat_template_kwargs), dict(self._defaults)
        if "reasoning_effort" in own:
            defaults.pop("enable_thinking", None)  # the effort decides whether the model thinks
        variables = {**defaults, **own}
        # As in transformers, fields that are None are left out: templates test for the key, and would write "None".
        compact = [{name: value for name, value in message.items() if value is not None} for message in messages]
        refusal: Exception | None = None
        deadline = time.thread_time() + render_budget.MAX_SECONDS  # for all attempts together; checked after a refusal
        for attempt in self._effort_attempts(variables):
            incomplete: str | None = None
            for rewrite in message_rewrites(compact):
                if refusal is not None and time.thread_time() > deadline:
                    raise InvalidRequestError(f"the chat template refuses these messages: {refusal}") from refusal
                try:
                    text = self._render_once(rewrite, tools, attempt, add_generation_prompt=add_generation_prompt)
                except InvalidRequestError:
                    raise
                except Exception as error:  # a template is a program: it may raise anything
                    refusal = refusal or error
                    continue
                if rewrite is compact and not self._renders_late_systems(compact, tools, attempt):
                    incomplete = text
                    continue
                self._remember_effort(variables.get("reasoning_effort"), attempt.get("reasoning_effort"))
                return replace_surrogates(text)
            if incomplete is not None:  # the template accepts this effort, but no rewritten messages
                return replace_surrogates(incomplete)
        raise InvalidRequestError(f"the chat template refuses these messages: {refusal}") from refusal

    def _render_once(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        variables: Mapping[str, object],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render once. Raises the template's own exceptions, and InvalidRequestError if it exceeds its limits."""
        from pymtp.chat.jinja_environment import render

        own = {"messages": list(messages), "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            return render(self._template, {"documents": None, **self._special_tokens, **_dates(), **variables, **own})
        except RenderLimitError as error:
            raise InvalidRequestError(f"the chat template cannot make this prompt: {error}") from error

    def _renders_late_systems(
        self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, object]
    ) -> bool:
        """Return whether late system messages appear in the prompt: some templates ignore them.

        The first call with such messages tries it with a probe word as their content, and remembers the result.
        """
        late = late_system_messages(messages)
        if not late or self._keeps_late_systems:
            return True
        if self._keeps_late_systems is None:
            probe = [
                {**message, "content": _PROBE_WORD} if i in late else message for i, message in enumerate(messages)
            ]
            try:
                self._keeps_late_systems = _PROBE_WORD in self._render_once(probe, tools, variables)
            except Exception:  # an exception shows that the template reads these messages
                self._keeps_late_systems = True
        return self._keeps_late_systems

    def _effort_attempts(self, variables: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Yield the variables, then the variables with other efforts, which are tried until the template accepts one.

        The effort "none" also switches thinking off, if the template can. Raises InvalidRequestError for an unknown
        effort.
        """
        effort = variables.get("reasoning_effort")
        if effort is None:
            yield variables
            return
        if not isinstance(effort, str) or (
            effort not in REASONING_EFFORTS and not self._knows_effort(effort, variables)
        ):
            raise InvalidRequestError(
                f"reasoning_effort={shown(effort)} must be one of {', '.join(REASONING_EFFORTS)}", "reasoning_effort"
            )
        if effort == "none":
            variables = {"enable_thinking": False, **variables}
        if effort in self._effort_substitutes:
            yield {**variables, "reasoning_effort": self._effort_substitutes[effort]}
        yield variables
        if effort not in REASONING_EFFORTS:
            return
        if effort == "none":
            without = {name: value for name, value in variables.items() if name != "reasoning_effort"}
            if self._probe(without) != self._probe({**without, "enable_thinking": True}):
                yield without
        for other in _nearest_efforts(effort):
            yield {**variables, "reasoning_effort": other}

    def _remember_effort(self, requested: object, accepted: object) -> None:
        """Remember the effort that the template accepted in place of another; later renderings try it first."""
        if requested != accepted and isinstance(requested, str) and isinstance(accepted, str):
            self._effort_substitutes[requested] = accepted

    def _knows_effort(self, effort: str, variables: Mapping[str, object]) -> bool:
        """Return whether the template knows an effort: whether the prompt differs from that for an unknown word."""
        text = self._probe({**variables, "reasoning_effort": effort})
        other = self._probe({**variables, "reasoning_effort": _PROBE_WORD})
        return text is not None and (other is None or other.replace(_PROBE_WORD, effort) != text)

    def _probe(self, variables: Mapping[str, object]) -> str | None:
        """Render a chat of one short message, and return the prompt; None if the template refuses the chat."""
        try:
            return self._render_once([{"role": "user", "content": "a"}], None, variables)
        except InvalidRequestError:
            raise
        except Exception:
            return None


def _dates() -> dict[str, str]:
    """Return the variables for the current date that llama.cpp gives to templates, such as Llama's."""
    now = datetime.now()
    return {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}


def _nearest_efforts(effort: str) -> list[str]:
    """Return the other efforts, the nearest one first. Of two efforts at the same distance, the higher is first.

    "none" is always last, because no thinking is very different from little thinking.
    """
    at = REASONING_EFFORTS.index(effort)
    ranks = {other: (other == "none", abs(i - at), -i) for i, other in enumerate(REASONING_EFFORTS) if i != at}
    return sorted(ranks, key=ranks.__getitem__)
