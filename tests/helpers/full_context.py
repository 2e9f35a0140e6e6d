"""The measured memory of a full context, after rounds of every shape."""

from __future__ import annotations

from typing import Any

from pymtp.context.context import Context
from pymtp.context.memory import DeviceMemory
from pymtp.model.model import Model
from pymtp.sampling import Sampler, SamplingParams

KEPT = 8  # graphs of several sequences, like the constant in native/runtime/graph_slots.h


def largest_rounds(n_seq_max: int, n_rows: int) -> list[tuple[int, int]]:
    """Return the numbers of sequences and rows of the largest batch rounds."""
    shapes = [(s, n) for s in range(2, 1 + n_seq_max) for n in range(1, 1 + n_rows)]
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape[0]), reverse=True)[:KEPT]


def measured_memory(
    model: Model, *, n_ctx: int, draft_tokens: int, n_seq_max: int = 1, draft_text: int = 0, **options: Any
) -> DeviceMemory:
    """Return the memory of a full context after a round of every depth and the largest batch rounds."""
    options["draft_text"] = draft_text
    by_text = [n for n in range(draft_tokens + 1, draft_text + 1) if n < 8 or n in (15, 31)]
    with Context(model, n_ctx=n_ctx, draft_tokens=draft_tokens, n_seq_max=n_seq_max, n_threads=1, **options) as c:
        rounds = [(1, 1 + depth) for depth in range(draft_tokens + 1)]
        rounds += {
            *largest_rounds(n_seq_max, 1 + draft_tokens),
            *((s, 1 + n) for s, n in largest_rounds(n_seq_max, draft_tokens)),
        }
        token = {}
        for seq in range(n_seq_max):
            c.set_sampling(Sampler(SamplingParams()), seq)
            n_left = sum(n for s, n in rounds if seq < s) + sum(1 + n for n in by_text)
            c.prefill([i % 256 for i in range(n_ctx - n_left)], seq)
            token[seq] = c.first_token(seq)
        # the largest rounds of the target come last: those of the head took graph slots too
        for n_seqs, n in sorted(
            rounds, key=lambda round: (round[0] > 1, round in largest_rounds(n_seq_max, 1 + draft_tokens))
        ):
            seqs = range(n_seqs)
            chains = c.draft_chains({seq: token[seq] for seq in seqs}, n - 1) if n > 1 else {}
            rows = {seq: [token[seq], *(chains[seq][0] if n > 1 else [])] for seq in seqs}  # type: ignore[index]
            token |= {seq: out[-1] for seq, out in c.verify_chains(rows).items()}  # type: ignore[index]
        for n in by_text:
            c.verify_chain([1] * (1 + n))
        (device,) = c.memory()
    return device
