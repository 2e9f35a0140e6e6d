"""Many requests at once, pymtp against llama-server: the same llama.cpp, the same file, the same prompts.

    pip install . typer
    python tools/bench/bench_requests.py --requests 8
    python tools/models/make_model.py qwen3.5-0.8b build/0.8b-q4_0.gguf --type q4_0
    python tools/bench/bench_requests.py --model build/0.8b-q4_0.gguf --requests 4 --tokens 64

All requests are sent at once to a server with as many slots, and handed to pymtp as one list. What counts is the time
from then to the last token of the last request, prompts included. llama-server runs plain and with its MTP at 1, 2 and
3 drafts; pymtp is measured against the best of these. It is built from the pinned sources, with pymtp's build
options and with no patch but those that it needs to run. With --patched it is built from pymtp's own sources, so that
kernels and design are told apart.

Every measurement is a process of its own, warmed up with one request. They come in rounds, one of each kind, in
alternating order. With random weights no draft is accepted on either side.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import llama_server
import typer
from llama_build import BuildError
from llama_server import ServerError
from rich.console import Console
from rich.table import Table

from pymtp import LLM, PymtpError, SamplingParams, build_info
from pymtp.cores import physical_cores
from pymtp.model import Model, demo_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

screen = Console(stderr=True, highlight=False)

SERVER_DRAFTS = (0, 1, 2, 3)
PYMTP_DRAFTS: tuple[int | Literal["auto"], ...] = (0, "auto")


@dataclass(frozen=True)
class Settings:
    """What all sides are given. n_ctx: tokens of one request."""

    model: Path
    held_out: bool
    requests: int
    prompt_tokens: int
    tokens: int
    temperature: float
    threads: int
    n_ctx: int


def prepare(settings: Settings) -> tuple[list[list[int]], dict[int, float]]:
    """The prompts as token ids, and the bias that keeps end tokens out, as llama-server's ignore_eos does.

    To be run in a process of its own: the model is loaded for it.
    """
    with Model(settings.model, mtp=False) as model:
        if settings.held_out:
            texts = held_out_prompts(settings.requests)
            prompts = [model.tokenize(text)[: settings.prompt_tokens] for text in texts]
        else:
            numbers = random.Random(0)
            prompts = [
                numbers.choices(range(model.n_vocab), k=settings.prompt_tokens) for _ in range(settings.requests)
            ]
        ends = {token: float("-inf") for token in range(model.n_vocab) if model.ends_generation(token)}
    return prompts, ends


def measure_server(program: Path, settings: Settings, drafts: int, prompts: Sequence[Sequence[int]]) -> float:
    """Tokens a second, of all requests. Raises ServerError."""
    speculative: dict[str, str | int] = {"spec_type": "draft-mtp", "spec_draft_n_max": drafts} if drafts else {}
    with llama_server.start(
        program,
        settings.model,
        parallel=settings.requests,
        threads=settings.threads,
        ctx_size=settings.n_ctx * settings.requests,
        **speculative,
    ) as server:
        server.complete(prompts[0], 16, temperature=settings.temperature)
        with ThreadPoolExecutor(settings.requests) as clients:
            started = time.perf_counter()
            asked = [
                clients.submit(server.complete, prompt, settings.tokens, temperature=settings.temperature, seed=number)
                for number, prompt in enumerate(prompts)
            ]
            n = sum(len(each.result().token_ids) for each in asked)
            return n / (time.perf_counter() - started)


def measure_pymtp(
    settings: Settings, drafts: int | Literal["auto"], prompts: Sequence[Sequence[int]], bias: dict[int, float]
) -> float:
    """Tokens a second, of all requests. To be run in a process of its own."""
    with LLM(
        settings.model,
        n_ctx=settings.n_ctx,
        n_seq_max=settings.requests,
        n_threads=settings.threads,
        draft_tokens=drafts,
        cache_prompt=False,
    ) as llm:

        def params(n: int, seed: int) -> SamplingParams:
            # as llama-server samples here: from the 40 likeliest
            return SamplingParams(
                max_tokens=n,
                temperature=settings.temperature,
                top_k=40,
                top_p=1.0,
                min_p=0.0,
                seed=seed,
                logit_bias=bias,
            )

        llm.generate(prompts[0], params(16, 0))
        started = time.perf_counter()
        done = llm.generate(prompts, [params(settings.tokens, number) for number in range(len(prompts))])
        return sum(len(completion.token_ids) for completion in done) / (time.perf_counter() - started)


def measure(settings: Settings, n: int, *, patched: bool) -> list[dict[str, float]]:
    """n rounds of all arms, tokens a second by arm. Says on stderr how it goes."""
    program = llama_server.build(patched=patched)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        prompts, bias = pool.apply(prepare, (settings,))
    arms: list[tuple[str, int | Literal["auto"]]] = [("llama-server", drafts) for drafts in SERVER_DRAFTS]
    arms += [("pymtp", drafts) for drafts in PYMTP_DRAFTS]
    rounds = []
    for number in range(n):
        measured = {}
        for side, drafts in arms if number % 2 == 0 else arms[::-1]:
            name = f"{side} {drafts or 'plain'}"
            if side == "llama-server":
                assert isinstance(drafts, int)
                measured[name] = measure_server(program, settings, drafts, prompts)
            else:
                with spawn.Pool(1) as pool:
                    measured[name] = pool.apply(measure_pymtp, (settings, drafts, prompts, bias))
            screen.print(f"round {number + 1} of {n}: {name} {measured[name]:.1f}/s")
        rounds.append(measured)
    return rounds


def summary(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians by arm, and of the ratio to llama-server's best arm, which is the one with the best median."""
    medians = {arm: statistics.median(measured[arm] for measured in rounds) for arm in rounds[0]}
    best = max((arm for arm in medians if arm.startswith("llama-server")), key=medians.__getitem__)
    ratios = {
        arm: statistics.median(measured[arm] / measured[best] for measured in rounds)
        for arm in medians
        if arm.startswith("pymtp")
    }
    return {"median_tokens_per_second": medians, "best_of_llama_server": best, "median_ratio_to_it": ratios}


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    pairs: Annotated[int, typer.Option("--pairs", "-r", min=1, help="Measurements of each kind.")] = 5,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt, at most.")] = 48,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=2, help="Tokens for each prompt.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", "-T", min=0.0)] = 0.0,
    threads: Annotated[int | None, typer.Option("--threads", "-t", show_default="physical cores")] = None,
    n_ctx: Annotated[int, typer.Option(help="Tokens that fit in a request.")] = 512,
    patched: Annotated[bool, typer.Option("--patched", help="A llama-server with all of pymtp's patches.")] = False,
    output: Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")] = None,
) -> None:
    """Compare pymtp with llama-server where several requests run at once."""
    settings = Settings(
        model=model or demo_model(),
        held_out=model is None,
        requests=requests,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        temperature=temperature,
        threads=threads or physical_cores(),
        n_ctx=n_ctx,
    )
    try:
        rounds = measure(settings, pairs, patched=patched)
    except (BuildError, ServerError, PymtpError) as error:
        screen.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
    found = summary(rounds)
    table = Table("", "tokens/s", "of the best llama-server")
    for arm, median in found["median_tokens_per_second"].items():
        ratio = found["median_ratio_to_it"].get(arm)
        table.add_row(arm, f"{median:.1f}", "" if ratio is None else f"{ratio:.3f}")
    Console(highlight=False).print(table)
    if output is not None:
        result = {
            "bench": "requests at once against llama-server",
            "settings": asdict(settings) | {"model": settings.model.name, "patched": patched},
            **found,
            "rounds": rounds,
            "machine": {"system": platform.platform(), "python": platform.python_version()},
            "build": build_info(),
        }
        output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
