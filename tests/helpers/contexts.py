"""Contexts of the models `dense`, `moe` and `qwen3next` (conftest.py), and what tests do with them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from pymtp.context.context import Context
from pymtp.context.inspect import Node
from pymtp.model.model import Model

DRAFTS = 3
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": "off"}
NO_WORK = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
EACH = pytest.mark.parametrize("model", ["dense", "moe", "qwen3next"], indirect=True)  # what graphs differ in
BOTH = pytest.mark.parametrize("model", ["dense", "moe"], indirect=True)


def context(model: Model, mode: str = "fused", **keywords: Any) -> Context:
    defaults: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_ubatch": 64, "draft_tokens": DRAFTS}
    return Context(model, prefill=mode, **(defaults | keywords))


def some_tokens(model: Model, n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(model.n_vocab), k=n)


def drafts(context: Context, token: int, seq: int = 0) -> list[int]:
    """Return a greedy chain of drafts after `token`, made step by step."""
    chain = [token]
    for _ in range(DRAFTS):
        chain.append(int(context.draft(chain[-1], seq).argmax()))
    return chain[1:]


def work(nodes: list[Node]) -> Counter[str]:
    """Count the operations that compute something, without views and reshapes."""
    return Counter(node.op for node in nodes if node.op not in NO_WORK)
