"""Whether an LLM that went through much still does what a fresh one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wishes import Outcome, Wish, outcome

from pymtp import LLM
from pymtp.context.context import Context


def fresh_differences(llm: LLM, settings: dict[str, Any], samples: Sequence[tuple[Wish, Outcome]]) -> list[str]:
    """What differs from a fresh LLM: of outcomes, and of what the context's sequences read now."""
    differences = []
    for wish, found in samples:
        with LLM(llm.model, **settings) as fresh:
            whole = outcome(fresh.generate(wish.prompt, wish.params))
        if difference := found.difference(whole):
            differences.append(f"{wish}: {difference}")
    context = llm.context
    prompt = (samples[0][0].prompt if samples else [1, 2, 3]) * 100
    with LLM(llm.model, **settings) as fresh:
        expected = _probe(fresh.context, prompt[:200], 0)
    for seq in range(context.n_seq_max):
        context.clear(seq)
        if _probe(context, prompt[:200], seq) != expected:
            differences.append(f"sequence {seq} reads a prompt otherwise than a fresh one")
        context.clear(seq)
    return differences


def _probe(context: Context, prompt: Sequence[int], seq: int) -> list[bytes]:
    read = context.prefill(prompt, seq)
    drafts = [context.draft(token, seq) for token in (5, 6)]
    return [logits.tobytes() for logits in (read, *drafts, context.verify([5, 6, 7], seq))]
