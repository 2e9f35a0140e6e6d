"""Engines over scripted contexts, and requests for them."""

from __future__ import annotations

from typing import Any

from helpers.scripted import PureContext, ScriptedModel, written
from pymtp.chat.thinking import Thinking
from pymtp.drafting.depth import Costs
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.engine import Engine
from pymtp.engine.request import Caller, Request
from pymtp.sampling import SamplingParams


class Bed:
    """An engine over a PureContext, and all requests that it was given."""

    def __init__(
        self,
        *,
        depth: int | str = 3,
        costs: Costs | None = None,
        end: int | None = None,
        cache_prompt: bool = True,
        cache_bytes: int = 0,
        **context: Any,
    ) -> None:
        self.context = PureContext(**context)
        most = min(7, self.context.draft_tokens) if depth == "auto" else int(depth)
        if depth == "auto" and costs is None:
            costs = Costs()
            costs.begin({1: 1.2, 4: 1.8, 8: 2.6}, {3: 1.3})
        self.context.draft_tokens = most
        self.depth = BatchDepth(self.context.n_ctx, 512, most, costs)
        self.engine = Engine(
            self.context,  # type: ignore[arg-type]
            self.depth,
            cache_prompt=cache_prompt,
            cache_bytes=cache_bytes,
            clock=self.context.clock,
        )
        self.model = ScriptedModel(end)
        self.requests: list[Request] = []

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 20,
        *,
        seed: int = 0,
        priority: int = 0,
        ahead: int | None = None,
        caller: Caller | None = None,
        family: object = None,
        marks: tuple[int, ...] = (),
        thinking: Thinking | None = None,
        **params: Any,
    ) -> Request:
        request = Request(
            self.model,  # type: ignore[arg-type]
            prompt,
            SamplingParams(max_tokens, seed=seed, **params),
            caller or Caller(),
            priority=priority,
            ahead=ahead,
            family=family,
            marks=marks,
            thinking=thinking,
        )
        self.engine.submit(request)
        self.requests.append(request)
        return request

    def submit_several(self, n: int, prompt: list[int], max_tokens: int = 20, **keywords: Any) -> list[Request]:
        """As LLM.generate with n completions: the seeds follow each other."""
        seed, family = keywords.pop("seed", 0), object()
        return [self.submit(prompt, max_tokens, seed=seed + i, family=family, **keywords) for i in range(n)]

    def run(self, *, most: int = 10_000) -> None:
        """Until all requests have ended; readers take what comes."""
        for _ in range(most):
            if all(request.ended for request in self.requests):
                return
            self.engine.step()
            for request in self.requests:
                request.unread.clear()
        raise AssertionError("some request never ends")

    def check(self) -> None:
        """Each text is that of its prompt alone, up to where it was cut."""
        for request in self.requests:
            done = request.completion
            n = len(done.token_ids)
            assert done.token_ids == written(done.seed, request.prompt, n), request.number
            assert done.text == "".join(chr(ord("0") + token) for token in done.token_ids)
            if request.reason == "length":
                assert n == request.most(self.context.n_ctx)
