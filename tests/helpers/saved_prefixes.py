"""A saved prefix, and the outputs to compare, for tests of LLMs that save and load prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm

from pymtp import LLM, SamplingParams

DOCUMENT = "def area(width, height):\n    return width * height\n\n\n" * 30 + "class Rectangle:\n    wid"
QUESTION = "th = 0\n\n    def grow(self"
GREEDY = SamplingParams(max_tokens=24, logprobs=3)
SAMPLED = SamplingParams(max_tokens=24, logprobs=3, temperature=0.8, seed=5)
SHORT = SamplingParams(max_tokens=8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save DOCUMENT as a prefix, and return the file."""
    path = tmp_path_factory.mktemp("saved") / "document.prefix"
    with make_llm() as llm:
        llm.save_prefix(DOCUMENT, path)
    return path


def outputs(llm: LLM, prompts: Any, params: SamplingParams) -> list[Any]:
    """Generate, and return texts, tokens, logprobs and the acceptance of drafts: prefixes must not change them."""
    completions = llm.generate(prompts, params)
    drafts = [(c.stats.drafted, c.stats.accepted_per_position) for c in completions]
    return [[(c.text, c.token_ids, c.logprobs) for c in completions], drafts]
