"""From options to a loaded `LLM`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM


def read_drafts(drafts: str) -> int | Literal["auto"]:
    """The value of --draft-tokens. Raises InvalidRequestError for what is neither a number nor "auto"."""
    try:
        return "auto" if drafts == "auto" else int(drafts)
    except ValueError as error:
        raise InvalidRequestError(f'--draft-tokens {drafts!r} must be a whole number or "auto"') from error


def read_draft_vocab(tokens: str) -> int | Literal["auto", "all"]:
    """The value of --draft-vocab. Raises InvalidRequestError for what is neither a number, "auto" nor "all"."""
    try:
        return tokens if tokens in ("auto", "all") else int(tokens)  # type: ignore[return-value]
    except ValueError as error:
        raise InvalidRequestError(f'--draft-vocab {tokens!r} must be a whole number, "auto" or "all"') from error


def load(
    model: Path | None,
    ctx: int,
    gpu_layers: int,
    threads: int | None,
    cache: str,
    drafts: str,
    draft_vocab: str,
    tap: str,
    n_seq_max: int = 1,
) -> LLM:
    """The model with its context; None is the shipped model."""
    draft_tokens, vocabulary = read_drafts(drafts), read_draft_vocab(draft_vocab)
    with screen.status(f"loading {model.name if model else 'the shipped model'} …"):
        return LLM(
            model,
            n_ctx=ctx,
            n_seq_max=n_seq_max,
            n_gpu_layers=gpu_layers,
            n_threads=threads,
            type_k=cache,
            type_v=cache,
            draft_tokens=draft_tokens,
            draft_vocab=vocabulary,
            tap=tap,
        )
