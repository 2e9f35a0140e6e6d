"""How the tokens of a request are sampled: within its thinking, and behind it."""

from __future__ import annotations

from dataclasses import replace

from pymtp.sampling import MOST, Sampler, SamplingParams
from pymtp.thinking import Thinking


class Samplers:
    """Samplers of one request. All have its seed.

    first: of the first token on; without the grammar where that waits for the end of the thinking.
    """

    def __init__(self, params: SamplingParams, thinking: Thinking, seed_offset: int) -> None:
        self._params, self._thinking = params, thinking
        self.first = Sampler(_held_to(params, None) if thinking.waits else params, seed_offset)

    def behind(self, n: int) -> Sampler:
        """Of the tokens behind a thinking that was closed. n: those that the sequence has by then."""
        prefix = self._thinking.grammar_prefix + n
        return self._seeded(_held_to(self._params, self._thinking.grammar, prefix))

    def free(self) -> Sampler:
        """Without a grammar, for a text that is brought back."""
        return self._seeded(_held_to(self._params, None))

    def certain(self, token: int) -> Sampler:
        """Of one token, whose log-probability is wanted."""
        return self._seeded(replace(_held_to(self._params, None), temperature=0.0, logit_bias={token: MOST}))

    def _seeded(self, params: SamplingParams) -> Sampler:
        return Sampler(replace(params, seed=self.first.seed))


def _held_to(params: SamplingParams, grammar: str | None, prefix: int = 0) -> SamplingParams:
    return replace(params, grammar=grammar, json_schema=None, grammar_prefix=prefix)
