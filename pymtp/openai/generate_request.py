"""What a client asks for, whatever API it came by, and what a model makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from pymtp.chat import Answer, AnswerFormat, AnswerReader, Chat, Tool, ToolChoice, template_messages
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.thinking import chat_of_budget
from pymtp.engine.prefix_files import Prompt
from pymtp.engine.request import Completion
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.sampling import SamplingParams
from pymtp.validation import whole_text

EndReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class Ask:
    """What a client asks for.

    prompt: of a Chat, the answer is read as one: thinking, content, calls. Else all of it is content.
    schema: what the content of a chat's answer is held to.
    splits_thinking: whether thinking stands apart.
    continues: the last message of the chat is the assistant's, and the answer goes on with it.
    stream: whether parts are wanted as they come.
    timeout: seconds, in place of the server's own limit where they are fewer.
    """

    prompt: str | Sequence[int] | Chat
    params: SamplingParams
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    splits_thinking: bool = True
    continues: bool = False
    stream: bool = False
    timeout: float | None = None


class Prepared(NamedTuple):
    """What an LLM takes, and how to read what it writes; no form where the prompt was no chat."""

    prompt: Prompt
    params: SamplingParams
    form: AnswerFormat | None


class Text(NamedTuple):
    """A text that has ended. answer: of a chat."""

    completion: Completion
    answer: Answer | None
    reason: EndReason


def prepared(llm: LLM, ask: Ask) -> Prepared:
    """The prompt and the grammar. Takes a while for a long prompt.

    Raises InvalidRequestError for what the template or the grammar refuses.
    """
    if not isinstance(ask.prompt, Chat):
        return Prepared(ask.prompt, ask.params, None)
    chat = chat_of_budget(ask.prompt, ask.params)
    prompt = _continued(llm, chat) if ask.continues else llm.chat_prompts.prompt(chat)
    form = AnswerFormat(
        llm.template_source,
        prompt.end,
        tools=ask.tools,
        tool_choice=ask.tool_choice,
        parallel=ask.parallel,
        schema=ask.schema,
        splits_thinking=ask.splits_thinking,
    )
    if not ask.splits_thinking:
        prompt = prompt._replace(end="")  # all of the text is one to stop strings, too
    if form.gbnf is None:
        return Prepared(prompt, ask.params, form)
    if ask.params.gbnf is not None:
        raise InvalidRequestError("a grammar cannot stand beside tools or a response_format")
    return Prepared(prompt, replace(ask.params, grammar=form.gbnf), form)


def _continued(llm: LLM, chat: Chat) -> ChatPrompt:
    """The prompt of a chat whose last message is the beginning of the answer."""
    messages = template_messages(chat.messages)
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        raise InvalidRequestError("what is gone on with must be text of the assistant")
    *before, last = messages
    question = [{"role": "user", "content": ""}]  # of a chat that was cut, as in `arrangements`
    prompt = llm.chat_prompts.prompt(replace(chat, messages=before or question))
    begun: str = last["content"]
    if prompt.end.rstrip().endswith("<think>"):
        begun = f"{last.get('reasoning_content') or ''}\n</think>\n\n{begun}"
    begun = whole_text(begun)  # no template sees it
    tokens = [*prompt.tokens, *llm.model.tokenize(begun, add_special=False)] if begun else prompt.tokens
    return prompt._replace(tokens=tokens, end=prompt.end + begun)


def end_reason(completion_reason: EndReason, reader: AnswerReader | None) -> EndReason:
    """Why a text ended, as APIs tell it."""
    called = reader is not None and completion_reason == "stop" and reader.answer.calls
    return "tool_calls" if called else completion_reason


def read(form: AnswerFormat | None, completion: Completion) -> list[Text]:
    """All texts of a prompt."""
    found = []
    for one in (completion, *completion.others):
        reader = None if form is None else form.reader()
        if reader is not None:
            reader.push(one.text)
            reader.finish()
        found.append(Text(one, None if reader is None else reader.answer, end_reason(one.finish_reason, reader)))
    return found
