"""The gated delta rule for whole sequences, by chunks (Yang et al., arXiv 2412.06464, section 3.3)."""

import torch
from torch import Tensor


def delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return the outputs, (batch, tokens, value heads, size).

    query, key: (batch, tokens, key heads, size), of length 1. value: (batch, tokens, value heads, size); value head h
    belongs to key head h % key heads. decay: logarithms, at most 0; beta: both (batch, tokens, value heads).

    Per head and token, the state S (size by size) decays to D = exp(decay)·S and becomes D + β·k·(v - Dᵀk)ᵀ. The output
    is Sᵀq/√size.
    Within a chunk the corrections are a triangular system, which is solved for all chunks at once.
    """
    batch, tokens, key_heads, size = query.shape
    chunk = 64 if query.is_cuda else 32  # a GPU pays by the step, a CPU by the work
    padding = -tokens % chunk
    heads = value.shape[2] // key_heads

    def cut(x: Tensor) -> Tensor:
        """Cut (batch, tokens, heads, …) to (batch, chunks, repeats, key heads, chunk, …)."""
        x = torch.nn.functional.pad(x, (*(0, 0) * (x.ndim - 2), 0, padding))
        x = x.unflatten(1, (-1, chunk)).unflatten(3, (-1, key_heads))
        return x.permute(0, 1, 3, 4, 2, *range(5, x.ndim))

    query, key, value, decay, beta = (cut(x) for x in (query * size**-0.5, key, value, decay, beta))
    total = decay.cumsum(-1)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(upper, float("-inf")).exp()
    system = (beta[..., None] * between * (key @ key.transpose(-1, -2))).tril(-1)
    grown = total.exp()[..., None]
    wanted = beta[..., None] * torch.cat([value, (key * grown).expand_as(value)], -1)
    own, from_state = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True).split(size, -1)
    attended = between * (query @ key.transpose(-1, -2))
    query = query * grown
    key = (key * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    kept = total[..., -1].exp()[..., None, None]

    state = value.new_zeros(batch, heads, key_heads, size, size)
    outputs = []
    by_chunk = (x.unbind(1) for x in (query, key, own, from_state, attended, kept))
    for q, k, mine, others, here, keep in zip(*by_chunk, strict=True):
        corrected = mine - others @ state
        outputs.append(q @ state + here @ corrected)
        state = keep * state + k @ corrected
    rows = torch.stack(outputs, 1).permute(0, 1, 4, 2, 3, 5)  # (batch, chunks, chunk, repeats, key heads, size)
    return rows.reshape(batch, tokens + padding, heads * key_heads, size)[:, :tokens]
