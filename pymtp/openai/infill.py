"""Prompts that let the model fill in a text between a prefix and a suffix (fill in the middle)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from pymtp.errors import InvalidRequestError
from pymtp.model.model import MIN_NORMALIZED, Model
from pymtp.openai.loaded import LoadedModel
from pymtp.sampling import SamplingParams

# Names that Qwen's vocabularies have. REPO and FILE are needed only for further files.
PREFIX, SUFFIX, MIDDLE, REPO, FILE = (
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
REPO_NAME, FILE_NAME = "myproject", "filename"  # names of files that have none, as in llama.cpp's server
MAX_SUFFIX_SHARE = 4  # a suffix that is too long for the context keeps a quarter of it


class FimTokens(NamedTuple):
    """The tokens of a vocabulary that stand between the parts of a text; None for those that it does not have."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    file: int | None


def read_fim_tokens(model: Model) -> FimTokens:
    """Return the vocabulary's tokens. Raises InvalidRequestError for a model that has none to fill in a text."""
    prefix, suffix, middle, repo, file = (_single_token(model, name) for name in (PREFIX, SUFFIX, MIDDLE, REPO, FILE))
    if prefix is None or suffix is None or middle is None:
        raise InvalidRequestError(
            f"this model cannot fill in text: its vocabulary lacks {PREFIX}, {SUFFIX} or {MIDDLE}; ask it to continue "
            "the prefix alone",
            "suffix",
        )
    return FimTokens(prefix, suffix, middle, repo, file)


def infill_prompt(llm: LoadedModel, prefix: str | Sequence[int], suffix: str, params: SamplingParams) -> list[int]:
    """Return the prompt after which the model writes the text between prefix and suffix. See `infill_tokens`.

    Raises InvalidRequestError for a model that cannot fill in text.
    """
    model, n_ctx = llm.model, llm.context.n_ctx
    special = read_fim_tokens(model)
    before = last_tokens(model, [prefix] if isinstance(prefix, str) else prefix, n_ctx)
    after = first_tokens(model, [suffix], n_ctx)
    return infill_tokens(model, special, before, after, n_ctx=n_ctx, n_predict=params.max_tokens)


def first_tokens(model: Model, parts: Sequence[str | int], n_ctx: int, *, add_special: bool = False) -> list[int]:
    """Return the tokens of texts and token ids, at least the first n_ctx. Text far beyond them is not tokenized.

    add_special: whether a text at the beginning gets the tokens that the vocabulary puts before a text.
    """
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if len(tokens) >= n_ctx:
            break
        if isinstance(part, str):
            if not part and i:
                continue
            kept = part[: _max_characters(model, part, n_ctx)]
            tokens += model.tokenize(kept, add_special=add_special and i == 0)
        else:
            tokens.append(part)
    return tokens


def last_tokens(model: Model, parts: Sequence[str | int], n_ctx: int) -> list[int]:
    """Return the tokens of texts and token ids, at least the last n_ctx. Text far before them is not tokenized."""
    found: list[list[int]] = []
    left = n_ctx
    for part in reversed(parts):
        if left <= 0:
            break
        if part == "":
            continue
        if isinstance(part, str):
            kept = part[max(0, len(part) - _max_characters(model, part, n_ctx)) :]
            found.append(model.tokenize(kept, add_special=False))
        else:
            found.append([part])
        left -= len(found[-1])
    return list(chain.from_iterable(reversed(found)))


def _max_characters(model: Model, text: str, n_ctx: int) -> int:
    """Return a number of characters of a text that surely have more than n_ctx tokens, or the number of all."""
    if len(text) <= n_ctx:  # the longest token is not known yet, and takes a while to find
        return len(text)
    return math.ceil(((n_ctx + 1) * model.max_token_bytes + 1) / MIN_NORMALIZED)


def _single_token(model: Model, name: str) -> int | None:
    tokens = model.tokenize(name, add_special=False)
    return tokens[0] if len(tokens) == 1 else None


def infill_tokens(
    model: Model,
    special: FimTokens,
    prefix: Sequence[int],
    suffix: Sequence[int],
    *,
    begun: str = "",
    files: Sequence[tuple[str, str]] = (),
    n_ctx: int,
    n_predict: int | None,
) -> list[int]:
    """Return the prompt after which the model writes the text between prefix and suffix.

    What does not fit in the context is left out: the first files, then the beginning of the prefix and the end of the
    suffix.

    begun: the beginning of the text to be filled in, which follows the prefix.
    files: pairs of a name and a text, of which the last is the most important.
    n_predict: number of tokens to leave room for; None for a quarter of the context.

    Raises ContextFullError if `begun` is longer than the context.
    """
    model.check_fits(begun, n_ctx)
    answer_room = n_ctx // 4 if n_predict is None else min(n_predict, n_ctx // 2)
    begun_tokens = model.tokenize(begun, add_special=False) if begun else []
    room = n_ctx - answer_room - 3 - len(begun_tokens)
    kept_suffix = list(suffix[: max(room // MAX_SUFFIX_SHARE, room - len(prefix), 0)])
    n_prefix = max(0, room - len(kept_suffix))
    kept_prefix = list(prefix[max(0, len(prefix) - n_prefix) :])
    left = max(0, room - len(kept_suffix) - len(kept_prefix))
    extra = _file_tokens(model, special, files, left) if files and left else []
    return [
        *extra[max(0, len(extra) - left) :],
        special.prefix,
        *kept_prefix,
        *begun_tokens,
        special.suffix,
        *kept_suffix,
        special.middle,
    ]


def _file_tokens(model: Model, special: FimTokens, files: Sequence[tuple[str, str]], n_tokens: int) -> list[int]:
    """Return the tokens of further files, at least the last n_tokens.

    They have the form of Qwen's training data for whole repositories.
    """
    parts: list[str | int] = [] if special.repo is None else [special.repo, f"{REPO_NAME}\n"]
    for name, text in files:
        parts += [f"{text}\n\n"] if special.file is None else [special.file, f"{name or FILE_NAME}\n", text]
    if special.file is not None:
        parts += [special.file, f"{FILE_NAME}\n"]
    return last_tokens(model, parts, n_tokens)
