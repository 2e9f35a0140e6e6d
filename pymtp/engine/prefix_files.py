"""Prefixes in files: the part of an LLM that saves what a prompt leaves behind, and goes on from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from pymtp.chat import Chat, Message
from pymtp.chat.prompt import ChatPrompt, ChatPrompts
from pymtp.context.context import Context
from pymtp.engine.engine import Engine
from pymtp.engine.request import Caller, Request
from pymtp.engine.thread import Turns
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.native.locking import Exclusive
from pymtp.prefix_cache.checkpoints import TAIL
from pymtp.prefix_cache.file import PrefixFile, made_with
from pymtp.prefix_cache.save import PrefixSaver

Prompt: TypeAlias = str | Sequence[int] | Chat | ChatPrompt
Path: TypeAlias = str | os.PathLike[str]


class PrefixFiles(Exclusive):
    """What the methods need is LLM's."""

    engine: Engine
    turns: Turns

    @property
    def context(self) -> Context:
        raise NotImplementedError

    @property
    def chat_prompts(self) -> ChatPrompts:
        raise NotImplementedError

    def tokens_of(self, prompt: str | Sequence[int]) -> list[int]:
        raise NotImplementedError

    def requests(
        self,
        prompts: Sequence[Prompt],
        params: None,
        caller: Caller,
        *,
        priority: int = 0,
        into: list[Request] | None = None,
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        raise NotImplementedError

    def save_prefix(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """Reads a prompt and saves what it leaves behind, for prompts that begin with it: `load_prefix`, here or in
        another process. Returns how many tokens were saved.

        prompt: a string, token ids, a chat's messages, or a Chat. Of messages what all prompts begin with that go on
            from them: the last one may be longer there.
        priority: as for `generate`. What was read of the prompt before is not read again. Other calls go on meanwhile.

        The file is written beside its place: a crash leaves the old file or the new one. Beside the states, at most
        16 MiB of it are in memory at a time.

        Raises what `generate` raises, OSError where the file cannot be written, and CancelledError after cancel(): then
        the old file is there.
        """
        caller, found = Caller(), list[Request]()
        with PrefixSaver() as saver:
            try:
                self.open_saver(saver, prompt, path)
                self.requests([saver.tokens], None, caller, priority=priority, into=found, saver=saver)
                self.turns.wait(self, caller, found, lambda: not caller.unended)
            except BaseException:
                self.turns.give_up(found)
                raise
            return committed(saver, found)

    def open_saver(self, saver: PrefixSaver, prompt: Prompt | Sequence[Message], path: Path) -> None:
        """Looks at what is to be saved, and where. Raises as `save_prefix`."""
        self.turns.refuse_within(self)
        chat = prompt if isinstance(prompt, Chat) else Chat(prompt) if _are_messages(prompt) else None  # type: ignore[arg-type]
        grain = self.engine.prefixes.grain
        if chat is not None:
            tokens, marks, _ = beginning(self.chat_prompts, chat)
            tokens = tokens[: len(tokens) - len(tokens) % grain or None]
        else:
            tokens = self.tokens_of(prompt)  # type: ignore[arg-type]
            marks = (len(tokens) - TAIL,)  # what follows may change the last token
        if not tokens:
            raise InvalidRequestError("the prompt is empty")
        self.engine.check(tokens)
        places = {len(tokens), *(mark - mark % grain for mark in marks)}
        depends_on = self.turns.between(self, lambda: made_with(self.context))
        few = 1 + self.context.draft_tokens if grain == 1 else 1  # else no token may be read apart
        saver.open(path, tokens, sorted(place for place in places if place > 0), depends_on, few)

    def load_prefix(self, path: Path) -> int:
        """Prompts that begin with what a file has go on from there: it is not read again. Logits, drafts and text are
        those of a prompt that is read whole. Returns how many tokens the file has.

        It goes to host memory and counts in cache_bytes: what is there makes room for it, and it makes room for others
        when it was not used for long. A file that is loaded again costs nothing. Other calls wait while it is read.

        Raises InvalidRequestError for a file that is damaged, cut short or newer than this pymtp, that is of another
        model or was made with other options, or that cache_bytes has no room for; ContextFullError for one of more
        tokens than n_ctx; OSError for one that cannot be read. The message says what does not fit.
        """
        if not self.engine.cache_prompt:
            raise InvalidRequestError("cache_prompt=False: prompts go on from nothing, and from no file either")
        context = self.context
        with PrefixFile(path, self.turns.between(self, lambda: made_with(context))) as file:
            if len(file.tokens) > context.n_ctx:
                raise ContextFullError(f"{path} has {len(file.tokens)} tokens, more than n_ctx = {context.n_ctx}")
            self.turns.between(self, lambda: self.engine.adopt(file))
            return len(file.tokens)


def committed(saver: PrefixSaver, requests: Sequence[Request]) -> int:
    """The file in its place, and its number of tokens. Raises what its request failed by."""
    (request,) = requests
    if (error := request.failure()) is not None:
        raise error
    return saver.commit()


def _are_messages(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


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
