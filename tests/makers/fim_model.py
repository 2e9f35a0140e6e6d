"""A copy of the shipped model whose vocabulary has Qwen's tokens for infilling, in place of its last tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import TokenType

from makers.gguf_read import open_gguf
from makers.gguf_variants import rewrite
from pymtp.model.model import demo_model

FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


def write_fim_model(path: Path, *, template: str | None = None) -> Path:
    """Write the model, and return its path. template: a chat template in place of the shipped one."""
    fields = open_gguf(demo_model()).fields
    n = len(FIM_TOKENS)
    tokens, types, merges = (
        list(fields[f"tokenizer.ggml.{name}"].contents()) for name in ("tokens", "token_type", "merges")
    )
    metadata: dict[str, Any] = {
        "tokenizer.ggml.tokens": [*tokens[:-n], *FIM_TOKENS],
        "tokenizer.ggml.token_type": [*types[:-n], *[int(TokenType.CONTROL)] * n],
        # merges that make one of the replaced tokens would be refused
        "tokenizer.ggml.merges": [merge for merge in merges if merge.replace(" ", "") not in tokens[-n:]],
    }
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    rewrite(demo_model(), path, metadata=metadata)
    return path
