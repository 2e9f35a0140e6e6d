"""Claims about the threads that compute: whatever their number, they write one text, and they sleep between calls."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread

import pytest
from conftest import make_llm
from makers.make_model import make_model

from pymtp import Model, SamplingParams

PROMPT = "import os\n\ndef walk(folder):\n"
PARAMS = [SamplingParams(120, ignore_eos=True), SamplingParams(120, temperature=0.9, seed=2, ignore_eos=True)]


@pytest.fixture(scope="module")
def moe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("moe") / "moe.gguf", weight_type="q4_k")
    return path


def texts(model: Path | Model, n_threads: int) -> list[list[int]]:
    with make_llm(model, n_threads=n_threads, draft_tokens=2) as llm:
        return [llm.generate([*llm.model.tokenize(PROMPT)], params).token_ids for params in PARAMS]


@pytest.mark.parametrize("n_threads", [2, 4, 16])
def test_the_text_is_the_same_with_any_number_of_threads(demo: Path, moe_file: Path, n_threads: int) -> None:
    for path in (demo, moe_file):
        with Model(path) as model:
            assert texts(model, n_threads) == texts(model, 1)


def test_threads_that_ask_at_once_get_the_texts_that_each_gets_alone(demo: Path) -> None:
    with Model(demo) as model:
        alone = texts(model, 1)
        came: list[list[list[int]]] = []
        askers = [Thread(target=lambda n=n: came.append(texts(model, n))) for n in (1, 2, 2, 3)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
    assert came == [alone] * len(askers)


def test_a_loaded_model_takes_no_processor_time_between_calls(demo: Path) -> None:
    with make_llm(demo, n_threads=2) as llm:
        llm.generate(PROMPT, PARAMS[0])
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02
