"""Tests of Qwen3-Next: its text and drafts are like those of the other architectures.

The model is a copy of the shipped qwen35 model in the format of qwen3next, which computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import make_llm
from helpers.bits import ROWS_ALONE
from makers.next_twin import write_next_twin

from pymtp import LLM, Completion, Model, SamplingParams
from pymtp.context.context import Context

TOKENS = list(range(3, 143, 2))
GREEDY = SamplingParams(60, ignore_eos=True)
SAMPLED = SamplingParams(60, temperature=0.8, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def twin(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("models") / "twin.gguf"
    write_next_twin(demo, path)
    with Model(path) as model:
        assert (model.architecture, model.has_head, model.tap) == ("qwen3next", True, "post_norm")
        yield model


def written(model: Model | Path, prompts: list[str], params: SamplingParams, draft_tokens: Any) -> list[Completion]:
    with make_llm(model, draft_tokens=draft_tokens, n_seq_max=2) as llm:
        return llm.generate(prompts, params)


def test_qwen3next_copy_of_a_qwen35_model_has_the_same_text_and_acceptance(
    twin: Model, demo_f32: Path, prompts: list[str]
) -> None:
    params = replace(GREEDY, ignore_eos=False)  # what comes after a text's end is never like the drafts
    one, other = (written(model, prompts[:5], params, 3) for model in (twin, demo_f32))
    assert [c.token_ids for c in one] == [c.token_ids for c in other]
    assert [c.stats.accepted_per_position for c in one] == [c.stats.accepted_per_position for c in other]
    assert sum(c.stats.accepted for c in one) > 0.4 * sum(c.stats.drafted for c in one)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "T=0.8"])
def test_qwen3next_text_is_the_same_with_drafts_and_without(
    twin: Model, prompts: list[str], params: SamplingParams
) -> None:
    plain = [c.token_ids for c in written(twin, prompts[:2], params, 0)]
    for draft_tokens in (1, 3, 7, "auto"):
        assert [c.token_ids for c in written(twin, prompts[:2], params, draft_tokens)] == plain, draft_tokens


@pytest.mark.skipif(not ROWS_ALONE, reason="on other processors, the choice of kernels depends on the number of rows")
def test_qwen3next_file_with_joined_matrices_has_the_same_bits(twin: Model, demo: Path, tmp_path: Path) -> None:
    write_next_twin(demo, tmp_path / "early.gguf", joined=True)
    found = []
    with Model(tmp_path / "early.gguf") as early:
        for model in (twin, early):
            with Context(model, n_ctx=256, n_threads=1, draft_tokens=3) as c:
                rows = [c.prefill(TOKENS), c.verify(TOKENS[:4])]
                c.rewind(len(TOKENS) + 2)
                found.append([row.tobytes() for row in (*rows, c.verify(TOKENS[2:4]), c.draft(TOKENS[4]))])
    assert found[0] == found[1]


def test_qwen3next_prefix_is_saved_and_loaded(twin: Model, prompts: list[str], tmp_path: Path) -> None:
    def texts(llm: LLM) -> list[list[int]]:
        return [c.token_ids for c in llm.generate([prompts[0] + "x", prompts[0] + "y"], GREEDY)]

    with make_llm(twin, n_seq_max=2) as llm:
        wanted = texts(llm)
        llm.save_prefix(prompts[0], tmp_path / "prefix")
    with make_llm(twin, n_seq_max=2) as llm:
        llm.load_prefix(tmp_path / "prefix")
        assert texts(llm) == wanted
