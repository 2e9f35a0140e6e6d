"""What of a prompt is worth a file: its beginning that prompts to come have, too, and where they part from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from pymtp.chat import Chat, Message
from pymtp.chat_prompt import ChatPrompt, ChatPrompts
from pymtp.engine.prefix_stops import TAIL

LEAST = 64  # tokens that another state in a file has to save: they are read in about the time that it is loaded in


def beginning(prompts: ChatPrompts, chat: Chat) -> ChatPrompt:
    """The tokens that all prompts begin with which go on from these messages, the last of which may be longer there;
    and places where some part earlier. Where the last message is not a user's or a tool's, a user's comes next.

    Raises InvalidRequestError for messages that the template refuses.
    """
    prompt, other = (prompts.prompt(replace(chat, messages=messages)) for messages in _going_on(chat.messages))
    pairs = zip(prompt.tokens, other.tokens, strict=False)
    n = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - TAIL
    return ChatPrompt(prompt.tokens[: max(1, n)], tuple(mark for mark in prompt.marks if LEAST <= mark <= n - LEAST))


def _going_on(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Two ways, which part at once."""
    last = messages[-1] if messages else None
    if isinstance(last, Mapping) and last.get("role") in ("user", "tool") and isinstance(last.get("content"), str):
        return list(messages), [*messages[:-1], {**last, "content": f"{last['content']}a"}]
    return [*messages, {"role": "user", "content": "a"}], [*messages, {"role": "user", "content": "b"}]
