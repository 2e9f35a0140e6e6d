"""Prompts that let the model fill in a text between a prefix and a suffix (fill in the middle)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.model.model import Model
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


def infill_prompt(llm: LLM, prefix: str | Sequence[int], suffix: str, params: SamplingParams) -> list[int]:
    """Return the prompt after which the model writes the text between prefix and suffix. See `infill_tokens`.

    Raises InvalidRequestError for a model that cannot fill in text.
    """
    special = read_fim_tokens(llm.model)
    before = llm.model.tokenize(prefix, add_special=False) if isinstance(prefix, str) else prefix
    after = llm.model.tokenize(suffix, add_special=False)
    return infill_tokens(llm.model, special, before, after, n_ctx=llm.context.n_ctx, n_predict=params.max_tokens)


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
    """
    answer_room = n_ctx // 4 if n_predict is None else min(n_predict, n_ctx // 2)
    begun_tokens = model.tokenize(begun, add_special=False) if begun else []
    room = n_ctx - answer_room - 3 - len(begun_tokens)
    kept_suffix = list(suffix[: max(room // MAX_SUFFIX_SHARE, room - len(prefix), 0)])
    n_prefix = max(0, room - len(kept_suffix))
    kept_prefix = list(prefix[max(0, len(prefix) - n_prefix) :])
    extra = _file_tokens(model, special, files) if files else []
    left = max(0, room - len(kept_suffix) - len(kept_prefix))
    return [
        *extra[max(0, len(extra) - left) :],
        special.prefix,
        *kept_prefix,
        *begun_tokens,
        special.suffix,
        *kept_suffix,
        special.middle,
    ]


def _file_tokens(model: Model, special: FimTokens, files: Sequence[tuple[str, str]]) -> list[int]:
    """Return the tokens of further files, in the form of Qwen's training data for whole repositories."""
    tokens: list[int] = []
    if special.repo is not None:
        tokens += [special.repo, *model.tokenize(f"{REPO_NAME}\n", add_special=False)]
    for name, text in files:
        if special.file is not None:
            tokens += [special.file, *model.tokenize(f"{name or FILE_NAME}\n", add_special=False)]
        tokens += model.tokenize(text if special.file is not None else f"{text}\n\n", add_special=False)
    if special.file is not None:
        tokens += [special.file, *model.tokenize(f"{FILE_NAME}\n", add_special=False)]
    return tokens
