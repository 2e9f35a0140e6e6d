"""How the tokens of a request are sampled: within its thinking, and behind it."""

from __future__ import annotations

from dataclasses import replace

from pymtp.sampling import MOST, Sampler, SamplingParams
from pymtp.thinking import Thinking

# Any text. It never ends: no character comes last.
ENDLESS = r"root ::= [^\x00]* [^\x00-\U0010ffff]"


class Samplers:
    """Samplers of one request. All have its seed.

    first: of the first token on. Where the grammar waits for the end of the thinking, the text may not end before.
    """

    def __init__(self, params: SamplingParams, thinking: Thinking, seed_offset: int) -> None:
        self._thinking = thinking
        self.first = Sampler(params, seed_offset)
        if thinking.waits:
            self.first = self.first.held_to(ENDLESS)

    def behind(self, n: int) -> Sampler:
        """Of the tokens behind a thinking that was closed. n: those that the sequence has by then."""
        return self.first.held_to(self._thinking.grammar, self._thinking.grammar_prefix + n)

    def free(self) -> Sampler:
        """Without a grammar, for a text that is brought back."""
        return self.first.held_to(None)

    def certain(self, token: int) -> Sampler:
        """Of one token, whose log-probability is wanted."""
        params = replace(self.first.params, grammar=None, json_schema=None, temperature=0.0, logit_bias={token: MOST})
        return Sampler(params)
