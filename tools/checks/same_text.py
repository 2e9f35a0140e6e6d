"""Counts the tokens that change although they must not: the same requests in other circumstances.

    pip install '.[server]' gguf typer
    python tools/checks/same_text.py --vary drafts
    python tools/checks/same_text.py build/0.8b-q4_0.gguf --tokens 200 --length 50

One thing is varied (--vary):

drafts     Random modules at each depth of --depths, against plain decoding, and each against itself in a second run.
company    Random requests of all kinds (random_requests.py) that one LLM runs together (together.py), with 2 to 8
           sequences. Against each of them alone, in half of the games without drafts.
prefixes   The same requests with prefixes that sequences, host memory and files hold. Against no prefix cache.
images     Requests about images, as in `company` and `prefixes` by turns. Against each of them alone.
http       Requests of all APIs to a server under load (http_load.py). Against LLM.generate.

The first samples greedily and at two temperatures, with every filter, and also with penalties, a bias and a logits
processor. Models:
the shipped one and its F16 and F32 twins; for `company` and `prefixes` also random weights of each type, dense and with
experts. A file can be given in place of a name. A difference is printed with the options that repeat it. After a
differing token, the rest of a text differs too: count the texts.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import http_load
import numpy as np
import together
import typer
from common import MODELS, SCREEN, SHIPPED, Output, Seed, differing, model_file, run_command, show_table, write_json
from makers.new_texts import new_prompts
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from pymtp import LLM, SamplingParams
from pymtp.model.model import Model

Vary = Enum("Vary", {name: name for name in ("drafts", "company", "prefixes", "images", "http")}, type=str)


def process(tokens: NDArray[np.int32], row: NDArray[np.float32]) -> None:
    """Change a row of logits by the tokens before it: a logits processor."""
    row *= 0.9
    row[tokens[-1] % 5 :: 5] -= 1.0


FILTERS: dict[str, Any] = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1}
BIAS: dict[str, Any] = {"logit_bias": {10: -2.0, 32: 0.5}}
WAYS: dict[str, dict[str, Any]] = {
    "T=0": {},
    "T=0, penalized": {**PENALTIES, **BIAS},
    "T=0.7": {"temperature": 0.7, "seed": 7, **FILTERS},
    "T=0.7, penalized": {"temperature": 0.7, "seed": 8, **FILTERS, **PENALTIES},
    "T=1.0": {"temperature": 1.0, "seed": 9, **FILTERS},
    "T=1.0, penalized": {"temperature": 1.0, "seed": 10, **FILTERS, **PENALTIES, **BIAS},
    "T=0, processed": {"logits_processor": process},
    "T=0.7, processed": {"temperature": 0.7, "seed": 11, **FILTERS, **PENALTIES, "logits_processor": process},
}
PREFIX_MODELS = (*SHIPPED, *(f"{kind} dense" for kind in ("f32", "f16", "q8_0", "q4_0", "q4_k")))
PREFIX_MODELS += ("f16 experts", "q4_k experts")
IMAGE_MODELS = (*SHIPPED, "f32 dense", "q4_0 dense", "q4_k dense", "f16 experts")

GAME_MODELS = {"company": MODELS, "prefixes": PREFIX_MODELS, "images": IMAGE_MODELS}

# for each of WAYS, of each text: the tokens, the number of drafts, and how many were accepted by their position
Texts = dict[str, list[tuple[list[int], int, list[int]]]]


def arms(depths: Sequence[Any]) -> dict[str, Any]:
    """Return plain decoding, then each depth, and all of them again, by their names."""
    return {f"{depth} drafts{run}": depth for run in ("", ", again") for depth in (0, *depths)}


def write(job: tuple[Path, dict[str, Any], Sequence[str], int]) -> Texts:
    """Continue prompts, each by so many tokens."""
    file, options, prompts, length = job
    found: Texts = {}
    with Model(file) as model, LLM(model, **({"n_ctx": 1024, "n_threads": 1} | options)) as llm:
        for way, keywords in WAYS.items():
            done = llm.generate(prompts, SamplingParams(max_tokens=length, ignore_eos=True, **keywords))
            found[way] = [(one.token_ids, one.stats.drafted, list(one.stats.accepted_per_position)) for one in done]
    return found


def compare(file: str, written: Mapping[str, Texts]) -> dict[str, dict[str, Any]]:
    """Compare the texts of each arm with those of the first, and drafts of fixed depths with those of the first run.

    Print differences, and return a row for each arm.
    """
    (_, plain), *others = written.items()
    columns = ("tokens", "differ", "texts", "texts differ", "drafts", "accepted", "drafts differ")
    rows = {f"{file}, {arm}": dict.fromkeys(columns, 0) for arm, _ in others}
    for (arm, texts), (name, row) in zip(others, rows.items(), strict=True):
        before = written[arm.removesuffix(", again")]
        for way, each in texts.items():
            for number, (mine, right, earlier) in enumerate(zip(each, plain[way], before[way], strict=True)):
                n = differing(mine[0], right[0])
                found = (len(mine[0]), n, 1, n > 0, mine[1], sum(mine[2]), mine[1:] != earlier[1:] and arm[0] != "a")
                row.update({column: row[column] + m for column, m in zip(columns, found, strict=True)})
                if n:
                    pairs = enumerate(zip(mine[0], right[0], strict=False))
                    first = next((i for i, (a, b) in pairs if a != b), len(mine[0]))
                    SCREEN.print(f"{name}, {way}: text {number} differs from token {first} on")
    return rows


def in_processes(work: Callable[[Any], Any], jobs: Sequence[Any], processes: int) -> Iterable[Any]:
    """Do each job in a process of its own, so many at a time, and yield the results in order."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from track(pool.imap(work, jobs, chunksize=1), total=len(jobs), console=Console(stderr=True))


def compare_drafts(
    names: Sequence[str], depths: Sequence[Any], tokens: int, length: int, options: dict[str, Any], processes: int
) -> dict[str, dict[str, Any]]:
    """Write the texts of all arms of all models; return the rows."""
    prompts, rows = new_prompts(-(-tokens // length)), {}
    prompts[::2] = [f"{prompt}\n{prompt[: len(prompt) // 3]}" for prompt in prompts[::2]]  # "auto" drafts from text
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            file, by_name = model_file(name, Path(folder)), arms(depths)
            jobs = [(file, options | {"draft_tokens": depth}, prompts, length) for depth in by_name.values()]
            rows |= compare(name, dict(zip(by_name, in_processes(write, jobs, processes), strict=True)))
    return rows


def compare_games(names: Sequence[str], tokens: int, seed: int, processes: int, kind: str) -> dict[str, dict[str, Any]]:
    """Play games with each model until enough tokens are compared; print the differences, and return the rows."""
    each = -(-tokens // len(names))
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(name, Path(folder), each, seed + 1000 * i, kind) for i, name in enumerate(names)]
        results = list(in_processes(together.play_games, jobs, processes))
    for one in results:
        for difference in one.differences:
            SCREEN.print(f"{one.model}, {difference}")
    return {one.model: one.row() for one in results}


def main(
    models: Annotated[
        list[str] | None, typer.Argument(help="Files, or names of models; if not given, see above.")
    ] = None,
    vary: Annotated[Vary, typer.Option(help="What differs.")] = Vary.drafts,  # type: ignore[attr-defined]
    tokens: Annotated[
        int, typer.Option("--tokens", "-n", min=1, help="Of each model, arm and way; for games and HTTP in all.")
    ] = 20_000,
    length: Annotated[int, typer.Option(min=2, max=700, help="Tokens of a text.")] = 400,
    depths: Annotated[str, typer.Option(help="Depths to compare with plain decoding.")] = "1,2,3,4,5,6,7,8,auto",
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes at a time, one thread each.")] = 2,
    output: Output = None,
) -> None:
    """Compare texts; exit with status 1 if a token, a log-probability or a compared draft differs."""
    kind = vary.value
    if kind == "http":
        rows = http_load.same_text(None if not models else Path(models[0]), tokens, seed)
    elif kind in GAME_MODELS:
        rows = compare_games(models or GAME_MODELS[kind], tokens, seed, processes, kind)
    else:
        options = {"type_k": cache_type, "type_v": cache_type, "flash_attn": flash_attn}
        given = [int(depth) if depth.isdigit() else depth for depth in depths.split(",")]
        rows = compare_drafts(models or SHIPPED, given, tokens, length, options, processes)
    show_table(rows, kind)
    n, wrong = sum(row["tokens"] for row in rows.values()), sum(row["differ"] for row in rows.values())
    SCREEN.print(f"{wrong:,} of {n:,} tokens differ")
    write_json(output, f"same text, vary {kind}", tokens=tokens, length=length, seed=seed, ways=WAYS, rows=rows)
    raise typer.Exit(1 if wrong or any(row.get("drafts differ", 0) for row in rows.values()) else 0)


if __name__ == "__main__":
    run_command(main)
