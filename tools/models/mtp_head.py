"""The multi-token-prediction head of Qwen3.5 and Qwen3-Next in torch: a block that predicts the token after the next.

`transformers` drops the `mtp.*` weights of a checkpoint, so the reference is written here, once, for the golden
outputs. Names of the parameters are those of the published checkpoints.

Row i of the head takes token i and the trunk's hidden row i-1 (zero for i = 0), stands at position i, and predicts
token i+1. A chained step takes the head's own output row of the step before instead of the trunk's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm


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
