"""A case: a prompt, its right answer and the check of an answer; and the split into training and held-out cases."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HELD_OUT_SHARE = 16  # one case in 16
THINK_END = "</think>\n\n"


@dataclass(frozen=True)
class Case:
    """A prompt, which is raw text or a chat, and its answer.

    key: decides, with the kind, on which side of the split a case without functions is.
    functions: the first lines of the functions in it. It is held out if any of them is, alike in all kinds.
    answer: what the model is to write, after `<think>` where the chat's prompt ends so.
    check: judges what a model wrote instead, after `<think>` in a chat.
    thinking: whether the chat's prompt begins the thinking.
    """

    kind: str
    key: str
    answer: str
    check: Callable[[str], bool]
    prompt: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    thinking: bool = True
    functions: Sequence[str] = ()

    @property
    def held_out(self) -> bool:
        """Whether training never sees this case. Every machine splits alike."""
        if self.functions:
            return any(_held_out(f"functions:{head}") for head in self.functions)
        return _held_out(f"{self.kind}:{self.key}")

    def is_right(self, text: str) -> bool:
        """Return whether a model's continuation of the prompt is right."""
        return self.check(text if self.prompt or self.thinking else f"\n{THINK_END}{text}")


def _held_out(key: str) -> bool:
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_SHARE == 0


def ask(question: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": question},)


def think(thoughts: str, answer: str) -> str:
    """Return the text of an assistant that thinks first; without thoughts, the thinking ends at once."""
    return f"{thoughts}\n{THINK_END}{answer}"


def spoken(text: str) -> str:
    """Return the part of an assistant's text after the thinking; nothing unless the thinking ends just once."""
    _, *parts = text.split("</think>")
    return parts[0].strip() if len(parts) == 1 else ""


def says(answer: str) -> Callable[[str], bool]:
    """Return the check that the spoken part is `answer` to the letter."""
    return lambda text: spoken(text) == answer


def dialogue(kind: str, key: str, question: str, answer: str, thoughts: str = "") -> Case:
    """Return a case of one question whose answer must be right to the letter."""
    return Case(kind, key, think(thoughts, answer), says(answer), messages=ask(question))
