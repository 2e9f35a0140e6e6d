"""Forced text: a given text is taken as what the target chose, to measure rounds on real text without a real model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from pymtp.bench.synthetic import PositionRandom, different_token, initial_draft_vocab
from pymtp.bench.text_pairs import TokenPair
from pymtp.engine.context import EngineContext
from pymtp.errors import PymtpError
from pymtp.llm import LLM
from pymtp.model.model import Model

# Acceptance of the first, second, … draft as published for Qwen3.8-27B at temperature 1
PUBLISHED_RATES: tuple[float, ...] = (0.74, 0.50, 0.34, 0.24)


class ForcedContext:
    """A context whose target seems to generate given texts, and whose head seems to draft them at given rates.

    Target and head really compute, and the target really verifies and rewinds, so that rounds take their time and the
    caches hold the given text. Only the results are replaced: `first_token` and `verify_chains` return tokens of the
    text, and any draft that equals the text is accepted, from wherever it comes. A prompt without a given text is
    generated as always. A request should end with its text: tokens after the end of a text have no meaning.

    Of the head's drafts, the first, second, … of a round is replaced by the token of the text at the given rates. The
    others are wrong, and so are all after the first wrong one. The confidence c of a draft is random, with the density
    of a power of a uniform number, and its mean is the probability that the draft is right if those before it were.
    The draft is then right with probability c, so that the confidences are those of a calibrated head. A wrong draft
    does not lower the confidences after it, because a head does not see that it was wrong.

    Random numbers depend only on the seed, the prompt, and the position in the text. So contexts with different depths
    or other sequences use the same random numbers, and can be compared.

    One thing is not as in a real round: the target samples no token after the first draft that it really rejects.
    """

    def __init__(
        self, context: EngineContext, pairs: Iterable[TokenPair], rates: Sequence[float], seed: int = 0
    ) -> None:
        """Wrap a context.

        pairs: the texts, and the whole prompts after which they are generated.
        rates: acceptance of the first, second, … draft of a round; no rate is higher than the one before it. Drafts
            beyond the last rate are wrong.
        """
        self._context = context
        self._texts = {pair.prompt: pair.text for pair in pairs}
        # for each draft of a round: the probability that it is right if all drafts before it were
        self._conditional = [later / earlier if earlier else 0.0 for earlier, later in pairwise((1.0, *rates))]
        self._seed = seed
        self._running: dict[int, _RunningText] = {}  # by sequence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def clear(self, seq: int | None = None) -> None:
        """Clear a sequence, or all sequences."""
        self._context.clear(seq)
        for number in list(self._running) if seq is None else [seq]:
            self._running.pop(number, None)

    def move(self, source: int, seq: int) -> None:
        """Move a sequence, with its text, into an empty one."""
        self._context.move(source, seq)
        if source in self._running:
            self._running[seq] = self._running.pop(source)

    def first_token(self, seq: int = 0) -> int:
        """Sample the token after a prompt, and return the first token of the prompt's text."""
        token = self._context.first_token(seq)
        prompt = tuple(self._context.tokens(seq))
        text = self._texts.get(prompt)
        if text is None:
            self._running.pop(seq, None)
            return token
        self._running[seq] = _RunningText(text, len(prompt), f"{self._seed} {prompt}")
        return text[0]

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """Draft with the head, and return drafts that are right at the rates, with their confidences."""
        chains = self._context.draft_chains(tokens, n)
        for seq, (drafts, _) in chains.items():
            if (running := self._running.get(seq)) is not None:
                chains[seq] = running.draft(self._context.tokens_held(seq), drafts, self._conditional)
        return chains

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        """Verify chains. Return, for each chain, the drafts that equal the text, and the text's next token."""
        before = {seq: self._context.tokens_held(seq) for seq in chains if seq in self._running}
        results = self._context.verify_chains(chains)
        for seq, n_past in before.items():
            sampled = results[seq]
            if isinstance(sampled, list):
                results[seq] = self._running[seq].verify(n_past, chains[seq], sampled)
        return results


class _RunningText:
    """The text of a sequence."""

    def __init__(self, text: Sequence[int], n_prompt: int, seed: str) -> None:
        """Begin a text after a prompt of n_prompt tokens."""
        self._text, self._n_prompt = text, n_prompt
        self._luck, self._sureness = PositionRandom(f"{seed} luck"), PositionRandom(f"{seed} sureness")

    def _after(self, n_past: int, n: int) -> Sequence[int]:
        """Return the n tokens of the text after the next one, of a sequence that holds n_past tokens."""
        start = n_past - self._n_prompt + 1
        return self._text[start : start + n]

    def draft(self, n_past: int, drafts: list[int], rates: Sequence[float]) -> tuple[list[int], list[float]]:
        """Return the head's drafts as the text and the rates make them, and their confidences."""
        position = n_past - self._n_prompt + 1
        right, made, confidences = True, list[int](), list[float]()
        following = self._after(n_past, len(drafts))
        for i, draft in enumerate(drafts):
            rate = rates[i] if i < len(rates) else 0.0
            # U ** (1 / rate - 1) has the mean `rate` for a uniform U
            confidence = self._sureness.at(position + i) ** (1 / rate - 1) if rate else 0.0
            right = right and i < len(following) and self._luck.at(position + i) < confidence
            made.append(following[i] if right else different_token(draft, following[i : i + 1]))
            confidences.append(confidence)
        return made, confidences

    def verify(self, n_past: int, chain: Sequence[int], sampled: Sequence[int]) -> list[int]:
        """Return the drafts of a chain that equal the text, and one more token: the text's next, or a sampled one."""
        drafts, following = chain[1:], self._after(n_past, len(chain))
        if not following:
            return list(sampled)
        n = 0
        while n < len(drafts) and n < len(following) and drafts[n] == following[n]:
            n += 1
        return [*drafts[:n], following[n] if n < len(following) else sampled[-1]]


class ForcedLLM(LLM):
    """An LLM that generates with a ForcedContext."""

    def __init__(
        self, model: Model, pairs: Iterable[TokenPair], rates: Sequence[float], seed: int = 0, **keywords: Any
    ) -> None:
        """Make an LLM with forced texts.

        draft_vocab="auto" keeps its initial size: it would adapt to what the target really samples.

        pairs, rates, seed: see ForcedContext.
        keywords: keywords of LLM.
        """
        super().__init__(model, **initial_draft_vocab(model, keywords))
        # only requests get the texts: the warm-up has timed rounds of the context itself
        self._engine.run_on(cast(EngineContext, ForcedContext(self.context, pairs, rates, seed)))
