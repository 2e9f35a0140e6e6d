"""The shipped model in torch: Qwen3.5's trunk and MTP head, with the names and layouts of its GGUF file.

`Network.state_dict()` holds exactly the tensors of the file, so export and import only change types. The layout is that
of llama.cpp's src/models/qwen35.cpp: value head h of a delta net uses key head h % key heads, norms multiply by
their weight, `ssm_a` is negative.

A row of a batch holds several documents. `starts` is True at the first token of each; nothing reaches over a start.
"""

from dataclasses import dataclass

import torch
from convolution import convolve
from delta_rule import delta_rule
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-6
TAPS = 4  # of a delta net's convolution
FORGET = -40.0  # log decay at a document's first token: exp(-40) wipes the state


@dataclass(frozen=True)
class Shape:
    """The dimensions. Every fourth block has full attention; the MTP head is one more such block."""

    vocab: int = 4096
    width: int = 128
    hidden: int = 384  # of the feed-forward networks
    blocks: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    key_heads: int = 2
    value_heads: int = 4
    linear_dim: int = 32  # of a head of a delta net
    rotated: int = 32  # dimensions of a head that RoPE turns
    rope_base: float = 10_000.0
    context: int = 8192


def shift(x: Tensor, by: int = 1) -> Tensor:
    """Shift rows of (batch, tokens, …, width) down by `by` tokens, with zero rows at the top."""
    return torch.cat([torch.zeros_like(x[:, :by]), x[:, :-by]], 1) if by else x


class Documents:
    """What the layers need to know of the documents of a batch, from `starts`, (batch, tokens), and the shape."""

    def __init__(self, starts: Tensor, shape: Shape) -> None:
        n = starts.shape[1]
        at = torch.arange(n, device=starts.device)
        self.index = starts.cumsum(1)
        first = torch.where(starts, at, 0).cummax(1).values
        self.position = at - first  # within the document
        self.same = self.index[:, :, None] == self.index[:, None, :]
        self.age = at[:, None] - at[None, :]  # query position minus key position
        self.causal = (self.same & (self.age >= 0))[:, None]
        self.forget = starts
        # for each tap before the token's own: where it would reach over a start
        self.reaching = [(self.position[:, by:] < by).nonzero(as_tuple=True) for by in range(1, TAPS)]
        rates = shape.rope_base ** (-torch.arange(0, shape.rotated, 2, device=starts.device) / shape.rotated)
        angles = self.position[..., None] * rates
        self.cos, self.sin = (torch.cat([f(angles)] * 2, -1)[:, :, None] for f in (torch.cos, torch.sin))

    def rope(self, x: Tensor) -> Tensor:
        """Turn the first dimensions of (batch, tokens, heads, head_dim) rows by their positions."""
        turned, rest = x.split([self.cos.shape[-1], x.shape[-1] - self.cos.shape[-1]], -1)
        low, high = turned.chunk(2, -1)
        return torch.cat([turned * self.cos + torch.cat([-high, low], -1) * self.sin, rest], -1)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, EPS)


def linear(rows_in: int, rows_out: int) -> nn.Linear:
    layer = nn.Linear(rows_in, rows_out, bias=False)
    nn.init.normal_(layer.weight, std=0.5 / rows_in**0.5)
    return layer


class Block(nn.Module):
    """What both kinds of blocks share: two norms, and the feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm, self.post_attention_norm = Norm(shape.width), Norm(shape.width)
        self.ffn_gate, self.ffn_up = linear(shape.width, shape.hidden), linear(shape.width, shape.hidden)
        self.ffn_down = linear(shape.hidden, shape.width)

    def mix(self, x: Tensor, documents: Documents) -> Tensor:
        """Return what the tokens take from one another, from normed rows."""
        raise NotImplementedError

    def feed_forward(self, x: Tensor) -> Tensor:
        normed = self.post_attention_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))

    def forward(self, x: Tensor, documents: Documents) -> Tensor:
        return self.feed_forward(x + self.mix(self.attn_norm(x), documents))


class Attention(Block):
    """Gated attention with norms of queries and keys, and several query heads for a key head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        inner = shape.heads * shape.head_dim
        self.attn_q = linear(shape.width, 2 * inner)  # for each head, the query and then the gate
        self.attn_k = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.attn_v = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.attn_q_norm, self.attn_k_norm = Norm(shape.head_dim), Norm(shape.head_dim)
        self.attn_output = linear(inner, shape.width)

    def project(self, x: Tensor, documents: Documents) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return query, key, value as (batch, heads, tokens, head_dim), and the gate as (batch, tokens, inner)."""
        size, repeats = self.shape.head_dim, self.shape.heads // self.shape.kv_heads
        query, gate = self.attn_q(x).unflatten(-1, (-1, 2 * size)).chunk(2, -1)
        query = documents.rope(self.attn_q_norm(query))
        key = documents.rope(self.attn_k_norm(self.attn_k(x).unflatten(-1, (-1, size))))
        value = self.attn_v(x).unflatten(-1, (-1, size))
        key, value = (t.repeat_interleave(repeats, 2).transpose(1, 2) for t in (key, value))
        return query.transpose(1, 2), key, value, gate.flatten(2)

    def finish(self, mixed: Tensor, gate: Tensor) -> Tensor:
        return self.attn_output(mixed.transpose(1, 2).flatten(2) * gate.sigmoid())

    def mix(self, x: Tensor, documents: Documents) -> Tensor:
        query, key, value, gate = self.project(x, documents)
        mixed = functional.scaled_dot_product_attention(
            query.to(value.dtype), key.to(value.dtype), value, attn_mask=documents.causal
        )
        return self.finish(mixed, gate)


class Taps(nn.Module):
    """A causal convolution of each channel, whose last tap is the token itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, TAPS) * 0.3)

    def forward(self, x: Tensor, documents: Documents) -> Tensor:
        return convolve(x.float(), self.weight, documents.reaching)


class Bias(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.bias = nn.Parameter(values)


class DeltaNet(Block):
    """A gated delta net (Yang et al., arXiv 2412.06464) behind a short convolution."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        keys, values = shape.key_heads * shape.linear_dim, shape.value_heads * shape.linear_dim
        self.attn_qkv, self.attn_gate = linear(shape.width, 2 * keys + values), linear(shape.width, values)
        self.ssm_alpha, self.ssm_beta = linear(shape.width, shape.value_heads), linear(shape.width, shape.value_heads)
        self.ssm_conv1d = Taps(2 * keys + values)
        self.ssm_a = nn.Parameter(-torch.logspace(0, 3, shape.value_heads, base=2))
        step = torch.logspace(-2, -1, shape.value_heads)
        self.ssm_dt = Bias(step.expm1().log())  # the inverse of softplus
        self.ssm_norm = Norm(shape.linear_dim)
        self.ssm_out = linear(values, shape.width)

    def mix(self, x: Tensor, documents: Documents) -> Tensor:
        size, keys = self.shape.linear_dim, self.shape.key_heads
        mixed = functional.silu(self.ssm_conv1d(self.attn_qkv(x), documents)).unflatten(-1, (-1, size))
        query, key, value = mixed.split([keys, keys, self.shape.value_heads], 2)
        query, key = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + EPS) for t in (query, key))
        decay = self.ssm_a * functional.softplus(self.ssm_alpha(x).float() + self.ssm_dt.bias)
        decay = torch.where(documents.forget[..., None], FORGET, decay)
        beta = self.ssm_beta(x).float().sigmoid()
        with torch.autocast(x.device.type, enabled=False):  # errors of bf16 would add up in the state
            rows = delta_rule(query, key, value, decay, beta)
        gate = functional.silu(self.attn_gate(x).unflatten(-1, (-1, size)))
        return self.ssm_out((self.ssm_norm(rows) * gate).flatten(2))


class Nextn(nn.Module):
    """The parts of the MTP head around its block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eh_proj = linear(2 * width, width)
        self.enorm, self.hnorm, self.shared_head_norm = Norm(width), Norm(width), Norm(width)


class Head(Attention):
    """The MTP head: row i takes token i and the trunk's row i-1, and predicts token i+1, as the trunk's row i does."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.nextn = Nextn(shape.width)

    def chained(self, embedding: Tensor, hidden: Tensor, documents: Documents, steps: int) -> list[Tensor]:
        """Return the rows of `steps` chained drafts for all positions at once. hidden: the trunk's normed rows.

        Row i of step s (from 1) is drafted after s-1 recycled rows. It sees the keys that true rows left up to position
        i-s+1, and the keys of the steps 2 to s at the positions after that. The first s-1 rows of a document have no
        such history and are to be ignored.
        """
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs: list[Tensor] = []
        rows = shift(hidden) * ~documents.forget[..., None]
        embedded = self.nextn.enorm(embedding)
        scale = self.shape.head_dim**-0.5
        for step in range(1, steps + 1):
            x = self.nextn.eh_proj(torch.cat([embedded, self.nextn.hnorm(rows)], -1))
            query, key, value, gate = self.project(self.attn_norm(x), documents)
            keys.append(key)
            values.append(value)
            seen = documents.causal & (documents.age >= step - 1)
            scores = [(query @ keys[0].transpose(2, 3) * scale).masked_fill(~seen, -1e9)]
            back = [(s, step - s) for s in range(2, step + 1)]
            scores += [(query * _shift_tokens(keys[s - 1], by)).sum(-1, keepdim=True) * scale for s, by in back]
            weights = torch.cat([s.float() for s in scores], -1).softmax(-1).to(value.dtype)
            mixed = weights[..., : x.shape[1]] @ values[0]
            for s, by in back:
                mixed = mixed + weights[..., x.shape[1] + s - 2, None] * _shift_tokens(values[s - 1], by)
            x = self.feed_forward(x + self.finish(mixed, gate))
            outputs.append(self.nextn.shared_head_norm(x))
            rows = shift(outputs[-1])
        return outputs


def _shift_tokens(x: Tensor, by: int) -> Tensor:
    """Shift (batch, heads, tokens, width) down by `by` tokens."""
    return shift(x.transpose(1, 2), by).transpose(1, 2)


class Network(nn.Module):
    """The trunk, with the head as its last block. Embeddings and output layer are one matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        trunk = [Attention(shape) if i % 4 == 3 else DeltaNet(shape) for i in range(shape.blocks)]
        self.blk = nn.ModuleList([*trunk, Head(shape)])
        self.output_norm = Norm(shape.width)
        self._spread_final_norms()

    @torch.no_grad()
    def _spread_final_norms(self) -> None:
        """Make the scales of the final norms as uneven as those of a large model.

        The head first divides a row by its size, so only these weights make rows before and after the norm differ for
        it. Even ones would hide a head that is fed with the wrong rows.
        """
        scale = torch.randn(self.shape.width).mul(0.7).exp()
        self.output_norm.weight.copy_(scale)
        self.blk[-1].nextn.shared_head_norm.weight.copy_(scale)

    def logits(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.token_embd.weight)

    def forward(self, tokens: Tensor, documents: Documents) -> Tensor:
        """Return the normed rows of the trunk, (batch, tokens, width), from which `logits` predicts the next tokens."""
        x = self.token_embd(tokens)
        for block in self.blk[:-1]:
            x = block(x, documents)
        return self.output_norm(x)

    def drafts(self, tokens: Tensor, rows: Tensor, documents: Documents, steps: int) -> list[Tensor]:
        """Return the rows of the head's chained drafts. rows: what `forward` returned."""
        return self.blk[-1].chained(self.token_embd(tokens), rows, documents, steps)
