"""From options to a loaded `LLM`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pymtp.cli.options import Cache, CacheType, Ctx, Drafts, DraftVocab, Layers, ModelFile, Tap, Threads
from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.loading import load


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


@dataclass(frozen=True)
class Loading:
    """What a model is loaded with."""

    model: ModelFile = None
    draft_tokens: Drafts = "auto"
    draft_vocab: DraftVocab = "auto"
    tap: Tap = "auto"
    ctx: Ctx = 8192
    gpu_layers: Layers = -1
    threads: Threads = None
    cache_type: CacheType = "f16"
    cache: Cache = None

    def keywords(self, n_seq_max: int = 1) -> dict[str, Any]:
        """Those of LLM. Raises InvalidRequestError for numbers that are none."""
        return {
            "n_ctx": self.ctx,
            "n_seq_max": n_seq_max,
            "n_gpu_layers": self.gpu_layers,
            "n_threads": self.threads,
            "type_k": self.cache_type,
            "type_v": self.cache_type,
            "draft_tokens": read_drafts(self.draft_tokens),
            "draft_vocab": read_draft_vocab(self.draft_vocab),
            "tap": self.tap,
            "cache_bytes": None if self.cache is None else self.cache * 2**20,
        }

    def llm(self, n_seq_max: int = 1, prefix: Path | None = None) -> LLM:
        """The model with its context; without a file, the shipped model. As loading.load."""
        keywords = self.keywords(n_seq_max)
        with screen.status(f"loading {self.model.name if self.model else 'the shipped model'} …"):
            return load(self.model, keywords, prefix)
