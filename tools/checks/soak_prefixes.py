"""Runs five thousand requests with shared prompt prefixes on one LLM with little cache memory, and checks the cache.

    pip install . typer
    python tools/checks/soak_prefixes.py --requests 5000

Does all that soak_requests.py does, and also cancels and fails calls while prefixes are saved and loaded. After each
request, the cache must be within cache_bytes. While nothing runs, no prefill may be left and nothing pinned, the counts
of the cache must be right, and resident memory must be flat: the median of the last third of the requests against that
of the second third. In the first third, malloc still grows for arrays of many sizes.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from prompt_tree import PromptTree
from random_faults import Faults, play_shapes
from random_requests import RequestGenerator, RequestSpec, outcome
from rich.console import Console
from soak import resident
from soak_requests import Book, Callers, added_up, differences_from_fresh_llm, in_words

from pymtp import LLM, Completion, Model, PymtpError
from pymtp.engine.request import Request
from pymtp.prefix_cache.records import PrefixFigures
from pymtp.prefix_cache.tree import KvBlock, RadixNode

from makers.demo_corpus import held_out_prompts  # isort: skip  # soak_requests sets the path

SAVING = ("save_state", "save_cells", "load_state", "load_cells", "copy_cells", "keep_cells", "copy")
STATES = 6  # states of a sequence that the cache has room for
PHASES = 15


@dataclass(frozen=True)
class Phase:
    """The results so far.

    most: the maximum of cached bytes. exceeded: requests after which the cache was above its limit.
    alive: Request objects that still exist. wrong: inconsistent counts.
    """

    requests: int
    told: dict[str, int]
    ended: dict[str, int]
    faults: dict[str, int]
    figures: PrefixFigures
    most: int
    exceeded: int
    alive: int
    resident: int
    wrong: str


class BudgetBook(Book):
    """Also checks the size of the cache after each request."""

    def __init__(self, llm: LLM, cache_bytes: int) -> None:
        self._cache_bytes, self._llm = cache_bytes, llm
        self.most = self.exceeded = 0
        super().__init__(llm)

    def submit(self, request: Request, cancel_count: int | None = None) -> None:
        """Check the size of the cache when the request ends."""
        finish = request.finish

        def checked(reason: Any) -> None:
            finish(reason)
            nbytes = self._llm.figures().prefixes.nbytes
            self.most = max(self.most, nbytes)
            self.exceeded += nbytes > self._cache_bytes

        request.finish = checked  # type: ignore[method-assign]
        super().submit(request, cancel_count)


class TreeCallers(Callers):
    """Threads and tasks that use the prompts of one tree each."""

    def __init__(self, llm: LLM, texts: Sequence[Sequence[int]], seed: int) -> None:
        super().__init__(llm, texts, seed)
        self._trees: dict[int, PromptTree] = {}

    def _made(self, i: int) -> tuple[RequestGenerator, random.Random]:
        _, numbers = super()._made(i)
        context = self.llm.context
        tree = PromptTree(self.llm.model, numbers, self._texts, context.n_ctx, context.n_ubatch)
        if i in self._trees:
            tree.known = self._trees[i].known  # the texts of the phase before
        self._trees[i] = tree
        return tree, numbers

    def _tell(self, spec: RequestSpec, found: Completion | PymtpError) -> None:
        super()._tell(spec, found)
        if isinstance(found, Completion):
            tree = self._trees[hash(tuple(spec.prompt)) % len(self._trees)]
            tree.answered(spec, outcome(found))


def left_behind(llm: LLM) -> str:
    """Describe leaked pins and inconsistent counts of the cache, while nothing runs; "" for none."""
    cache = llm._engine.prefix_cache
    store, tree = cache.store, cache.store.tree
    nodes: list[RadixNode] = []
    left = list(tree.root.children.values())
    while left:
        nodes.append(left.pop())
        left += nodes[-1].children.values()
    blocks: set[KvBlock] = {part.block for node in nodes for part in node.slices or ()}
    states = sum(node.checkpoint.state.nbytes for node in nodes if node.checkpoint is not None)
    nbytes = states + sum(block.data.nbytes for block in blocks)
    context = llm.context
    in_use = sum(contents.in_use for contents in store.sequences)
    checks = {
        f"{len(cache._prefills)} prompts are in prefill": not cache._prefills,
        f"{len(store.pins)} nodes are pinned": not store.pins,
        f"{in_use} sequences are in use": not in_use,
        f"{nbytes} bytes are kept, and {tree.nbytes} counted": nbytes == tree.nbytes,
        f"{len(nodes)} nodes, and {tree.n_nodes} counted": len(nodes) == tree.n_nodes,
        "a sequence does not hold its known tokens": all(
            context.tokens(seq)[: contents.n_tokens] == contents.known_tokens.tolist()
            for seq, contents in enumerate(store.sequences)
        ),
        "a sequence has another state than recorded": all(
            not contents.has_state or context.tokens_held(seq) == contents.n_tokens
            for seq, contents in enumerate(store.sequences)
        ),
    }
    return "; ".join(words for words, right in checks.items() if not right)


def soak_prefixes(
    model: Model, requests: int, *, seed: int = 0, phases: int = PHASES, states: float = STATES, **more: Any
) -> Iterator[Phase | list[str]]:
    """Yield the results after each phase, and at last the differences from a new LLM. more: options of the LLM."""
    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_ubatch": 128, "n_batch": 128} | more
    texts = [model.tokenize(text) for text in held_out_prompts(12, 3000)]
    with LLM(model, n_seq_max=1, **{name: value for name, value in settings.items() if name != "n_seq_max"}) as llm:
        cache_bytes = int(states * llm.context.state_bytes)
    with LLM(model, cache_bytes=cache_bytes, **({"n_seq_max": 4} | settings)) as llm:
        book, faults = BudgetBook(llm, cache_bytes), Faults(llm.context, random.Random(seed), also=SAVING)
        callers = TreeCallers(llm, texts, seed)
        for phase in range(phases):
            callers.play(requests * (phase + 1) // phases - requests * phase // phases, loop=phase % 2 == 0)
            llm._engine.process_queues()  # streams that were dropped last
            wrong = "; ".join(filter(None, (added_up(llm, book, callers), left_behind(llm))))
            play_shapes(llm.context, faults)
            llm._engine.prefix_cache.recover()  # the sequences hold other tokens now
            gc.collect()
            yield Phase(
                requests=len(book.times),
                told=dict(callers.told),
                ended=dict(book.ended),
                faults=dict(faults.made),
                figures=llm.figures().prefixes,
                most=book.most,
                exceeded=book.exceeded,
                alive=sum(isinstance(one, Request) for one in gc.get_objects()),
                resident=resident(),
                wrong=wrong,
            )
        faults.on = False
        settings.pop("n_seq_max", None)
        yield differences_from_fresh_llm(llm, settings | {"cache_prompt": False}, callers.samples)


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    requests: Annotated[int, typer.Option("--requests", "-r", min=PHASES)] = 5_000,
    seed: Annotated[int, typer.Option(help="Seed of the requests; their times are not reproducible.")] = 0,
    n_seq_max: Annotated[int, typer.Option(min=1)] = 4,
    states: Annotated[float, typer.Option(help="Host memory for prefixes, in states of a sequence.")] = STATES,
    growth: Annotated[int, typer.Option(help="The most bytes that memory may grow from half to half.")] = 4_000_000,
    output: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
) -> None:
    """Run random requests; exit with status 1 if anything is wrong."""
    console = Console(highlight=False)
    phases: list[Phase] = []
    differences: list[str] = []
    with closing(Model(model)) as loaded:
        for found in soak_prefixes(loaded, requests, seed=seed, n_seq_max=n_seq_max, states=states):
            if isinstance(found, list):
                differences = found
                continue
            phases.append(found)
            kept = found.figures
            console.print(
                f"{found.requests:>6} requests ended: {in_words(found.ended)}; "
                f"faults: {in_words(found.faults)}; {kept.hits} of {kept.lookups} prompts found "
                f"{kept.found} tokens; {kept.evicted} checkpoints went; {found.most} bytes at most, "
                f"{found.exceeded} times too many; {found.alive} stay behind; "
                f"{(found.resident - phases[0].resident) / 1e6:+.2f} MB {found.wrong}",
                soft_wrap=True,
            )
    third = len(phases) // 3
    grown = median(one.resident for one in phases[-third:]) - median(one.resident for one in phases[third:-third])
    console.print(
        f"{grown / 1e6:+.2f} MB from the second third to the last; {len(differences)} differ from a fresh LLM"
    )
    for difference in differences:
        console.print(difference, soft_wrap=True)
    if output is not None:
        output.write_text(
            json.dumps({"phases": list(map(asdict, phases)), "differences": differences}, indent=1) + "\n"
        )
    if differences or grown > growth or any(one.wrong or one.exceeded or one.alive for one in phases):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
