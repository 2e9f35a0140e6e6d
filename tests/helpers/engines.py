"""Engines over scripted contexts, and requests for them."""

from __future__ import annotations

from typing import Any

from helpers.scripted import ScriptedModel, SeededContext, expected_tokens
from pymtp.drafting.depth import RoundCosts, RoundTime
from pymtp.drafting.text_drafts import TextChoice
from pymtp.engine.batch_depth import BatchDepth
from pymtp.engine.engine import Engine
from pymtp.engine.image_encoder import NO_IMAGES, ImageEncoder, PromptImages
from pymtp.engine.request import Caller, Request, Waiter
from pymtp.engine.text import ThinkingPlan
from pymtp.errors import CancelledError
from pymtp.sampling import SamplingParams


class EngineHarness:
    """An engine over a SeededContext, and all requests that were submitted to it.

    text: the largest number of drafts from text in a round, with depth="auto".
    """

    def __init__(
        self,
        *,
        depth: int | str = 3,
        costs: RoundCosts | None = None,
        text: int = 0,
        end: int | None = None,
        cache_prompt: bool = True,
        cache_bytes: int = 0,
        context_type: type[SeededContext] = SeededContext,
        images: ImageEncoder | None = None,
        **context: Any,
    ) -> None:
        self.context = context_type(**context)
        max_depth = min(7, self.context.draft_tokens) if depth == "auto" else int(depth)
        if depth == "auto" and costs is None:
            costs = RoundCosts()
            costs.begin({(1, 0): RoundTime(0.0, 1.2), (1, 3): RoundTime(1.3, 1.8), (1, 7): RoundTime(1.7, 2.6)})
        self.context.draft_tokens = max_depth
        self.context.max_drafts = max(max_depth, text)
        choice = None
        if text and costs is not None:
            choice = TextChoice(costs, n_seq_max=self.context.n_seq_max, max_text=text, max_head=max_depth, max_rows=64)
        self.depth = BatchDepth(self.context.n_ctx, 512, max_depth, costs, choice)
        self.engine = Engine(
            self.context,  # type: ignore[arg-type]
            self.depth,
            cache_prompt=cache_prompt,
            cache_bytes=cache_bytes,
            images=images,
            clock=self.context.clock,
        )
        self.model = ScriptedModel(end)
        self.requests: list[Request] = []

    def submit(self, prompt: list[int], max_tokens: int = 20, **keywords: Any) -> Request:
        """Submit a request: see `make`."""
        request = self.make(prompt, max_tokens, **keywords)
        self.engine.submit(request)
        return request

    def make(
        self,
        prompt: list[int],
        max_tokens: int = 20,
        *,
        seed: int = 0,
        priority: int = 0,
        max_unread: int | None = None,
        waiter: Waiter | None = None,
        group: object = None,
        caller: Caller = Caller(),  # noqa: B008 — a constant
        branch_points: tuple[int, ...] = (),
        thinking: ThinkingPlan | None = None,
        images: PromptImages = NO_IMAGES,
        **params: Any,
    ) -> Request:
        """Make a request that is not submitted. params: fields of SamplingParams."""
        request = Request(
            self.model,  # type: ignore[arg-type]
            prompt,
            SamplingParams(max_tokens, seed=seed, **params),
            waiter or Waiter(),
            priority=priority,
            max_unread=max_unread,
            group=group,
            caller=caller,
            branch_points=branch_points,
            thinking=thinking,
            images=images,
        )
        self.requests.append(request)
        return request

    def submit_several(self, n: int, prompt: list[int], max_tokens: int = 20, **keywords: Any) -> list[Request]:
        """Submit n completions of one prompt, as LLM.generate does: with a seed each, one after the other."""
        seed, group = keywords.pop("seed", 0), object()
        return [self.submit(prompt, max_tokens, seed=seed + i, group=group, **keywords) for i in range(n)]

    def late_cancel(self) -> CancelledError:
        """Return the error of a call that notices a cancel() late: it meant none of the present requests."""
        self.context.cancelled = True
        return CancelledError("cancelled")

    def run(self, *, max_steps: int = 10_000) -> None:
        """Run until all requests have ended. Their readers take all pieces."""
        for _ in range(max_steps):
            if all(request.ended for request in self.requests):
                return
            self.engine.step()
            for request in self.requests:
                request.unread.clear()
        raise AssertionError("a request never ends")

    def check(self) -> None:
        """Check that each output is that of its prompt alone, as far as it goes."""
        for request in self.requests:
            done = request.completion
            n = len(done.token_ids)
            assert done.token_ids == expected_tokens(done.seed, request.prompt, n, self.context.next_token)
            assert done.text == "".join(chr(ord("0") + token) for token in done.token_ids)
            if request.finish_reason == "length":
                assert n == request.max_output_tokens(self.context.n_ctx)
