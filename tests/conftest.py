"""What tests share: the shipped model, its F32 twin, prompts that training never saw."""

from __future__ import annotations

import gc
import logging
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy: its threads would take time from other processes of tests

import helpers.devices  # noqa: F401 — before pymtp
import pytest
from hypothesis import settings
from makers.demo_corpus import held_out_prompts
from makers.gguf_variants import rewrite
from makers.make_model import make_model

from pymtp import LLM, Model
from pymtp.model.model import demo_model

# Their fixtures. A machine that is lent for its GPU has not what tests of the server need.
pytest_plugins = ["helpers.prefix_files", "helpers.saved_prefixes", "helpers.tuned"]
pytest_plugins += ["helpers.browser"] if find_spec("playwright") else []
pytest_plugins += ["helpers.scripted_server"] if find_spec("fastapi") and find_spec("uvicorn") else []

# no deadlines: a busy machine is no bug; the same examples each time where a failure stops a delivery
settings.register_profile("pymtp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("pymtp")

ROOT = Path(__file__).parent.parent

# A job that a script starts in the background ignores Ctrl-C, and so would the processes that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each client of httpx makes one: 20 ms, for the certificates of all authorities. No test needs one of its own.
ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]

LAST = ("test_same_text.py", "test_packaging.py")  # the slowest


def pytest_xdist_auto_num_workers() -> int:
    """Two more than cores: many tests wait for other processes, or for a time to pass."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LAST.index(item.path.name) + 1 if item.path.name in LAST else 0)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the garbage collector need not look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process and logs leaves its handlers behind, and they the stream of its test."""
    loggers = [logging.getLogger(name) for name in ("pymtp", "pymtp.drafts", "pymtp.native", "uvicorn")]
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        if logger.level != level:
            logger.setLevel(level)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The model that ships with pymtp."""
    return demo_model()


@pytest.fixture(scope="session")
def demo_f32(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with its weights dequantized."""
    path = tmp_path_factory.mktemp("models") / "demo-f32.gguf"
    rewrite(demo, path, weights="f32")
    return path


@pytest.fixture(scope="session")
def headless(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model without its head."""
    path = tmp_path_factory.mktemp("models") / "headless.gguf"
    rewrite(demo, path, drop_head=True)
    return path


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Twenty pieces of standard library source that the demo model was not trained on."""
    return held_out_prompts(20)


@pytest.fixture(scope="session")
def dense(demo_f32: Path) -> Iterator[Model]:
    """The shipped model in F32; its delta nets have more V heads than K heads."""
    with Model(demo_f32) as model:
        yield model


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A tiny model with experts, random weights in F32."""
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("models") / "moe.gguf", weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.fixture(scope="session")
def qwen3next(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A tiny Qwen3-Next, random weights in F32."""
    (path,) = make_model("tiny-next", tmp_path_factory.mktemp("models") / "next.gguf", weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Model:
    """`dense`, `moe` or `qwen3next`, by parameter: see EACH in helpers/contexts.py."""
    found: Model = request.getfixturevalue(request.param)
    return found


def make_llm(model: Path | Model | None = None, **keywords: Any) -> LLM:
    """An LLM sized for tests. One thread: a model this small gains nothing from two, and a busy machine's
    second core would keep the first waiting at every barrier. A fixed depth: "auto" goes by the clock."""
    return LLM(model, **({"n_ctx": 1024, "n_threads": 1, "draft_tokens": 3} | keywords))


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The shipped model with three drafts."""
    with make_llm() as llm:
        yield llm


@pytest.fixture
def new_llm() -> Iterator[Callable[..., LLM]]:
    """Makes LLMs (see make_llm) that are closed after the test."""
    made: list[LLM] = []

    def make(model: Path | None = None, **keywords: Any) -> LLM:
        made.append(make_llm(model, **keywords))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
