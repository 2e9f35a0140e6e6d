"""The part of a context that the engine uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pymtp.context.inspect import Counters
from pymtp.engine.rounds import RoundContext
from pymtp.prefix_cache.context import PrefixContext
from pymtp.sampling import Logits, Sampler, TokenLogprobs


class EngineContext(RoundContext, PrefixContext, Protocol):
    """The calls of a context that the engine makes; see context.Context."""

    draft_tokens: int
    cancels: int

    @property
    def cancelled(self) -> bool: ...
    @property
    def counters(self) -> Counters: ...
    def cancel(self, cancelled: bool = True) -> None: ...
    def set_sampling(self, sampler: Sampler, seq: int = 0) -> None: ...
    def prefill_batch(self, prompts: Mapping[int, Sequence[int]]) -> object: ...
    def prefill_logits(self, tokens: Sequence[int], seq: int = 0) -> Logits: ...
    def first_token(self, seq: int = 0) -> int: ...
    def logprobs(self, seq: int = 0) -> list[TokenLogprobs]: ...
    def move(self, source: int, seq: int) -> None: ...
