"""Acceptance that is made up: what rounds cost, apart from how good the head is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, cast

from pymtp.context.context import Context
from pymtp.context.options import draft_vocab_size
from pymtp.engine.context import EngineContext
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.model.model import Model


class SyntheticContext:
    """A context whose target seems to agree with its drafts at given rates. All else is the context's own.

    Drafts are made, verified and kept or taken back in earnest, so the caches hold what the loop believes. The text
    means nothing. Two things stay real: no token is sampled past the target's first disagreement, and the confidences
    are the head's own, whatever the rates.

    Whether a draft is accepted depends on the seed, the sequence, its text and the position there alone: contexts that
    are compared with each other, at different depths, have the same luck.
    """

    def __init__(self, context: EngineContext, rates: Sequence[float], seed: int = 0) -> None:
        """rates: how often the first, second, … draft of a round is accepted, falling or level; 0 past the last."""
        self._context = context
        # of each, where those before it were accepted
        self._steps = [later / earlier if earlier else 0.0 for earlier, later in pairwise((1.0, *rates))]
        self._seed = seed
        self._texts: Counter[int] = Counter()  # of each sequence, so far
        self._luck: dict[int, Luck] = {}  # of the text that it holds
        self._made: dict[int, Sequence[int]] = {}  # its drafts that are not verified yet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def clear(self, seq: int | None = None) -> None:
        """Empties a sequence, or all: another text comes."""
        self._context.clear(seq)
        for number in list(self._luck) if seq is None else [seq]:
            self._texts[number] += 1
            self._luck.pop(number, None)

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """As the context's."""
        found = self._context.draft_chains(tokens, n)
        self._made = {seq: chain[0] for seq, chain in found.items()}
        return found

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verifies them; of each, then, the drafts that are to count as accepted, and a token that the target drew.

        Where the next draft was made, not verified, and is to count as right, it is that draft.
        """
        before = {seq: self._context.tokens_held(seq) for seq in chains}
        found = self._context.verify_chains(chains)
        for seq, tokens in chains.items():
            sampled = found[seq]
            if isinstance(sampled, list):
                if seq not in self._luck:
                    self._luck[seq] = Luck(f"{self._seed} {seq} {self._texts[seq]}")
                verified = len(tokens) - 1
                drafts = [*tokens[1:], *self._made.get(seq, ())[verified:]]
                right = self._accepted(self._luck[seq], before[seq], len(drafts))
                n = min(right, verified)
                last = sampled[min(n, len(sampled) - 1)]
                found[seq] = [*drafts[:n], drafts[n] if right > n else _other(last, drafts[n : n + 1])]
        self._made = {}
        return found

    def _accepted(self, luck: Luck, n_past: int, drafts: int) -> int:
        n = 0
        for step in self._steps[:drafts]:
            if luck.at(n_past + n) >= step:
                break
            n += 1
        return n


def _other(token: int, rejected: Sequence[int]) -> int:
    """The token, or another one where it is the draft that was rejected: the loop would take it for right."""
    return token if token not in rejected else token - 1 if token else 1


class Luck:
    """Random numbers in [0, 1), by position."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """The number of a position, always the same."""
        while len(self._numbers) <= position:
            self._numbers.append(self._random.random())
        return self._numbers[position]


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
