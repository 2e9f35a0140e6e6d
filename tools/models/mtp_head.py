"""The multi-token-prediction head of Qwen3.5 and Qwen3-Next in torch: a block that predicts the token after the next.

`transformers` drops the `mtp.*` weights of a checkpoint, so the reference is written here, once, for the trainer and
for the golden outputs. Names of the parameters are those of the published checkpoints.

Row i of the head takes token i and the trunk's hidden row i-1 (zero for i = 0), stands at position i, and predicts
token i+1. A chained step takes the head's own output row of the step before instead of the trunk's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    apply_rotary_pos_emb,
    repeat_kv,
)


def shift_rows(hidden: Tensor, by: int = 1) -> Tensor:
    """Shift rows of (batch, tokens, width) down by `by`, with zero rows at the top."""
    return functional.pad(hidden, (0, 0, by, 0))[:, : hidden.shape[1]]


class MtpHead(nn.Module):
    """x = fc(cat[norm_e(embedding), norm_h(hidden)]), one full-attention decoder layer, norm.

    layer, norm: the family's decoder layer and RMSNorm.
    """

    def __init__(
        self, config: Any, layer: type[nn.Module] = Qwen3_5DecoderLayer, norm: type[nn.Module] = Qwen3_5RMSNorm
    ) -> None:
        super().__init__()
        full_attention = config.layer_types.index("full_attention")
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([layer(config, full_attention)])
        self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)

    def fuse(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Return the block's input from token embeddings and hidden rows, both (batch, tokens, width)."""
        return self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], dim=-1))

    def forward(self, embedding: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Run a causal pass over (batch, tokens, width) rows, and return (pre-norm rows, post-norm rows)."""
        n = embedding.shape[1]
        causal = torch.full((n, n), float("-inf")).triu(1)[None, None]
        rows = self.layers[0](self.fuse(embedding, hidden), position_embeddings=rope, attention_mask=causal)
        return rows, self.norm(rows)

    def chained(self, embedding: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor], steps: int) -> list[Tensor]:
        """Return the post-norm rows of `steps` chained draft steps, for every start position of the batch at once.

        Row i of step s (from 1) is what drafting produces there after s-1 recycled rows: it attends to the
        keys that true hidden rows left at positions up to i-s+1, and to the keys of steps 2..s at the positions
        after that. Rows i < s-1 of step s have no such history and are to be ignored.
        """
        layer = self.layers[0]
        attn = layer.self_attn
        n = embedding.shape[1]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs: list[Tensor] = []
        rows_in = hidden
        age = torch.arange(n)[:, None] - torch.arange(n)[None, :]  # query position minus key position
        for step in range(1, steps + 1):
            x = self.fuse(embedding, rows_in)
            normed = layer.input_layernorm(x)
            shape = (*normed.shape[:-1], -1, attn.head_dim)
            query, gate = attn.q_proj(normed).view(*normed.shape[:-1], -1, attn.head_dim * 2).chunk(2, dim=-1)
            query = attn.q_norm(query).transpose(1, 2)
            key = attn.k_norm(attn.k_proj(normed).view(shape)).transpose(1, 2)
            value = attn.v_proj(normed).view(shape).transpose(1, 2)
            query, key = apply_rotary_pos_emb(query, key, *rope)
            keys.append(repeat_kv(key, attn.num_key_value_groups))
            values.append(repeat_kv(value, attn.num_key_value_groups))

            true_rows = (query @ keys[0].transpose(2, 3)) * attn.scaling
            scores = [true_rows.masked_fill(age < step - 1, float("-inf"))]
            recycled = [shift_rows_4d(keys[s - 1], step - s) for s in range(2, step + 1)]
            scores += [(query * k).sum(-1, keepdim=True) * attn.scaling for k in recycled]
            weights = torch.cat(scores, dim=-1)
            weights = torch.where(weights.isneginf().all(-1, keepdim=True), 0.0, weights).softmax(-1)
            mixed = weights[..., :n] @ values[0]
            for s in range(2, step + 1):
                mixed = mixed + weights[..., n + s - 2, None] * shift_rows_4d(values[s - 1], step - s)

            mixed = mixed.transpose(1, 2).reshape(*normed.shape[:-1], -1)
            x = x + attn.o_proj(mixed * gate.reshape(mixed.shape).sigmoid())
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            outputs.append(self.norm(x))
            rows_in = shift_rows(outputs[-1])
        return outputs


def shift_rows_4d(x: Tensor, by: int) -> Tensor:
    """Shift the rows of (batch, heads, tokens, width) down by `by` positions."""
    return functional.pad(x, (0, 0, by, 0))[:, :, : x.shape[2]]
