"""Tests of `pymtp serve` with several models, and with one that sleeps: real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.served import ENDLESS, FIRST_LINES, Served, gone
from helpers.servers import LONG, wait_until

from pymtp import LLM, SamplingParams

Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def files(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [Path(shutil.copy(demo, folder / f"{name}.gguf")) for name in "abc"]


@pytest.fixture(scope="module")
def served(files: list[Path]) -> Iterator[Served]:
    """Serve three models, of which two may be loaded."""
    models = [option for file in files for option in ("-m", str(file))]
    served = Served(*models, "-s", "2", "--models-max", "2", "--cache", "16", "--api-key", "k")
    yield served.ready()
    assert served.end(signal.SIGTERM) == 0
    assert all(gone(pid) for pid in workers(served))
    served.close()


def workers(served: Served) -> list[int]:
    """Return the process ids of all workers that were started, the front's first."""
    return [int(line.split("worker=")[1].split()[0]) for line in served.lines if "worker=" in line]


KEY = {"authorization": "Bearer k"}


def states(served: Served) -> dict[str, str]:
    data = served.get("/v1/models", headers=KEY).json()["data"]
    return {card["id"]: card["status"]["value"] for card in data}


def ask(served: Served, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": "def f(x):", "max_tokens": 16, "temperature": 0, **more}
    return httpx.post(f"{served.url}/v1/completions", json=body, headers=KEY, timeout=LONG)


def test_models_that_are_not_loaded_are_described_as_loaded_ones_are(served: Served) -> None:
    def told() -> list[dict[str, Any]]:
        gets = [served.get(path, headers=KEY) for path in ("/props?model=c", "/v1/models/c")]
        shown = httpx.post(f"{served.url}/api/show", json={"model": "c"}, headers=KEY, timeout=LONG)
        (tags,) = [m for m in served.get("/api/tags", headers=KEY).json()["models"] if m["name"] == "c"]
        return [*(answer.json() for answer in (*gets, shown)), tags]

    props, card, *others = told()
    assert set(states(served).values()) == {"unloaded"}
    assert (props["is_sleeping"], card["status"]["value"]) == (True, "unloaded")
    ask(served, "c")
    assert told() == [props | {"is_sleeping": False}, card | {"status": {"value": "loaded"}}, *others]


def test_models_are_loaded_on_demand_and_the_least_recently_used_goes(served: Served, llm: LLM) -> None:
    expected = llm.generate("def f(x):", SamplingParams(max_tokens=16)).text
    for name in "abac":
        answer = ask(served, name).json()
        assert (answer["model"], answer["choices"][0]["text"]) == (name, expected)
    assert states(served) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
    running = [pid for pid in workers(served)[1:] if not gone(pid)]
    assert len(running) == 2


def test_a_killed_worker_ends_its_streams_with_an_error_and_is_started_again(served: Served) -> None:
    ask(served, "a")
    body = {"model": "a", **ENDLESS}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, headers=KEY, timeout=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        front, *models = [pid for pid in workers(served) if not gone(pid)]
        for pid in models:
            os.kill(pid, signal.SIGKILL)
        *_, last = (line for line in lines if line)
    assert (
        "the worker of the model a ended before the answer did"
        in json.loads(last.removeprefix("data: "))["error"]["message"]
    )
    assert ask(served, "a").status_code == 200
    assert not gone(front)


def test_requests_of_many_clients_find_their_models(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: ask(served, name, max_tokens=2), "aaaacccabbb"))
    assert "".join(answer.json()["model"] for answer in answers) == "aaaacccabbb"


def test_one_model_sleeps_and_wakes(serve: Serve, demo: Path) -> None:
    served = serve("-s", "1", "--idle-seconds", "0.3").ready()
    assert served.ask(max_tokens=2, model="any name").status_code == 200
    for line, words in zip(served.lines, FIRST_LINES, strict=False):
        assert words in line
    (name,) = states(served)
    served.line("the model is unloaded")
    assert all(gone(pid) for pid in workers(served)[:1])
    assert served.get("/health").status_code == 200
    assert served.get("/props").json()["is_sleeping"] is True
    assert states(served) == {name: "unloaded"}
    assert served.ask(max_tokens=2).json()["model"] == name == demo.stem
    served.line("loading the model", 2)
    assert served.end(signal.SIGTERM) == 0


def test_one_model_that_cannot_be_loaded_ends_the_server_as_without_sleep(serve: Serve, headless: Path) -> None:
    served = serve("-m", headless, "-d", "2", "--idle-seconds", "60")
    assert served.exit_code() == 2
    assert "--draft-tokens 2 needs" in served.lines[-1]


def test_workers_end_when_the_front_or_its_supervisor_is_killed_and_leave_nothing(
    serve: Serve, files: list[Path], tmp_path: Path
) -> None:
    served = serve("-m", files[0], "-m", files[1], "-s", "1", env={"TMPDIR": str(tmp_path)}).ready()
    assert served.ask(model="a", max_tokens=2).status_code == 200
    front, worker = workers(served)
    os.kill(front, signal.SIGKILL)
    wait_until(lambda: gone(worker))
    assert served.worker(2) != front
    assert served.ask(model="b", max_tokens=2).status_code == 200
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("*.sock"))) == 1  # that of b
    of_b = workers(served)[-1]
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: gone(served.worker(2)) and gone(of_b))
    assert list(tmp_path.iterdir()) == [folder]
    again = serve("-m", files[0], "-m", files[1], "-s", "1", env={"TMPDIR": str(tmp_path)}).ready()
    assert list(tmp_path.iterdir()) != [folder]
    assert again.end(signal.SIGTERM) == 0
    assert list(tmp_path.iterdir()) == []  # no sockets of any front


def test_each_model_tells_once_how_many_requests_the_end_of_the_grace_cancels(serve: Serve, files: list[Path]) -> None:
    served = serve("-m", files[0], "-m", files[1], "--grace", "0").ready()
    with ExitStack() as stack:
        streams = [stack.enter_context(served.streaming(model=name)) for name in "ab"]
        served.process.send_signal(signal.SIGTERM)
        for lines in streams:
            list(lines)
    assert served.exit_code() == 0
    told = [line.partition(": ")[2].rstrip() for line in served.lines if "the grace is over" in line]
    assert told == ["running requests are cancelled requests=1"] * 2
