"""Prefixes in files: the methods of an LLM that save the prefix of a prompt and load it again."""

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
from pymtp.engine.request import Request, Waiter
from pymtp.engine.thread import EngineRunner
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.native.locking import Exclusive
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS
from pymtp.prefix_cache.file import PrefixFile, made_with
from pymtp.prefix_cache.save import PrefixSaver

Prompt: TypeAlias = str | Sequence[int] | Chat | ChatPrompt
Path: TypeAlias = str | os.PathLike[str]


class PrefixFileMixin(Exclusive):
    """The methods `save_prefix` and `load_prefix` of an LLM. The LLM defines the other methods of this class."""

    _engine: Engine
    _runner: EngineRunner

    @property
    def context(self) -> Context:
        raise NotImplementedError

    @property
    def chat_prompts(self) -> ChatPrompts:
        raise NotImplementedError

    def _prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        raise NotImplementedError

    def _submit(
        self,
        prompts: Sequence[Prompt],
        params: None,
        waiter: Waiter,
        *,
        priority: int = 0,
        into: list[Request] | None = None,
        saver: PrefixSaver | None = None,
    ) -> list[Request]:
        raise NotImplementedError

    def save_prefix(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """Prefill a prompt, and save its K and V and states to a file, from which `load_prefix` loads them.

        Prompts that begin with the same tokens then continue from the saved state, in this process or in another one.
        Other calls run meanwhile. Tokens in the prefix cache are not prefilled again. Returns the number of saved
        tokens.

        prompt: a string, token ids, a chat's messages, or a Chat. For messages, the saved tokens are those with which
            every continuation of the chat begins, even one whose last message is longer.
        priority: as for `generate`.

        The file is written under another name first, so that after a crash the path has either the old file or the
        complete new one. At most 16 MiB of the file are in memory at a time, in addition to the states.

        Raises the errors of `generate`, OSError if the file cannot be written, and CancelledError after cancel(): then
        the old file stays.
        """
        waiter, requests = Waiter(), list[Request]()
        with PrefixSaver() as saver:
            try:
                self._open_saver(saver, prompt, path)
                self._submit([saver.tokens], None, waiter, priority=priority, into=requests, saver=saver)
                self._runner.run_until(self, waiter, requests, lambda: not waiter.n_unfinished)
            except BaseException:
                self._runner.cancel(requests)
                raise
            return commit_saver(saver, requests)

    def _open_saver(self, saver: PrefixSaver, prompt: Prompt | Sequence[Message], path: Path) -> None:
        """Check the prompt and the path, and open the saver. Raises the errors of `save_prefix`."""
        self._runner.refuse_reentry(self)
        chat = prompt if isinstance(prompt, Chat) else Chat(prompt) if _are_messages(prompt) else None  # type: ignore[arg-type]
        alignment = self._engine.prefix_cache.alignment
        if chat is not None:
            tokens, branch_points, _ = common_prefix(self.chat_prompts, chat)
            tokens = tokens[: len(tokens) - len(tokens) % alignment or None]
        else:
            tokens = self._prompt_tokens(prompt)  # type: ignore[arg-type]
            branch_points = (len(tokens) - TAIL_TOKENS,)  # the text that follows the prompt may change its last token
        if not tokens:
            raise InvalidRequestError("the prompt is empty")
        self._engine.check(tokens)
        checkpoints = {len(tokens), *(point - point % alignment for point in branch_points)}
        settings = self._runner.call_between_steps(self, lambda: made_with(self.context))
        # With a larger alignment, no chunk is short enough to leave a state with tokens to replay
        max_rewindable = 1 + self.context.draft_tokens if alignment == 1 else 1
        saver.open(path, tokens, sorted(n for n in checkpoints if n > 0), settings, max_rewindable)

    def load_prefix(self, path: Path) -> int:
        """Load a prefix that `save_prefix` saved: prompts that begin with its tokens do not prefill them again.

        Logits, drafts and text are the same as for a prompt that is prefilled from its beginning. Returns the number of
        tokens of the file.

        The prefix is in host memory, and counts in cache_bytes: other prefixes are evicted for it, and it is evicted
        when it was not used for long. Loading a file again costs nothing. Other calls wait while the file is read.

        Raises InvalidRequestError for a file that is damaged, cut short, or in a newer format than this pymtp reads,
        that was made with another model or with other options, or that is larger than cache_bytes; ContextFullError for
        a file with more tokens than n_ctx; and OSError for a file that cannot be read. The message says what does not
        fit.
        """
        if not self._engine.cache_prompt:
            raise InvalidRequestError(
                "with cache_prompt=False, prompts reuse no prefix: create the LLM with cache_prompt=True"
            )
        context = self.context
        with PrefixFile(path, self._runner.call_between_steps(self, lambda: made_with(context))) as file:
            if len(file.tokens) > context.n_ctx:
                raise ContextFullError(f"{path} has {len(file.tokens)} tokens, more than n_ctx = {context.n_ctx}")
            self._runner.call_between_steps(self, lambda: self._engine.import_prefix(file))
            return len(file.tokens)


def commit_saver(saver: PrefixSaver, requests: Sequence[Request]) -> int:
    """Complete a prefix file, and return its number of tokens. Raises the error of its request, if that failed."""
    (request,) = requests
    if (error := request.error_copy()) is not None:
        raise error
    return saver.commit()


def _are_messages(prompt: object) -> bool:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


# The prefill of tokens that each further state in a file must save: loading a state takes as long as prefilling these
MIN_SAVED_TOKENS = 64


def common_prefix(prompts: ChatPrompts, chat: Chat) -> ChatPrompt:
    """Return the tokens with which all continuations of a chat begin, and the branch points within these tokens.

    If the last message is a user's or a tool's, a continuation may have a longer one. Otherwise a user message follows.

    Raises InvalidRequestError for messages that the template refuses.
    """
    prompt, other = (prompts.prompt(replace(chat, messages=messages)) for messages in _continuations(chat.messages))
    pairs = zip(prompt.tokens, other.tokens, strict=False)
    n = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - TAIL_TOKENS
    return ChatPrompt(
        prompt.tokens[: max(1, n)],
        tuple(point for point in prompt.branch_points if MIN_SAVED_TOKENS <= point <= n - MIN_SAVED_TOKENS),
    )


def _continuations(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return two continuations of the messages, which differ from their first new character on."""
    last = messages[-1] if messages else None
    if isinstance(last, Mapping) and last.get("role") in ("user", "tool") and isinstance(last.get("content"), str):
        return list(messages), [*messages[:-1], {**last, "content": f"{last['content']}a"}]
    return [*messages, {"role": "user", "content": "a"}], [*messages, {"role": "user", "content": "b"}]
