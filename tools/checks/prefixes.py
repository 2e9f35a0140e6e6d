"""Counts the tokens that the prefix cache changes: requests that use it against an LLM without a cache.

    pip install . gguf typer
    python tools/checks/prefixes.py --tokens 200000

Random requests of all kinds (random_requests.py), whose prompts share beginnings (prompt_tree.py), arrive one after the
other, several at once, and from threads with an event loop; some are cancelled. The host memory for prefixes is none,
too little, or ample. Between two plays, prefixes are saved to files, and another LLM loads them. Each request is then
repeated on an LLM with one sequence and no cache, in half of the games with n_ubatch=512. Tokens, log-probabilities
(bit for bit), text and finish reason must be the same; with a fixed number of drafts, also the drafted and accepted
tokens. The host memory in the figures must stay within cache_bytes.

A difference is printed with the options that reproduce its game: --model NAME --seed N --tokens 1. Games with threads,
and games that choose depths by measured times, may run differently each time.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import concurrency
import typer
from prompt_tree import PromptTree
from random_requests import Outcome, RequestSpec, outcome
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pymtp import LLM, InvalidRequestError, Model, build_info
from pymtp.engine.request import Waiter
from pymtp.engine.scheduler import MAX_UNREAD_PIECES
from pymtp.sampling import SamplingParams

from makers.demo_corpus import held_out_prompts  # isort: skip  # concurrency sets the path

MODELS = [
    "shipped",
    "shipped f16",
    "shipped f32",
    *(f"{kind} dense" for kind in ("f32", "f16", "q8_0", "q4_0", "q4_k")),
    *(f"{kind} experts" for kind in ("f16", "q4_k")),
]
PLAYS = 3  # per game
REQUESTS = 16  # per play
SPAN = 20  # steps within which requests arrive
BUDGETS = (0, 0.5, 1.5, 3, 6, 12, 25, None)  # cache_bytes in states of a sequence; None for the default
CACHES = ("f16", "f16", "f32", "f32", "bf16", "q8_0", "q4_0")
COUNTED = ("lookups", "hits", "found", "copied", "loaded", "saved", "evicted")


@dataclass
class CacheGameResults:
    """The results of a model's games.

    compared: drafts of requests whose acceptance was compared. files: prefixes that were loaded from a file.
    prompts: prompt tokens. kept: figures of the caches; found, copied, loaded and saved are tokens.
    """

    model: str
    requests: int = 0
    tokens: int = 0
    logprobs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    accepted: int = 0
    prompts: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    files: int = 0
    differing_tokens: int = 0
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def any_settings(numbers: random.Random) -> dict[str, Any]:
    """Return random options of an LLM, except n_seq_max and cache_bytes."""
    type_k, other = numbers.choices(CACHES, k=2)
    type_v = numbers.choice((type_k, type_k, other))
    n_ubatch = numbers.choice((16, 32, 48, 64, 128, 512))
    return {
        "n_ctx": numbers.choice((512, 512, 1024)),
        "n_batch": n_ubatch * numbers.choice((1, 1, 2)),
        "n_ubatch": n_ubatch,
        "n_threads": 1,
        "type_k": type_k,
        "type_v": type_v,
        "flash_attn": "on" if type_v.startswith("q") else numbers.choice(("auto", "on", "off")),
        "draft_tokens": numbers.choice(("auto", *range(8))),
    }


class Cold:
    """The outcomes of an LLM without a prefix cache, each generated once."""

    def __init__(self, model: Model, settings: dict[str, Any]) -> None:
        self._llm = LLM(model, n_seq_max=1, cache_prompt=False, **settings)
        self._answers: dict[tuple[tuple[int, ...], str], Outcome] = {}
        self.state_bytes: int = self._llm.context.state_bytes

    def __call__(self, prompt: Sequence[int], params: SamplingParams) -> Outcome:
        asked = (tuple(prompt), repr(params))
        if asked not in self._answers:
            (request,) = self._llm._submit([list(prompt)], params, Waiter())
            while not request.ended:
                self._llm._engine.step()
            assert not request.cached_tokens
            self._answers[asked] = outcome(request)
        return self._answers[asked]

    def close(self) -> None:
        """Close the LLM."""
        self._llm.close()


def one_by_one(llm: LLM, specs: Sequence[RequestSpec], numbers: random.Random) -> concurrency.Outcomes:
    """Run each request after the one before it has ended."""
    found: concurrency.Outcomes = {}
    for spec in specs:
        max_unread = MAX_UNREAD_PIECES if spec.call == "stream" else None
        branch_points = [spec.branch_points] if spec.branch_points else ()
        requests = llm._submit([spec.prompt], spec.params, Waiter(), max_unread=max_unread, branch_points=branch_points)
        while not all(request.ended for request in requests):
            for request in requests:
                if spec.cancel_after is not None and len(request.tokens) >= spec.cancel_after:
                    llm._engine.cancel(request)
                request.unread.clear()
            llm._engine.step()
        found |= {(spec.number, i): outcome(request) for i, request in enumerate(requests)}
    return found


class Game:
    """A tree of prompts, and the LLMs with a prefix cache that it is played on."""

    def __init__(self, model: Model, texts: Sequence[Sequence[int]], seed: int, found: CacheGameResults) -> None:
        self.model, self.found, self.seed = model, found, seed
        self.numbers = random.Random(seed)
        self.settings = any_settings(self.numbers)
        self.n_seq_max = self.numbers.randint(1, 6)
        self.tree = PromptTree(model, self.numbers, texts, self.settings["n_ctx"], self.settings["n_ubatch"])

    def play(self) -> None:
        """Run all plays, each with the cache that the ones before left."""
        numbers = self.numbers
        apart = self.settings | numbers.choice(({}, {"n_batch": 512, "n_ubatch": 512}))
        with closing(Cold(self.model, apart)) as cold, tempfile.TemporaryDirectory() as directory:
            budget = numbers.choice(BUDGETS)
            cache_bytes = None if budget is None else int(budget * cold.state_bytes)
            files = list[Path]()
            left = PLAYS
            while left:
                here = min(left, numbers.randint(1, PLAYS - 1))
                left -= here
                with LLM(self.model, n_seq_max=self.n_seq_max, cache_bytes=cache_bytes, **self.settings) as llm:
                    for path in files:
                        self._load(llm, path, cache_bytes)
                    for _ in range(here):
                        self._play(llm, cold, cache_bytes)
                    files = self._save(llm, Path(directory)) if left else []
                    self._count(llm)

    def _save(self, llm: LLM, directory: Path) -> list[Path]:
        """Save some prefixes of later prompts to files."""
        some = self.numbers.sample(self.tree.known, min(len(self.tree.known), self.numbers.randint(1, 3)))
        paths = [directory / f"{self.numbers.getrandbits(64):x}" for _ in some]
        for tokens, path in zip(some, paths, strict=True):
            llm.save_prefix(tokens[: self.settings["n_ctx"]], path)
        return paths

    def _load(self, llm: LLM, path: Path, cache_bytes: int | None) -> None:
        try:
            llm.load_prefix(path)
        except InvalidRequestError as error:  # if there is no room
            if cache_bytes is None or "cache_bytes" not in str(error):
                raise
        else:
            self.found.files += 1

    def _count(self, llm: LLM) -> None:
        figures = llm.figures().prefixes
        self.found.kept.update({name: getattr(figures, name) for name in COUNTED})

    def _play(self, llm: LLM, cold: Cold, cache_bytes: int | None) -> None:
        numbers = self.numbers
        specs = self.tree.make_many(REQUESTS, SPAN)
        way = numbers.choice((one_by_one, concurrency.by_steps, concurrency.by_steps, concurrency.by_threads))
        played = way(llm, specs, numbers)
        steps = way is not concurrency.by_threads
        nbytes = llm.figures().prefixes.nbytes
        if cache_bytes is not None and nbytes > cache_bytes:
            self._differs(way.__name__, f"{nbytes} bytes are kept, {cache_bytes} may be")
        for (number, i), one in sorted(played.items()):
            spec = specs[number]
            whole = cold(spec.prompt, spec.completions_params[i])
            self.tree.answered(spec, whole)
            words = f"{way.__name__}, request {number}.{i} of {len(spec.prompt)} tokens"
            beside = [spec] if way is one_by_one else specs
            same_depths = steps and (len(beside) == spec.params.n == 1 or self._has_room(beside))
            self._compare(spec, one, whole, words, same_depths)

    def _has_room(self, specs: Sequence[RequestSpec]) -> bool:
        """Tell whether all requests together have room for as many drafts as each of them alone."""
        settings = self.settings
        if settings["draft_tokens"] == "auto":
            return False
        rows = 1 + settings["draft_tokens"]
        longest = max(len(spec.prompt) + (spec.params.max_tokens or settings["n_ctx"]) for spec in specs)
        return self.n_seq_max * rows <= settings["n_ubatch"] and longest + rows < settings["n_ctx"]

    def _compare(self, spec: RequestSpec, one: Outcome, whole: Outcome, words: str, same_depths: bool) -> None:
        found = self.found
        found.requests += 1
        found.tokens += len(one.token_ids)
        found.logprobs += len(one.logprobs or ())
        found.ends[one.reason] += 1
        found.prompts += len(spec.prompt)
        if difference := one.difference(whole):
            pairs = zip(one.token_ids, whole.token_ids, strict=False)
            found.differing_tokens += max(1, sum(a != b for a, b in pairs))
            self._differs(words, difference)
        elif same_depths and one.stats and whole.stats and one.reason in ("stop", "length"):
            drafts, expected = ([s.drafted, s.accepted_per_position] for s in (one.stats, whole.stats))
            if self.settings["draft_tokens"] != "auto":
                found.compared += one.stats.drafted
                found.accepted += one.stats.accepted
                if drafts != expected:
                    self._differs(words, f"drafted, accepted: {drafts}, cold {expected}")

    def _differs(self, where: str, difference: str) -> None:
        self.found.differences.append(
            f"{self.found.model}, seed {self.seed}, {self.n_seq_max} sequences, {self.settings}, {where}: {difference}"
        )


def games(job: tuple[str, Path, int, int]) -> CacheGameResults:
    """Run games with one model until enough tokens are compared. job: model name, folder, tokens, seed."""
    name, directory, tokens, seed = job
    found = CacheGameResults(name)
    started = time.perf_counter()
    with closing(Model(concurrency.model_file(name, directory))) as model:
        texts = [model.tokenize(text) for text in held_out_prompts(12, 3000)]
        while found.tokens < tokens:
            Game(model, texts, seed, found).play()
            seed += 1
    found.seconds = time.perf_counter() - started
    return found


def show(all_results: Sequence[CacheGameResults], console: Console) -> None:
    """Print a table of the comparisons and one of the caches, and the differences below."""
    compared = Table("model", "requests", "left", "failed", "tokens", "logprobs", "accepted", "differ", "s")
    kept = Table("model", "prompts", *COUNTED, "files")
    for column in (*compared.columns[1:], *kept.columns[1:]):
        column.justify = "right"
    for column in (*compared.columns, *kept.columns):
        column.no_wrap = True
    for one in all_results:
        compared.add_row(
            one.model,
            f"{one.requests:,}",
            f"{one.ends['cancelled']:,}",
            f"{one.ends['failed']:,}",
            f"{one.tokens:,}",
            f"{one.logprobs:,}",
            f"{one.accepted:,} of {one.compared:,}",
            f"{one.differing_tokens:,}",
            f"{one.seconds:.0f}",
        )
        kept.add_row(one.model, f"{one.prompts:,}", *(f"{one.kept[name]:,}" for name in COUNTED), f"{one.files:,}")
    console.print(compared)
    console.print(kept)
    for one in all_results:
        for difference in one.differences:
            console.print(difference, soft_wrap=True)
    tokens = sum(one.tokens for one in all_results)
    console.print(
        f"{sum(one.differing_tokens for one in all_results):,} of {tokens:,} tokens differ; "
        f"{sum(len(one.differences) for one in all_results)} differences in all"
    )


def in_processes(jobs: Sequence[Any], processes: int) -> Iterator[CacheGameResults]:
    """Run each job in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap(games, jobs, chunksize=1)


def main(
    models: Annotated[list[str] | None, typer.Option("--model", "-m", help=f"All if not given: {MODELS}.")] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", "-n", min=1, help="Tokens to compare, for all together.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed of the first game.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Models at a time.")] = 2,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Compare requests with and without a prefix cache; exit with status 1 if anything differs."""
    console = Console(highlight=False)
    names = models or MODELS
    with tempfile.TemporaryDirectory() as directory:
        jobs = [(name, Path(directory), -(-tokens // len(names)), seed + 1000 * i) for i, name in enumerate(names)]
        running = track(in_processes(jobs, processes), total=len(jobs), console=Console(stderr=True))
        found = list(running)
    show(found, console)
    if output is not None:
        result = {"check": "prefixes", "seed": seed, "build": build_info(), "models": [vars(one) for one in found]}
        output.write_text(json.dumps(result, indent=1) + "\n")
    if any(one.differences for one in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
