"""Synthetic acceptance: drafts are accepted at given rates, to measure rounds independently of the head's quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, cast

from pymtp.context.options import draft_vocab_size
from pymtp.engine.context import EngineContext
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.model.model import Model


class SyntheticContext:
    """A context whose target seems to accept its drafts at given rates.

    Drafts are really made, verified, and kept or rewound, so the caches hold the tokens that the generation loop has
    accepted. The generated text has no meaning. Two things do not follow the rates: the target samples no token after
    the first draft that it really rejects, and the confidences of drafts are those of the head.

    Whether a draft is accepted depends only on the seed, the sequence, the number of texts that the sequence had
    before, and the position. So contexts with different depths use the same random numbers, and can be compared.
    """

    def __init__(self, context: EngineContext, rates: Sequence[float], seed: int = 0) -> None:
        """Wrap a context.

        rates: acceptance of the first, second, … draft of a round; no rate is higher than the one before it. Drafts
            beyond the last rate are rejected.
        """
        self._context = context
        # for each draft of a round: the probability that it is accepted if all drafts before it were
        self._conditional = [later / earlier if earlier else 0.0 for earlier, later in pairwise((1.0, *rates))]
        self._seed = seed
        self._n_texts: Counter[int] = Counter()  # number of finished texts, by sequence
        self._random: dict[int, PositionRandom] = {}  # random numbers of the current text, by sequence
        self._drafts: dict[int, Sequence[int]] = {}  # drafts that were made but not verified yet, by sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def clear(self, seq: int | None = None) -> None:
        """Clear a sequence, or all sequences. The next text of a cleared sequence gets new random numbers."""
        self._context.clear(seq)
        for number in list(self._random) if seq is None else [seq]:
            self._n_texts[number] += 1
            self._random.pop(number, None)

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """Make drafts with the wrapped context."""
        chains = self._context.draft_chains(tokens, n)
        self._drafts = {seq: chain[0] for seq, chain in chains.items()}
        return chains

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verify chains. Return, for each chain, the drafts that are accepted at the rates, and one more token.

        The further token is one that the target sampled. Only if the next draft was made but not verified, and would be
        accepted at the rates, it is that draft.
        """
        before = {seq: self._context.tokens_held(seq) for seq in chains}
        results = self._context.verify_chains(chains)
        for seq, tokens in chains.items():
            sampled = results[seq]
            if isinstance(sampled, list):
                if seq not in self._random:
                    self._random[seq] = PositionRandom(f"{self._seed} {seq} {self._n_texts[seq]}")
                verified = len(tokens) - 1
                drafts = [*tokens[1:], *self._drafts.get(seq, ())[verified:]]
                n_right = self._count_accepted(self._random[seq], before[seq], len(drafts))
                n_accepted = min(n_right, verified)
                last = sampled[min(n_accepted, len(sampled) - 1)]
                following = drafts[n_accepted : n_accepted + 1]
                token = drafts[n_accepted] if n_right > n_accepted else different_token(last, following)
                results[seq] = [*drafts[:n_accepted], token]
        self._drafts = {}
        return results

    def _count_accepted(self, random: PositionRandom, n_past: int, drafts: int) -> int:
        n = 0
        for probability in self._conditional[:drafts]:
            if random.at(n_past + n) >= probability:
                break
            n += 1
        return n


def different_token(token: int, rejected: Sequence[int]) -> int:
    """Return the token, or another token if it equals the rejected draft.

    rejected: the rejected draft, or empty. If it were returned, the generation loop would count it as accepted.
    """
    return token if token not in rejected else token - 1 if token else 1


class PositionRandom:
    """A random number in [0, 1) for each position."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """Return the random number of a position; for a position it is always the same."""
        while len(self._numbers) <= position:
            self._numbers.append(self._random.random())
        return self._numbers[position]


def initial_draft_vocab(model: Model, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of LLM with the initial size that draft_vocab="auto" has, which then does not change."""
    if keywords.get("draft_vocab", "auto") != "auto":
        return keywords
    return {**keywords, "draft_vocab": draft_vocab_size("auto", model.n_vocab) or "all"}


class SyntheticLLM(LLM):
    """An LLM that generates with a SyntheticContext."""

    def __init__(self, model: Model, rates: Sequence[float], seed: int = 0, **keywords: Any) -> None:
        """Make an LLM with synthetic acceptance.

        draft_vocab="auto" keeps its initial size, because text generated with synthetic acceptance would lead to a
        wrong one.

        rates, seed: see SyntheticContext.
        keywords: keywords of LLM.
        """
        super().__init__(model, **initial_draft_vocab(model, keywords))
        # only requests get the synthetic acceptance: the warm-up has timed rounds of the context itself
        self._engine.run_on(cast(EngineContext, SyntheticContext(self.context, rates, seed)))
