"""The parts of a context that the engine uses; see context.Context. Tests put scripted contexts in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymtp.context.inspect import Counters
from pymtp.errors import PymtpError
from pymtp.prefix_cache.context import PrefixContext
from pymtp.sampling import Logits, Sampler, TokenLogprobs


class RoundContext(Protocol):
    """The calls of a context that a round makes."""

    n_ctx: int

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]: ...
    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]: ...
    def drafts_over(self, token: int) -> bool: ...
    def rewind(self, n_keep: int, seq: int = 0) -> None: ...


class SingleSequenceContext(RoundContext, Protocol):
    """The calls of a context that `generate_single` makes."""

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> object: ...
    def first_token(self, seq: int = 0) -> int: ...
    def tokens_held(self, seq: int = 0) -> int: ...


class EngineContext(RoundContext, PrefixContext, Protocol):
    """The calls of a context that the engine makes."""

    draft_tokens: int
    draft_text: int
    max_drafts: int
    max_verify_rows: int
    cancels: int
    cancelled: bool

    @property
    def counters(self) -> Counters: ...
    def cancel(self, cancelled: bool = True) -> None: ...
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None: ...
    def add_image(self, token: int, nx: int, ny: int) -> None: ...
    def prefill_batch(
        self, prompts: Mapping[int, Sequence[int]], images: Mapping[int, NDArray[np.float32]] = ...
    ) -> object: ...
    def prefill_logits(self, tokens: Sequence[int], seq: int = 0) -> Logits: ...
    def first_token(self, seq: int = 0) -> int: ...
    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]: ...
    def move(self, source: int, seq: int) -> None: ...
