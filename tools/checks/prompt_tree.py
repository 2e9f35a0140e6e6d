"""Random requests whose prompts share beginnings, for checks of the prefix cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from random_requests import Outcome, RequestGenerator, RequestSpec

from pymtp.model.model import Model

KNOWN = 40  # texts that prompts repeat, continue or branch off from
ROOM = 64  # tokens of the context that most prompts leave free


class PromptTree(RequestGenerator):
    """Makes requests whose prompts are new, or related to earlier texts.

    A related prompt repeats an earlier text, or a beginning of it, or continues either of them.
    """

    def __init__(
        self, model: Model, numbers: random.Random, texts: Sequence[Sequence[int]], n_ctx: int, n_ubatch: int
    ) -> None:
        super().__init__(model, numbers, texts, n_ctx)
        self._n_ubatch = n_ubatch
        self.known: list[list[int]] = []

    def make(self, number: int = 0, arrival_step: int = 0) -> RequestSpec:
        """Return a request whose prompt later requests may share."""
        spec = super().make(number, arrival_step)
        prompt, numbers = spec.prompt, self._numbers
        self._keep(prompt)
        branch_points = {numbers.randint(1, len(prompt)) for _ in range(numbers.choice((0, 0, 0, 1, 2)))}
        logprobs = numbers.choice((None, 3)) if spec.params.logprobs is None else spec.params.logprobs
        return replace(spec, params=replace(spec.params, logprobs=logprobs), branch_points=tuple(sorted(branch_points)))

    def answered(self, spec: RequestSpec, found: Outcome) -> None:
        """Add the text that was generated for a prompt: later prompts may continue it."""
        n = len(found.token_ids)
        if n:
            self._keep(
                spec.prompt + found.token_ids[: self._numbers.choice((n, n, n - 1, self._numbers.randint(0, n)))]
            )

    def _keep(self, text: list[int]) -> None:
        if len(self.known) < KNOWN:
            self.known.append(text)
        else:
            self.known[self._numbers.randrange(KNOWN)] = text

    def _prompt(self) -> list[int]:
        numbers = self._numbers
        most = self._n_ctx - numbers.choice((1, ROOM, ROOM, ROOM))
        way = numbers.choice(("new", "again", "start", "part", "part", "more", "more")) if self.known else "new"
        if way == "new":
            return self._text(numbers.choice((numbers.randint(1, 90), numbers.randint(90, most))))[:most]
        base = numbers.choice(self.known)
        if way == "part":
            base = base[: self._place(len(base))] + self._text(numbers.choice((1, 8, 48, 100)))
        elif way == "start":
            base = base[: self._place(len(base))]
        elif way == "more":
            base = base + self._text(numbers.choice((1, 5, 40, 100)))
        return base[:most]

    def _place(self, length: int) -> int:
        """Return a random position: anywhere, near the end of a ubatch, or shortly before the end."""
        numbers = self._numbers
        piece = numbers.randrange(1 + length // self._n_ubatch) * self._n_ubatch + numbers.choice((-1, 0, 1))
        place = numbers.choice((numbers.randint(1, length), piece, length - numbers.randint(0, 12)))
        return min(max(1, place), length)

    def _text(self, n: int) -> list[int]:
        numbers = self._numbers
        if numbers.random() < 0.3:
            return numbers.choices(range(min(256, self._model.n_vocab)), k=n)
        text = numbers.choice(self._texts)
        start = numbers.randrange(max(1, len(text) - n))
        return list(text[start : start + n])
