"""Prefixes in files: the prefix of a prompt is saved, and loaded again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias

from pymtp.chat import Chat, Message
from pymtp.chat.images import with_image_paths
from pymtp.chat.prompt import ChatPrompt, ChatPrompts
from pymtp.context.context import Context
from pymtp.engine.image_encoder import ImageEncoder
from pymtp.engine.prepare import Prompt, RequestMaker
from pymtp.engine.request import Request, Waiter
from pymtp.engine.thread import EngineThread
from pymtp.errors import ContextFullError, InvalidRequestError
from pymtp.images import Image
from pymtp.prefix_cache.checkpoints import TAIL_TOKENS
from pymtp.prefix_cache.file import PROJECTOR, PrefixFile, made_with
from pymtp.prefix_cache.file_images import FileImage
from pymtp.prefix_cache.save import PrefixSaver

Path: TypeAlias = str | os.PathLike[str]


class PrefixFiles:
    """Saves and loads the prefixes of an LLM: see `LLM.save_prefix` and `LLM.load_prefix`."""

    def __init__(
        self, maker: RequestMaker, thread: EngineThread, context: Context, images: ImageEncoder | None = None
    ) -> None:
        self._maker, self._thread, self._context, self._images = maker, thread, context, images

    def save(self, prompt: Prompt | Sequence[Message], path: Path, *, priority: int = 0) -> int:
        """Save the prefix of a prompt to a file, and return its number of tokens."""
        waiter, cancels = Waiter(), self._context.cancels
        with PrefixSaver() as saver:
            prefix = self.open_saver(saver, prompt, path)
            requests = self._maker.make([prefix], None, waiter, priority=priority, saver=saver, cancel_count=cancels)
            self._thread.run(requests, waiter)
            return commit_saver(saver, requests)

    def open_saver(self, saver: PrefixSaver, prompt: Prompt | Sequence[Message], path: Path) -> ChatPrompt:
        """Check the prompt and the path, and open the saver. Return the prefix that it saves.

        Raises the errors of `LLM.save_prefix`.
        """
        self._thread.check_usable()
        maker, context = self._maker, self._context
        chat = prompt if isinstance(prompt, Chat) else None
        if _are_messages(prompt):
            chat = Chat(with_image_paths(prompt))  # type: ignore[arg-type]
        alignment = self._thread.engine.prefix_cache.alignment
        images: Mapping[int, Image] = {}
        if chat is not None:
            tokens, branch_points, _, images = common_prefix(maker.chat_prompts, chat)
            n = len(tokens) - len(tokens) % alignment
            while n > 0 and tokens[n - 1] < 0:  # a prompt does not end within an image
                n -= alignment
            tokens = tokens[: n or None]
        else:
            tokens = maker.prompt_tokens(prompt)  # type: ignore[arg-type]
            branch_points = (len(tokens) - TAIL_TOKENS,)  # the text that follows the prompt may change its last token
        maker.check_length(tokens)
        checkpoints = {len(tokens), *(point - point % alignment for point in branch_points)}
        settings = self._thread.call(lambda: made_with(context))
        # With a larger alignment, no chunk is short enough to leave a state with tokens to replay
        max_rewindable = 1 + context.max_drafts if alignment == 1 else 1
        images = {token: images[token] for token in set(tokens) if token < 0}
        if images and self._images is not None:
            settings[PROJECTOR] = self._images.projector.digest
        saver.open(path, tokens, sorted(n for n in checkpoints if n > 0), settings, max_rewindable, self._named(images))
        return ChatPrompt(tokens, (), images=images)

    def _named(self, images: Mapping[int, Image]) -> dict[int, FileImage]:
        if self._images is None:
            return {}
        grid = self._images.projector.grid
        return {token: FileImage(image.digest, *grid(image.width, image.height)) for token, image in images.items()}

    def load(self, path: Path, *, kept: bool = False) -> int:
        """Load a saved prefix, and return its number of tokens. Raises the errors of `LLM.load_prefix`.

        kept: never evict it.
        """
        context, engine = self._context, self._thread.engine
        if not engine.cache_prompt:
            raise InvalidRequestError(
                "with cache_prompt=False, prompts reuse no prefix: create the LLM with cache_prompt=True"
            )
        settings = self._thread.call(lambda: made_with(context))
        if self._images is not None:
            settings[PROJECTOR] = self._images.projector.digest
        with PrefixFile(path, settings) as file:
            if len(file.tokens) > context.n_ctx:
                raise ContextFullError(f"{path} has {len(file.tokens)} tokens, more than n_ctx = {context.n_ctx}")
            self._thread.call(lambda: self._import(file, kept=kept))
            return len(file.tokens)

    def _import(self, file: PrefixFile, *, kept: bool) -> None:
        """Load an open file, whose images get the tokens that they have here. Runs on the engine's thread."""
        if file.images and self._images is not None:
            numbers = [self._images.token_of(*image) for image in file.images]
            file.number_images(numbers)
            for number, image in zip(numbers, file.images, strict=True):
                self._context.add_image(number, image.nx, image.ny)
        self._thread.engine.prefix_cache.import_file(file, kept=kept)


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
    n_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    n = n_common - TAIL_TOKENS
    if prompt.images:  # the token after an image is a control token, which no text after it changes
        n = max(n, *(i + 1 for i in range(1, n_common) if prompt.tokens[i - 1] < 0 <= prompt.tokens[i]), 0)
    return ChatPrompt(
        prompt.tokens[: max(1, n)],
        tuple(point for point in prompt.branch_points if MIN_SAVED_TOKENS <= point <= n - MIN_SAVED_TOKENS),
        images=prompt.images,
    )


def _continuations(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return two continuations of the messages, which differ from their first new character on."""
    last = messages[-1] if messages else None
    if isinstance(last, Mapping) and last.get("role") in ("user", "tool"):
        content = last.get("content")
        if isinstance(content, str):
            return list(messages), [*messages[:-1], {**last, "content": f"{content}a"}]
        if isinstance(content, (list, tuple)):
            longer = [*content, {"type": "text", "text": "a"}]
            return list(messages), [*messages[:-1], {**last, "content": longer}]
    return [*messages, {"role": "user", "content": "a"}], [*messages, {"role": "user", "content": "b"}]
