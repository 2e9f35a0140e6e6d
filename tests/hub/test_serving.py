"""Tests of `pymtp serve` with a hub name: it answers during the download, and its workers load the same file."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from helpers.hub import Hub
from helpers.served import Served
from helpers.servers import LONG, wait_until
from makers.head_file import write_pair
from makers.lora import make_delta, write_adapter
from makers.make_model import make_model

NAME = "model-Q4_K_M.gguf"
Serve = Callable[..., Served]


@pytest.fixture
def serve(hub: Hub, demo: Path, tmp_path: Path) -> Iterator[Serve]:
    """Return a function that serves owner/name of the hub, the shipped model, or what the options name."""
    hub.files[NAME] = demo.read_bytes()
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}
    with ExitStack() as stack:

        def start(*options: str | Path) -> Served:
            model = () if "-m" in options else ("-m", "hf:owner/name")  # a second -m would be a second model
            return stack.enter_context(closing(Served(*model, *options, env=env)))

        yield start


def test_server_answers_and_stops_during_a_download(hub: Hub, serve: Serve) -> None:
    hub.faults.cut_after, hub.faults.hang = 1_000_000, True
    served = serve()
    found = re.search(r"url=(\S+)", served.line(" starting "))
    assert found is not None
    wait_until(lambda: hub.bytes_sent() >= 1_000_000)
    assert httpx.get(f"{found[1]}/health", timeout=LONG).status_code == 503
    assert httpx.get(f"{found[1]}/version", timeout=LONG).status_code == 200
    assert served.end(signal.SIGTERM) == 0


def test_restarted_worker_loads_the_same_file_without_the_hub(hub: Hub, serve: Serve) -> None:
    served = serve().ready()
    text = served.ask(temperature=0).json()["choices"][0]["text"]
    hub.asked.clear()
    hub.faults.down = True
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert served.ask(temperature=0).json()["choices"][0]["text"] == text
    assert hub.asked == []


@pytest.fixture
def head(hub: Hub, tmp_path: Path) -> str:
    """Add a model and its separate head to the hub, and return the head's filename."""
    (whole,) = make_model("tiny", tmp_path / "tiny.gguf")
    trunk, head = write_pair(whole, tmp_path)
    hub.files |= {NAME: trunk.read_bytes(), f"mtp-{NAME}": head.read_bytes()}
    return f"mtp-{NAME}"


def test_restarted_worker_loads_the_same_head_without_the_hub(hub: Hub, serve: Serve, head: str) -> None:
    served = serve().ready()
    assert head in {answer.path for answer in hub.sent}
    hub.asked.clear()
    hub.faults.down = True
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert hub.asked == []
    assert served.end(signal.SIGTERM) == 0
    assert not any("decoded without a head's drafts" in line for line in served.lines)


@pytest.mark.parametrize("how", ["gone", "cut off"])
def test_restarted_worker_downloads_a_damaged_head_again(serve: Serve, head: str, tmp_path: Path, how: str) -> None:
    served = serve().ready()
    (file,) = (tmp_path / "hub").rglob(head)
    size = file.stat().st_size
    blob = file.resolve()
    os.truncate(blob, size // 2)
    if how == "gone":
        file.unlink()
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert f"{head}: " in served.line("The next worker asks the hub")
    assert file.stat().st_size == size


def test_restarted_worker_downloads_a_deleted_file_again(serve: Serve, tmp_path: Path) -> None:
    served = serve().ready()
    shutil.rmtree(tmp_path / "hub")
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert served.ask().status_code == 200
    assert "asks the hub for hf:owner/name" in served.line("WARNING")


def test_restarted_worker_downloads_a_truncated_file_again(serve: Serve, tmp_path: Path) -> None:
    served = serve().ready()
    (file,) = (tmp_path / "hub").rglob(NAME)
    size = file.stat().st_size
    os.truncate(file, size // 2)
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert file.stat().st_size == size
    (line,) = [line for line in served.lines if "cut off" in line and "the worker failed" not in line]
    assert "asks the hub for hf:owner/name" in line


def test_restarted_worker_downloads_a_deleted_part_again(hub: Hub, serve: Serve, tmp_path: Path) -> None:
    parts = make_model("tiny", tmp_path / "tiny-F32.gguf", weight_type="f32", split_max_tensors=40)
    hub.files.update((part.name, part.read_bytes()) for part in parts)
    served = serve("-m", "hf:owner/name:F32").ready()
    (gone,) = (tmp_path / "hub").rglob(parts[1].name)
    gone.unlink()
    os.kill(served.worker(), signal.SIGKILL)
    assert served.worker(2) != served.worker()
    assert gone.is_file()


def test_worker_finds_a_file_that_was_missing_for_a_while(hub: Hub, serve: Serve, tmp_path: Path) -> None:
    served = serve().ready()
    (tmp_path / "hub").rename(tmp_path / "away")
    hub.faults.down = True
    os.kill(served.worker(), signal.SIGKILL)
    served.line("has nothing of owner/name")
    (tmp_path / "away").rename(tmp_path / "hub")
    assert served.worker(2) != served.worker()
    assert not any("the cached model is used" in line for line in served.lines)


def test_worker_retries_its_file_if_the_hub_name_has_become_ambiguous(hub: Hub, serve: Serve, tmp_path: Path) -> None:
    served = serve().ready()
    (tmp_path / "hub").rename(tmp_path / "away")
    hub.files["other-Q4_K_M.gguf"] = hub.files[NAME]
    os.kill(served.worker(), signal.SIGKILL)
    served.line("name one of them")
    (tmp_path / "away").rename(tmp_path / "hub")
    assert served.worker(2) != served.worker()


def test_worker_that_misses_an_adapter_does_not_ask_the_hub_again(
    hub: Hub, serve: Serve, demo: Path, demo_f32: Path, tmp_path: Path
) -> None:
    lora = write_adapter(tmp_path / "a.gguf", make_delta(demo_f32, ["blk.0.ffn_up.weight"], seed=1), alpha=4.0)
    served = serve("--lora", lora).ready()
    lora.rename(tmp_path / "away.gguf")
    hub.asked.clear()
    os.kill(served.worker(), signal.SIGKILL)
    served.line("no such adapter")
    (tmp_path / "away.gguf").rename(lora)
    assert served.worker(2) != served.worker()
    assert hub.asked == []


def test_unknown_repository_stops_the_server_with_one_line(hub: Hub, serve: Serve) -> None:
    served = serve("-m", "hf:owner/nmae")
    assert served.exit_code() == 3
    (line,) = [line for line in served.lines if " INFO " not in line]
    assert line.startswith(f"error: no repository owner/nmae on {hub.url}")


def test_unreadable_environment_variable_stops_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "-1")
    served = serve()
    assert served.exit_code() == 2
    assert "error: HF_HUB_ETAG_TIMEOUT must be a number of seconds" in served.lines[-1]
