"""Tests of tools/gpu/gpu_images.py: an image has a limit of time, whether its layers come to an end or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_images
import pytest
from conftest import ROOT, shipped
from helpers.images import ScriptedProjector
from helpers.servers import LONG
from makers.make_mmproj import make_mmproj

STUCK = """
import sys, time, typer
sys.path.insert(0, sys.argv.pop(1))
import gpu_images
from pymtp.model.projector import Projector
Projector.advance = lambda *_: time.sleep(1e6)
gpu_images.PATIENCE = 0.1
typer.run(gpu_images.main)
"""


def test_layers_that_end_in_one_call_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]

    class Projector:
        n_layers = 0
        begin = end = staticmethod(lambda *_: None)

        def advance(self, _: float) -> Any:
            seconds[0] += 3.0
            self.n_layers += 1 if self.n_layers == 2 else 2
            return True if self.n_layers > 3 else None

    llm: Any = SimpleNamespace(_images=SimpleNamespace(projector=Projector()))
    monkeypatch.setattr(gpu_images, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    found: dict[str, Any] = {"encode_ms": []}
    assert gpu_images.Measurement(llm, 100.0)._encode(found, None)
    assert found == {"encode_ms": [9000.0], "layers_ms": [1500.0, 1500.0, 3000.0]}


def test_image_beyond_its_limit_is_given_up_at_the_end_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, chats = [0.0], list[Any]()

    class Projector(ScriptedProjector):
        n_layers = 0

        def begin(self, pixels: Any) -> None:
            self.layers = pixels.shape[1] // 8
            super().begin(pixels)

    def after_layer() -> None:
        seconds[0] += 1.0
        projector.n_layers += 1

    def chat(messages: Any, **_: Any) -> Any:
        seconds[0] += 0.5
        chats.append(messages[0]["content"])
        return SimpleNamespace(stats=SimpleNamespace(prompt_tokens=7))

    projector = Projector(after_layer=after_layer)
    llm: Any = SimpleNamespace(_images=SimpleNamespace(projector=projector), chat=chat)
    monkeypatch.setattr(gpu_images, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    measurement = gpu_images.Measurement(llm, 3.5)
    measurement.run([(80, 8), (24, 8)])
    assert measurement.found == [
        {"size": "80x8", "encode_ms": [], "layers_ms": [1000.0] * 4},
        {"size": "24x8", "encode_ms": [3000.0] * 2, "layers_ms": [1000.0] * 2, "prompt_ms": 500.0, "n_prompt": 7},
    ]
    assert len(projector.encoded) == 2
    assert [chat[0]["text"] for chat in chats] == ["a", "b"]


def measure(script: str, folder: Path, seconds: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of the script, and the only size of its report."""
    mmproj = make_mmproj("demo", folder / "mmproj.gguf")
    words = [ROOT / "tools/gpu", shipped().path, mmproj, "--gpu-layers", "0", "--sizes", "64x64", "--seconds", seconds]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=LONG
    )
    (found,) = json.loads(done.stdout)["sizes"]
    return done.returncode, found


def test_error_of_an_image_is_told_and_ends_the_process_with_1(tmp_path: Path) -> None:
    status, found = measure(STUCK.replace("time.sleep(1e6)", "1 / 0"), tmp_path, "20")
    assert (status, found["error"]) == (1, "ZeroDivisionError: division by zero")


def test_layer_without_an_end_ends_the_process_with_its_report(tmp_path: Path) -> None:
    status, found = measure(STUCK, tmp_path, "0.1")
    assert found.pop("halfway")["cores"] < 0.5  # nothing computes
    assert (status, found) == (0, {"size": "64x64", "encode_ms": [], "layers_ms": [], "stuck": True})
