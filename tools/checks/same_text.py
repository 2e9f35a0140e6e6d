"""Counts the tokens that change although they must not: the same requests in other circumstances.

    pip install '.[server]' gguf typer
    python tools/checks/same_text.py --vary drafts
    python tools/checks/same_text.py build/0.8b-q4_0.gguf --vary threads --tokens 200 --length 50

One thing is varied (--vary):

drafts     Held-out prompts at each depth of --depths, against plain decoding, and each against itself in a second run.
threads    The same with fixed numbers of threads, plain and with drafts, and with the default number beside a process
           that computes every other 0.2 s, so that the number changes within a text. Against one thread.
head       The same with the head in a separate file: unchanged, where the drafts must be the same, too, and with its
           own embeddings and output layer in other types. Against plain decoding.
company    Random requests of all kinds (random_requests.py) that one LLM runs together (together.py), with 2 to 8
           sequences. Against each of them alone, in half of the games without drafts.
prefixes   The same requests with prefixes that sequences, host memory and files hold. Against no prefix cache.
http       Requests of all APIs to a server under load (http_load.py). Against LLM.generate.

The first three sample greedily and at two temperatures, with every filter, and also with penalties and a bias. Models:
the shipped one and its F16 and F32 twins; for `company` and `prefixes` also random weights of each type, dense and with
experts. A file can be given in place of a name. A difference is printed with the options that repeat it. After a
differing token, the rest of a text differs too: count the texts.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import http_load
import together
import typer
from common import MODELS, SCREEN, SHIPPED, Output, Seed, differing, model_file, run_command, show_table, write_json
from makers.demo_corpus import held_out_prompts
from makers.head_file import read_tensor, write_head, write_pair
from rich.console import Console
from rich.progress import track

from pymtp import LLM, SamplingParams
from pymtp.model.model import Model

Job = TypeVar("Job")
Done = TypeVar("Done")
Vary = Enum("Vary", {name: name for name in ("drafts", "threads", "head", "company", "prefixes", "http")}, type=str)

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
}
PREFIX_MODELS = (*SHIPPED, *(f"{kind} dense" for kind in ("f32", "f16", "q8_0", "q4_0", "q4_k")))
PREFIX_MODELS += ("f16 experts", "q4_k experts")
HOG = "import time\nwhile True:\n end = time.time() + 0.2\n while time.time() < end: pass\n time.sleep(0.2)"


@dataclass(frozen=True)
class Arm:
    """One way to write the texts of a model.

    options: of the LLM. same_drafts: the name of an arm whose drafts must be the same, too.
    """

    name: str
    model: Path
    options: dict[str, Any]
    head: Path | None = None
    beside_another: bool = False
    same_drafts: str = ""


@dataclass
class Texts:
    """What an arm wrote: for each of WAYS the tokens of each text, and the drafts of each decode of the head."""

    tokens: dict[str, list[list[int]]] = field(default_factory=dict)
    drafts: dict[str, list[list[int]]] = field(default_factory=dict)
    accepted: int = 0


@contextmanager
def another_process(*, computes: bool) -> Iterator[None]:
    """Run a process that needs a core now and then."""
    hog = subprocess.Popen([sys.executable, "-c", HOG]) if computes else None
    try:
        yield
    finally:
        if hog:
            hog.kill()
            hog.wait()


def write(job: tuple[Arm, Sequence[str], int]) -> Texts:
    """Continue prompts, each by so many tokens."""
    arm, prompts, length = job
    found = Texts()
    with (
        another_process(computes=arm.beside_another),
        Model(arm.model, head=arm.head) as model,
        LLM(model, **({"n_ctx": 1024, "n_threads": 1} | arm.options)) as llm,
    ):
        draft_chains = llm.context.draft_chains
        rounds: list[list[int]] = []

        def recorded(tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
            drafted = draft_chains(tokens, n)
            rounds.extend(drafts for drafts, _ in drafted.values())
            return drafted

        llm.context.draft_chains = recorded  # type: ignore[method-assign]
        for way, keywords in WAYS.items():
            rounds = found.drafts[way] = []
            done = llm.generate(prompts, SamplingParams(max_tokens=length, ignore_eos=True, **keywords))
            found.tokens[way] = [completion.token_ids for completion in done]
            found.accepted += sum(completion.stats.accepted for completion in done)
    return found


def drafts_arms(file: Path, depths: Sequence[Any]) -> Iterator[Arm]:
    """Yield plain decoding, then each depth, and all of them again."""
    for run in ("", ", again"):
        for depth in (0, *depths):
            yield Arm(
                f"{depth} drafts{run}", file, {"draft_tokens": depth}, same_drafts=f"{depth} drafts" if run else ""
            )


def threads_arms(file: Path, threads: Sequence[int]) -> Iterator[Arm]:
    """Yield plain decoding with one thread, then each number of threads with and without drafts."""
    ways: dict[str, dict[str, Any]] = {f"{n} threads": {"n_threads": n, "all_threads": True} for n in threads}
    yield Arm("1 thread", file, {"draft_tokens": 0})
    for name, options in {**ways, "default threads": {"n_threads": None}}.items():
        for depth in (0, 3, "auto"):
            beside = options["n_threads"] is None
            yield Arm(f"{name}, {depth} drafts", file, options | {"draft_tokens": depth}, beside_another=beside)


def head_arms(file: Path, depths: Sequence[Any], folder: Path) -> Iterator[Arm]:
    """Yield plain decoding, then each depth with the head inside, apart, and apart with its own tables."""
    trunk, head = write_pair(file, folder)
    tables = {"output.weight": read_tensor(file, "token_embd.weight")}
    types = {"token_embd.weight": "q5_1", "output.weight": "q8_0"}
    (own,) = write_head(file, folder / "mtp-own.gguf", tensors=tables, types=types)
    yield Arm("plain", trunk, {"draft_tokens": 0})
    for depth in depths:
        options = {"draft_tokens": depth}
        yield Arm(f"inside, {depth} drafts", file, options)
        yield Arm(f"apart, {depth} drafts", trunk, options, head, same_drafts=f"inside, {depth} drafts")
        yield Arm(f"own tables, {depth} drafts", trunk, options, own)


def compare(file: str, arms: Sequence[Arm], written: Sequence[Texts]) -> dict[str, dict[str, Any]]:
    """Compare the texts of each arm with those of the first; print differences, and return a row for each arm."""
    by_name, rows = {arm.name: texts for arm, texts in zip(arms, written, strict=True)}, {}
    for arm, texts in zip(arms[1:], written[1:], strict=True):
        name = f"{file}, {arm.name}"
        row = rows[name] = dict.fromkeys(("tokens", "differ", "texts", "texts differ", "drafts", "drafts differ"), 0)
        for way, drafts in texts.drafts.items():
            row["drafts"] += sum(map(len, drafts))
            row["drafts differ"] += differing(drafts, by_name[arm.same_drafts].drafts[way]) if arm.same_drafts else 0
            for number, (mine, plain) in enumerate(zip(texts.tokens[way], written[0].tokens[way], strict=True)):
                n = differing(mine, plain)
                row["tokens"] += len(mine)
                row["texts"] += 1
                row["differ"] += n
                if n:
                    row["texts differ"] += 1
                    first = next(i for i, (a, b) in enumerate(zip(mine, plain, strict=False)) if a != b)
                    SCREEN.print(f"{name}, {way}: text {number} differs from token {first} on")
        row["accepted"] = texts.accepted
    return rows


def in_processes(work: Callable[[Job], Done], jobs: Sequence[Job], processes: int) -> Iterable[Done]:
    """Do each job in a process of its own, so many at a time, and yield the results in order."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from track(pool.imap(work, jobs, chunksize=1), total=len(jobs), console=Console(stderr=True))


def compare_arms(
    vary: Vary, names: Sequence[str], tokens: int, length: int, values: str, options: dict[str, Any], processes: int
) -> dict[str, dict[str, Any]]:
    """Write the texts of all arms of all models; return the rows."""
    given = [int(value) if value.isdigit() else value for value in values.split(",")]
    prompts, rows = held_out_prompts(-(-tokens // length)), {}
    with tempfile.TemporaryDirectory() as temporary:
        for number, name in enumerate(names):
            (folder := Path(temporary) / str(number)).mkdir()
            file = model_file(name, folder)
            made = {"drafts": drafts_arms, "threads": threads_arms}.get(vary.value)
            arms = list(made(file, given) if made else head_arms(file, given, folder))  # type: ignore[arg-type]
            arms = [Arm(**{**vars(arm), "options": options | arm.options}) for arm in arms]
            jobs = [(arm, prompts, length) for arm in arms]
            rows |= compare(name, arms, list(in_processes(write, jobs, processes)))
    return rows


def compare_games(
    vary: Vary, names: Sequence[str], tokens: int, seed: int, processes: int
) -> dict[str, dict[str, Any]]:
    """Play games with each model until enough tokens are compared; print the differences, and return the rows."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            together.Job(name, Path(folder), -(-tokens // len(names)), seed + 1000 * i, cached=vary is Vary.prefixes)  # type: ignore[attr-defined]
            for i, name in enumerate(names)
        ]
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
    threads: Annotated[str, typer.Option("--threads", "-t", help="Fixed numbers of threads.")] = "2,3,4,8,16",
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
    elif kind in ("company", "prefixes"):
        names = models or (MODELS if kind == "company" else PREFIX_MODELS)
        rows = compare_games(vary, names, tokens, seed, processes)
    else:
        options = {"type_k": cache_type, "type_v": cache_type, "flash_attn": flash_attn}
        values = threads if kind == "threads" else depths
        at_a_time = 1 if kind == "threads" else processes
        rows = compare_arms(vary, models or SHIPPED, tokens, length, values, options, at_a_time)
    show_table(rows, kind)
    n, wrong = sum(row["tokens"] for row in rows.values()), sum(row["differ"] for row in rows.values())
    SCREEN.print(f"{wrong:,} of {n:,} tokens differ")
    write_json(output, f"same text, vary {kind}", tokens=tokens, length=length, seed=seed, ways=WAYS, rows=rows)
    if wrong or any(row.get("drafts differ", 0) for row in rows.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
