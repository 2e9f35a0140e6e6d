"""Acceptance that is made up: what rounds cost, apart from how good the head is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

from pymtp.context import Context
from pymtp.context_options import draft_vocab_size
from pymtp.engine.rounds import RoundContext
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.model import Model


class SyntheticContext:
    """A context whose target seems to agree with its drafts at given rates. All else is the context's own.

    Drafts are made, verified and kept or taken back in earnest, so the caches hold what the loop believes. The text
    means nothing. Two things stay real: no token is sampled past the target's first disagreement, and the confidences
    are the head's own, whatever the rates.
    """

    def __init__(self, context: RoundContext, rates: Sequence[float], seed: int = 0) -> None:
        """rates: how often the first, second, … draft of a round is accepted, falling or level; 0 past the last."""
        self._context = context
        self._rates = tuple(rates)
        self._random = Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verifies them; of each, then, the drafts that are to count as accepted, and a token that the target drew."""
        found = self._context.verify_chains(chains)
        for seq, tokens in chains.items():
            sampled = found[seq]
            if isinstance(sampled, list):
                luck = self._random.random()  # one for all: a draft counts only where those before it do
                n = sum(luck < rate for rate in self._rates[: len(tokens) - 1])
                found[seq] = [*tokens[1 : 1 + n], sampled[min(n, len(sampled) - 1)]]
        return found


class SyntheticLLM(LLM):
    """An LLM over a SyntheticContext."""

    def __init__(self, model: Model, rates: Sequence[float], seed: int = 0, **keywords: Any) -> None:
        """keywords: of LLM. draft_vocab="auto" stays at the size that it begins with: where acceptance is made up, what
        the target writes does not tell which size is better."""
        if keywords.get("draft_vocab", "auto") == "auto":
            keywords["draft_vocab"] = draft_vocab_size("auto", model.n_vocab) or "all"
        self._rates, self._seed = rates, seed
        self._synthetic: SyntheticContext | None = None
        super().__init__(model, **keywords)

    @property
    def context(self) -> Context:
        """The context that the loop sees. Raises ClosedError after close()."""
        context = super().context
        if self._synthetic is None:
            self._synthetic = SyntheticContext(context, self._rates, self._seed)
        return cast(Context, self._synthetic)
