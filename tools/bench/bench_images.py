"""Compare pymtp with llama-server on chats with an image: the same llama.cpp, model, projector and images.

    pip install '.[server]' gguf typer
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/models/make_mmproj.py qwen3.5-0.8b build/mmproj-0.8b.gguf
    python tools/bench/bench_images.py build/0.8b-q4_0.gguf build/mmproj-0.8b.gguf --json build/images.json
    python tools/bench/bench_images.py build/0.8b-q4_0.gguf build/mmproj-0.8b.gguf --text
    python tools/bench/bench_images.py build/0.8b-q4_0.gguf build/mmproj-0.8b.gguf --beside

Measured is the time of a request to /v1/chat/completions that generates one token: decoding of the file, encoder and
prompt. Every image is new, so that neither side has it in a cache. Every measurement is a server of its own, warmed up
with an image of the same size. With --text, pymtp's servers with and without the projector get text alone: prompts of
1,024 tokens, and answers of 64. With --beside, answers of 64 tokens are measured while another client sends images.
"""

from __future__ import annotations

import base64
import io
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import llama_server
import typer
from http_clients import send_all
from peer import Comparison, Output, Pairs, Patched, Threads, errors_shown, show, write_json
from PIL import Image
from pymtp_server import serve

from pymtp import InvalidRequestError
from pymtp.bench.table import Column
from pymtp.native.cores import default_threads

PYMTP, SERVER, MTP = "pymtp", "llama-server", "llama-server, 3 drafts"
WITH, WITHOUT = "with projector", "without"
ALONE, BESIDE = "alone", "beside images"
N_CTX = 8192
REQUESTS = 3  # timed in each measurement
PROMPT_TOKENS, ANSWER_TOKENS = 1024, 64  # of text alone
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Size = tuple[int, int]
Address = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """Settings of both sides."""

    model: Path
    mmproj: Path
    threads: int


@dataclass(frozen=True)
class Measurement:
    """The measurement of one arm. seconds: median of the requests. tokens: of the prompt."""

    seconds: float
    tokens: int


def png(size: Size, seed: int) -> bytes:
    """Return a picture of soft random colours, which is as large as a photo of its size as PNG."""
    small = Image.frombytes("RGB", (32, 32), random.Random(seed).randbytes(32 * 32 * 3))
    out = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).save(out, "PNG", compress_level=1)
    return out.getvalue()


def image_request(size: Size, seed: int) -> dict[str, Any]:
    """Return a chat about a picture that no other seed has."""
    url = f"data:image/png;base64,{base64.b64encode(png(size, seed)).decode()}"
    parts = [{"type": "text", "text": "Describe the image."}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "temperature": 0}


def text_request(n_tokens: int, seed: int) -> dict[str, Any]:
    """Return a request with a prompt of 1,024 tokens that no other seed has."""
    prompt = random.Random(seed).choices(range(256), k=PROMPT_TOKENS)
    return {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}


@contextmanager
def sending(address: Address, size: Size) -> Iterator[None]:
    """Send one image after the other meanwhile."""
    ended = threading.Event()

    def send() -> None:
        seed = 1000
        while not ended.is_set():
            seed += 1
            send_all(*address, [json.dumps({"model": "m", **image_request(size, seed)}).encode()], CHAT)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(
    start: Callable[[], AbstractContextManager[Address]], path: str, requests: Sequence[Any], beside: Size | None = None
) -> Measurement:
    """Start a server and time each request but the first, which warms it up. Raises InvalidRequestError.

    beside: the size of images that another client sends meanwhile; None for no such client.
    """
    seconds, tokens = [], 0
    with start() as address, sending(address, beside) if beside else nullcontext():
        for request in requests:
            content = json.dumps({"model": "m", **request}).encode()
            started = time.perf_counter()
            (answer,) = send_all(*address, [content], path)
            seconds.append(time.perf_counter() - started)
            _, _, body = answer.partition(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise InvalidRequestError(f"a request failed: {answer[:2000].decode(errors='replace')}")
            tokens = int(json.loads(body[body.find(b"{") : body.rfind(b"}") + 1])["usage"]["prompt_tokens"])
    return Measurement(statistics.median(seconds[1:]), tokens)


@contextmanager
def start_pymtp(settings: Settings, *, mmproj: bool = True, n_seq_max: int = 1) -> Iterator[Address]:
    """Start pymtp's server, and yield its address."""
    options: dict[str, Any] = {"ctx": N_CTX, "n_seq_max": n_seq_max, "threads": settings.threads, "cache": 0}
    options |= {"mmproj": settings.mmproj} if mmproj else {"no_mmproj": True}
    with serve(settings.model, **options) as server:
        yield server.host, server.port


@contextmanager
def start_llama(settings: Settings, program: Path, drafts: int) -> Iterator[Address]:
    """Start llama-server, and yield its address."""
    port = llama_server.free_port()
    options: dict[str, Any] = {"ctx_size": N_CTX, "threads": settings.threads, "port": port, "mmproj": settings.mmproj}
    if drafts:
        options |= {"spec_type": "draft-mtp", "spec_draft_n_max": drafts}
    with llama_server.start(program, settings.model, **options):
        yield "127.0.0.1", port


def compare_images(settings: Settings, sizes: Sequence[Size], pairs: int, program: Path) -> list[dict[str, Any]]:
    """Measure images of all sizes on all sides, print a table for each size, and return the figures."""
    starts = {PYMTP: partial(start_pymtp, settings)}
    starts |= {name: partial(start_llama, settings, program, n) for name, n in ((SERVER, 0), (MTP, 3))}
    found = []
    for size in sizes:
        requests = [image_request(size, seed) for seed in range(REQUESTS + 1)]
        arms = {name: partial(measure, start, CHAT, requests) for name, start in starts.items()}
        results = Comparison[Measurement](lambda m: m.seconds)
        for _ in results.run(f"{size[0]} x {size[1]}", arms, pairs):
            pass
        tokens = results.medians(lambda m: m.tokens)
        title = f"{settings.model.name}, {size[0]} x {size[1]} pixels"
        show(results.table(title, "seconds", SERVER, Column("prompt tokens", tokens.get, ".0f")))
        ratios = {base: results.ratios(PYMTP, base) for base in (SERVER, MTP)}
        found.append({"size": size, "tokens": tokens, "medians": results.medians(), "pymtp_over": ratios})
        found[-1]["rounds"] = results.as_dicts()
    return found


def compare_text(settings: Settings, pairs: int) -> list[dict[str, Any]]:
    """Measure text alone with and without a projector, print a table for each, and return the figures."""
    found = []
    for title, n_tokens in (("prompt", 1), ("prompt and answer", ANSWER_TOKENS)):
        requests = [text_request(n_tokens, seed) for seed in range(REQUESTS + 1)]
        arms = {
            name: partial(measure, partial(start_pymtp, settings, mmproj=name == WITH), COMPLETIONS, requests)
            for name in (WITHOUT, WITH)
        }
        results = Comparison[Measurement](lambda m: m.seconds)
        for _ in results.run(title, arms, pairs):
            pass
        show(results.table(f"{settings.model.name}, {title}, text alone", "seconds", WITHOUT))
        # the speed with a projector relative to that without
        found.append({"what": title, "speed_with": results.ratios(WITHOUT, WITH), "rounds": results.as_dicts()})
    return found


def compare_beside(settings: Settings, sizes: Sequence[Size], pairs: int) -> list[dict[str, Any]]:
    """Measure answers of text alone and beside images of all sizes, print a table for each size, return the figures."""
    found = []
    requests = [text_request(ANSWER_TOKENS, seed) | {"prompt": [seed + 1]} for seed in range(REQUESTS + 1)]
    start = partial(start_pymtp, settings, n_seq_max=2)
    for size in sizes:
        arms = {ALONE: partial(measure, start, COMPLETIONS, requests)}
        arms[BESIDE] = partial(measure, start, COMPLETIONS, requests, size)
        results = Comparison[Measurement](lambda m: m.seconds)
        for _ in results.run(f"{size[0]} x {size[1]}", arms, pairs):
            pass
        show(results.table(f"{settings.model.name}, beside {size[0]} x {size[1]} pixels", "seconds", ALONE))
        found.append({"size": size, "speed_beside": results.ratios(ALONE, BESIDE), "rounds": results.as_dicts()})
    return found


def main(
    model: Annotated[Path, typer.Argument(exists=True)],
    mmproj: Annotated[Path, typer.Argument(exists=True, help="The model's projector.")],
    sizes: Annotated[str, typer.Option(help="Pixels of the images.")] = "256x256,640x480,1024x1024",
    text: Annotated[bool, typer.Option("--text", help="Text alone, with and without the projector.")] = False,
    beside: Annotated[bool, typer.Option("--beside", help="Text alone and beside images of another client.")] = False,
    pairs: Pairs = 5,
    threads: Threads = None,
    patched: Patched = False,
    output: Output = None,
) -> None:
    """Compare the times of images, or of text."""
    settings = Settings(model, mmproj, threads or default_threads())
    pixels = [(int(width), int(height)) for width, height in (size.split("x") for size in sizes.split(","))]
    with errors_shown():
        if beside:
            found = compare_beside(settings, pixels, pairs)
        elif text:
            found = compare_text(settings, pairs)
        else:
            program = llama_server.build(patched=patched)
            found = compare_images(settings, pixels, pairs, program)
        write_json(output, "images", model=model.name, mmproj=mmproj.name, threads=settings.threads, found=found)


if __name__ == "__main__":
    typer.run(main)
