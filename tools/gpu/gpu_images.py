"""Measures images of several sizes with a model and its projector, and prints a report. gpu_suite.py runs it.

    python tools/gpu/gpu_images.py MODEL MMPROJ --gpu-layers -1 --sizes 256x256,1024x1024 --seconds 20

Each size has a limit of time. An image that is not encoded within it is given up at the end of a layer, and the next
size follows. If that layer does not end either, the process prints its report and ends. For each size the report has:

encode_ms: of the encoder, for the first and the second image of this size; missing ones were not encoded.
layers_ms: of the last image's layers so far, the first with all that comes before it.
prompt_ms: of a chat with the image, whose rows are known by then; n_prompt: its tokens.
halfway: at half of the limit, the GPU's load and memory, and the processor seconds that this process takes in a second:
they tell a kernel that runs from work on the processor, and from a thread that waits.
stuck: whether a layer did not end.

`log` has llama.cpp's lines about the encoder's graph: attention, parts of the graph, and what the GPU does not compute.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    from pymtp import LLM

SIZES = "256x256,640x480,1024x1024,1280x1280,1536x1536,2048x2048"
PATIENCE = 5.0  # seconds that a layer may take after the limit
TOLD = ("clip_ctx:", "warmup:", "reserve_compute_meta:", "## SPLIT")  # the last with GGML_SCHED_DEBUG=2


class Log(logging.Handler):
    """Keeps the lines of the log that tell of the encoder's graph."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().strip()
        if line.startswith(TOLD) and line not in self.lines:
            self.lines.append(line)


class Measurement:
    """Measures sizes one after the other. found: what was measured so far. deadline: of the size that is measured."""

    def __init__(self, llm: LLM, seconds: float) -> None:
        self._llm, self._seconds = llm, seconds
        self.found: list[dict[str, Any]] = []
        self.deadline = float("inf")

    def run(self, sizes: list[tuple[int, int]]) -> None:
        """Measure sizes, given as width and height."""
        for width, height in sizes:
            self.found.append({"size": f"{width}x{height}", "encode_ms": [], "layers_ms": []})
            picture = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
            try:
                if all(self._encode(self.found[-1], picture) for _ in range(2)):
                    for text in "ab":  # before the image, so that the second chat reuses its rows, but no K and V
                        self._chat(self.found[-1], text, picture)
            except Exception as error:  # of whatever kind: the report tells it
                self.found[-1]["error"] = f"{type(error).__name__}: {error}"
                return

    def _encode(self, found: dict[str, Any], picture: Any) -> bool:
        assert self._llm._images is not None
        projector: Any = self._llm._images.projector
        layers_ms: list[float] = []
        found["layers_ms"], n_layers = layers_ms, projector.n_layers
        started = last = time.monotonic()
        self.deadline = started + self._seconds
        projector.begin(picture)
        while time.monotonic() < self.deadline:
            done = projector.advance(0.0 if layers_ms else 0.001) is not None
            now = time.monotonic()
            if done:
                found["encode_ms"].append(_ms(now - started))
                return True
            if new := projector.n_layers - n_layers - len(layers_ms):  # several on a fast machine, or a busy one
                layers_ms += [_ms((now - last) / new)] * new
                last = now
        projector.end()
        return False

    def _chat(self, found: dict[str, Any], text: str, picture: Any) -> None:
        started = time.monotonic()
        self.deadline = started + self._seconds
        parts = [{"type": "text", "text": text}, {"type": "image", "image": picture}, {"type": "text", "text": "?"}]
        done = self._llm.chat([{"role": "user", "content": parts}], max_tokens=1, temperature=0.0)
        found["prompt_ms"], found["n_prompt"] = _ms(time.monotonic() - started), done.stats.prompt_tokens


def _load() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader"]
    started, cpu = time.monotonic(), time.process_time()
    time.sleep(0.5)
    cores = (time.process_time() - cpu) / (time.monotonic() - started)
    gpu = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else None
    return {"gpu": gpu, "cores": round(cores, 2)}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def main(
    model: Annotated[Path, typer.Argument(exists=True)],
    mmproj: Annotated[Path, typer.Argument(exists=True)],
    gpu_layers: Annotated[int, typer.Option(help="Layers on the GPU; -1 for all.")] = -1,
    sizes: Annotated[str, typer.Option(help="Pixels of the images, from small to large.")] = SIZES,
    seconds: Annotated[float, typer.Option(help="Limit for an image, and for a chat.")] = 20.0,
    threads: Annotated[int | None, typer.Option("-t", help="Threads.")] = None,
) -> None:
    """Measure images, and print the report."""
    log = Log()
    native = logging.getLogger("pymtp.native")
    native.addHandler(log)
    native.setLevel(logging.DEBUG)  # llama.cpp's log keeps the level that it finds at the import
    from pymtp import LLM
    from pymtp.bench.machine import gpus

    llm = LLM(
        model, mmproj=mmproj, n_ctx=8192, n_gpu_layers=gpu_layers, n_threads=threads, draft_tokens=0, cache_bytes=2**31
    )
    measurement = Measurement(llm, seconds)
    pixels = [(int(width), int(height)) for width, height in (size.split("x") for size in sizes.split(","))]
    thread = threading.Thread(target=measurement.run, args=(pixels,), daemon=True)
    stuck = False
    try:
        thread.start()
        while thread.is_alive() and not stuck:
            thread.join(0.1)
            left = measurement.deadline - time.monotonic()
            if left < seconds / 2 and "halfway" not in measurement.found[-1]:
                measurement.found[-1]["halfway"] = _load()
            stuck = left < -PATIENCE
    except KeyboardInterrupt:  # the suite's time is up
        stuck = True
    report = {"bench": "images", "gpus": gpus(), "model": model.name, "mmproj": mmproj.name, "limit_s": seconds}
    if stuck and measurement.found:
        measurement.found[-1]["stuck"] = True
    print(json.dumps(report | {"sizes": measurement.found, "log": log.lines}), flush=True)
    if stuck:
        os._exit(0)  # nothing ends a call that computes
    llm.close()
    raise typer.Exit(int(any("error" in one for one in measurement.found)))


if __name__ == "__main__":
    typer.run(main)
