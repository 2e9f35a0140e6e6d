"""Fixtures that all tests share: the shipped model and its variants, prompts, LLMs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy: its threads would slow down other test processes

import helpers.devices  # noqa: F401 — before pymtp
import pytest
import typer.main
from hypothesis import settings
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from makers.new_texts import new_prompts

from pymtp import LLM, Model
from pymtp.model.model import demo_model
from pymtp.model.options import ModelOptions

# Until all tests are collected, since next to nothing of their modules becomes garbage: a tenth of each worker's start.
gc.disable()

# Fixtures of these helpers. A GPU machine may lack the packages that tests of the server need.
pytest_plugins = ["helpers.prefix_files", "helpers.saved_prefixes", "helpers.tuned"]
pytest_plugins += ["helpers.browser"] if find_spec("playwright") else []
pytest_plugins += ["helpers.scripted_server"] if find_spec("fastapi") and find_spec("uvicorn") else []

# No deadlines, since a machine may be busy; the same examples each time in CI, where a failure stops a delivery.
# A third of the usual number of examples: the whole suite has eight minutes.
settings.register_profile("pymtp", deadline=None, max_examples=33, derandomize="CI" in os.environ)
settings.load_profile("pymtp")

ROOT = Path(__file__).parent.parent
LOADING = {field.name for field in fields(ModelOptions)}  # options of a load

# Write bytecode in any case: without it, each worker would rewrite the assertions of all test files in each run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A background job of a shell script ignores Ctrl-C, and so would the child processes that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each httpx client makes an SSL context, which takes 20 ms to load all certificates; no test needs its own.
ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]

# Each call of a command would read the options of all commands anew, which takes 50 ms.
typer.main.get_command = cache(typer.main.get_command)

# What takes as long as hundreds of other tests: begun late, one would run alone at the end
FIRST = ("test_cluster.py", "test_examples.py", "tools", "vendor")


def pytest_xdist_auto_num_workers() -> int:
    """Return two workers more than cores: many tests wait for other processes, or for a time to pass."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 2


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin a folder at another file: what it rewrites the assertions of, the others then only read.

    The bytecode of a file is written once. In a new checkout the workers would all write the same file at a time.
    """
    report = yield
    if isinstance(collector, pytest.Dir):
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        first = len(report.result) * worker // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests, because all workers must have the same order: those of FIRST, then by path."""

    def place(item: pytest.Item) -> tuple[int, str]:
        names = {item.path.name, item.path.parent.name}
        return next((i for i, name in enumerate(FIRST) if name in names), len(FIRST)), str(item.path)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Freeze the collected tests, so that the garbage collector does not scan thousands of them each time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 5)  # the default of 700 costs a twentieth of the tests' time


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the log handlers after each test: a command in this process leaves a handler with the test's stream."""
    loggers = [logging.getLogger(name) for name in ("pymtp", "pymtp.drafts", "pymtp.native", "uvicorn")]
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        if logger.level != level:
            logger.setLevel(level)


@pytest.fixture(scope="session")
def demo() -> Path:
    """Return the path of the model that ships with pymtp."""
    return demo_model()


@pytest.fixture(scope="session")
def demo_f32(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the shipped model with its weights dequantized to F32."""
    path = tmp_path_factory.mktemp("models") / "demo-f32.gguf"
    rewrite(demo, path, weights="f32")
    return path


@pytest.fixture(scope="session")
def headless(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the shipped model without its head."""
    path = tmp_path_factory.mktemp("models") / "headless.gguf"
    rewrite(demo, path, drop_head=True)
    return path


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Return twenty beginnings of random modules, a kind of text that the shipped model was trained on."""
    return new_prompts(20, 150)


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load a tiny model with random weights in F32; its delta nets have more V heads than K heads."""
    (path,) = make_model("tiny", tmp_path_factory.mktemp("models") / "dense.gguf", weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.fixture(scope="session")
def shipped_f32(demo_f32: Path) -> Iterator[Model]:
    """Load the shipped model in F32, for tests that need its vocabulary, its sizes or its sense."""
    with Model(demo_f32) as model:
        yield model


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load a tiny model with experts and random weights in F32."""
    (path,) = make_model("tiny-moe", tmp_path_factory.mktemp("models") / "moe.gguf", weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.fixture(scope="session")
def qwen3next(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Load a tiny Qwen3-Next model with random weights in F32."""
    (path,) = make_model("tiny-next", tmp_path_factory.mktemp("models") / "next.gguf", weight_type="f32")
    with Model(path) as model:
        yield model


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Model:
    """Return `dense`, `moe` or `qwen3next`, by parameter: see EACH in helpers/contexts.py."""
    found: Model = request.getfixturevalue(request.param)
    return found


def make_llm(model: Path | Model | None = None, **keywords: Any) -> LLM:
    """Make a small LLM for tests, with one thread and a fixed depth unless the options say otherwise.

    A model this small gains nothing from two threads, and on a busy machine each would wait for the other at every
    barrier. The depth is fixed because "auto" depends on the clock. Without a model, all share the shipped one, unless
    options of the load are given.
    """
    options = {"n_ctx": 1024, "n_threads": 1, "draft_tokens": 3} | keywords
    if model is None and options["draft_tokens"] != "auto" and not options.keys() & LOADING:
        model = shipped()
    return LLM(model, **options)


@cache
def shipped() -> Model:
    """Load the shipped model once for each process of tests."""
    return Model()


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """Make an LLM of the shipped model with three drafts."""
    with make_llm() as llm:
        yield llm


@pytest.fixture
def new_llm() -> Iterator[Callable[..., LLM]]:
    """Return make_llm; the LLMs that it makes are closed after the test."""
    made: list[LLM] = []

    def make(model: Path | None = None, **keywords: Any) -> LLM:
        made.append(make_llm(model, **keywords))
        return made[-1]

    yield make
    for llm in made:
        llm.close()
