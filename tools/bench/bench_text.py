"""Measure the index of a text that drafts come from: its time and memory, and how often its guesses are right.

    pip install . typer
    python tools/bench/bench_text.py times
    python tools/bench/bench_text.py guesses

Both use the shipped model's vocabulary, but no model. `times` writes benchmarks/text_index.json: CPU microseconds of
one thread, in texts of 200,000 tokens; the time of an empty call from Python is subtracted. `guesses` decodes the text
pairs of `pymtp bench decode --forced-text library` from guesses alone, and takes a draft to cost 7% of a round.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from time import thread_time
from typing import Annotated, Any

import typer
from peer import show, write_json
from rich.progress import track

from pymtp.bench.corpus import stdlib_texts
from pymtp.bench.library_pairs import library_pairs
from pymtp.bench.table import Cell, Column, Table
from pymtp.bench.text_pairs import TokenPair
from pymtp.drafting.text_index import Guess, TextIndex
from pymtp.model.model import Model, demo_model
from pymtp.native import ffi, lib

OUT = Path(__file__).resolve().parents[2] / "benchmarks" / "text_index.json"
LENGTH, LOOK_UPS, GUESSES = 200_000, 2000, 31
DRAFT_COST = 0.07  # of a round without drafts

TIMES = [
    Column("text", "text"),
    Column("add, µs a token", "add_us", ".2f"),
    Column("add at once", "add_at_once_us", ".2f"),
    Column(f"look-up of {GUESSES}, µs", "look_up_us", ".1f"),
    Column("99% below", "look_up_p99_us", ".1f"),
    Column("guesses", "guesses", ".1f"),
    Column("bytes a token", "bytes", ".1f"),
    Column("most while growing", "most_bytes", ".1f"),
]
RIGHT = [
    Column("kind", "kind"),
    Column("tokens a round", "tokens_per_round", ".2f"),
    Column("drafts a round", "drafts_per_round", ".2f"),
    Column("accepted", "accepted", ".0%"),
    Column("goodput", "goodput", ".2f"),
]

app = typer.Typer(add_completion=False, help=__doc__)


def records(luck: Random) -> Iterator[str]:
    """Yield records as JSON lines that have their keys and some values in common."""
    while True:
        name = luck.choice(("ada", "bob", "cleo", "dan", "eve"))
        record = {"id": luck.randrange(10**6), "name": name, "mail": f"{name}@example.org", "age": luck.randrange(90)}
        yield json.dumps(record) + "\n"


def long_texts(model: Model) -> dict[str, list[int]]:
    """Return a text of each kind, of LENGTH + LOOK_UPS tokens."""
    n, luck = LENGTH + LOOK_UPS, Random(0)

    def tokens(pieces: Iterator[str]) -> list[int]:
        return list(islice((token for piece in pieces for token in model.tokenize(piece, add_special=False)), n))

    return {
        "library source": tokens(stdlib_texts()),
        "JSON records": tokens(records(luck)),
        "random, 150,000 tokens": luck.choices(range(150_000), k=n),
        "random, 3 tokens": luck.choices(range(3), k=n),
        "period 2": list(islice(cycle([1, 2]), n)),
        "all equal": [1] * n,
    }


def seconds_of(call: Callable[[int], object], indices: Sequence[int]) -> float:
    """Return the CPU seconds of calls with each index."""
    start = thread_time()
    for i in indices:
        call(i)
    return thread_time() - start


def measure(name: str, tokens: list[int]) -> Cell:
    """Measure a text: its tokens are added one by one, then the last LOOK_UPS ones each after a look-up."""
    array = ffi.new("llama_token[]", tokens)
    found = [ffi.new("int32_t[]", GUESSES) for _ in Guess._fields]
    index, at_once, empty = TextIndex(), TextIndex(), TextIndex()
    start = thread_time()
    lib.pymtp_text_add(at_once.native, array, LENGTH)
    add_at_once = thread_time() - start

    def add(i: int) -> None:
        lib.pymtp_text_add(index.native, array + i, 1)

    def add_nothing(i: int) -> None:
        lib.pymtp_text_add(empty.native, array + i, 0)

    def look_up(text: TextIndex) -> int:
        return int(lib.pymtp_text_guess(text.native, at_once.native, array, 0, GUESSES, *found))

    added = most_bytes = 0.0
    for first in range(0, LENGTH, 1000):
        block = range(first, first + 1000)
        added += seconds_of(add, block) - seconds_of(add_nothing, block)
        most_bytes = max(most_bytes, index.nbytes / len(index)) if first else 0.0
    n_bytes = index.nbytes / len(index)
    nothing = seconds_of(lambda _: look_up(empty), range(LOOK_UPS)) / LOOK_UPS
    times, guesses = [], []
    for i in range(LENGTH, LENGTH + LOOK_UPS):
        times.append(seconds_of(lambda _: guesses.append(look_up(index)), [i]) - nothing)
        add(i)
    return Cell(
        text=name,
        add_us=1e6 * added / LENGTH,
        add_at_once_us=1e6 * add_at_once / LENGTH,
        look_up_us=1e6 * mean(times),
        look_up_p99_us=1e6 * quantiles(times, n=100)[-1],
        guesses=mean(guesses),
        bytes=n_bytes,
        most_bytes=most_bytes,
    )


class Rates:
    """How often guesses were right, by the length of their match and by the agreement of the occurrences."""

    def __init__(self) -> None:
        self._right: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
        self._all: dict[tuple[int, int], float] = defaultdict(lambda: 2.0)

    def _bin(self, guess: Guess) -> tuple[int, int]:
        agreement = 2 if guess.votes == guess.of > 1 else 1 if guess.of == 1 else 0
        return min(6, guess.length.bit_length()), agreement

    def observe(self, guess: Guess, right: bool) -> None:
        self._right[self._bin(guess)] += right
        self._all[self._bin(guess)] += 1

    def best_number(self, guesses: list[Guess]) -> int:
        """Return the number of drafts with the highest expected goodput."""
        chance = expected = best = 1.0
        number = 0
        for n, guess in enumerate(guesses, 1):
            chance *= self._right[self._bin(guess)] / self._all[self._bin(guess)]
            expected += chance
            if expected / (1 + DRAFT_COST * n) > best:
                best, number = expected / (1 + DRAFT_COST * n), n
        return number


def decode(pair: TokenPair, rates: Rates) -> tuple[int, int]:
    """Decode a text with drafts from guesses alone. Return the number of rounds and of drafts."""
    index, position, n_rounds, n_drafts = TextIndex(pair.prompt), 0, 0, 0
    while position < len(pair.text):
        guesses = index.guess(n=GUESSES)
        n = rates.best_number(guesses)
        accepted = 0
        for i, (guess, token) in enumerate(zip(guesses, pair.text[position:], strict=False)):
            rates.observe(guess, guess.token == token)
            if guess.token != token:
                break
            accepted += i < n
        index.add(pair.text[position : position + accepted + 1])
        position += accepted + 1
        n_rounds += 1
        n_drafts += n
    return n_rounds, n_drafts


@app.command()
def times(json_file: Annotated[Path, typer.Option("--json", help="The file of the results.")] = OUT) -> None:
    """Measure time and memory by kind of text."""
    with Model(demo_model()) as model:
        texts = long_texts(model)
    cells = [measure(name, tokens) for name, tokens in track(texts.items())]
    write_json(json_file, "index of a text", tokens=LENGTH, texts=[vars(cell) for cell in cells])
    show(Table(f"The index of a text of {LENGTH:,} tokens", TIMES, cells))


@app.command()
def guesses() -> None:
    """Decode the library's text pairs from guesses alone."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    rates = Rates()
    with Model(demo_model()) as model:
        pairs = [TokenPair.of(model, pair) for pair in library_pairs()]
    for learning in (True, False):  # twice, so that the rates are known
        for pair in track(pairs):
            done = (len(pair.text), *decode(pair, rates))
            if not learning:
                totals[pair.kind] = [a + b for a, b in zip(totals[pair.kind], done, strict=True)]
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "tokens_per_round": tokens / n_rounds,
            "drafts_per_round": n_drafts / n_rounds,
            "accepted": (tokens - n_rounds) / max(1, n_drafts),
            "goodput": tokens / (n_rounds + DRAFT_COST * n_drafts),
        }
        for kind, (tokens, n_rounds, n_drafts) in totals.items()
    ]
    show(Table("Text pairs decoded from guesses alone", RIGHT, [Cell(**row) for row in rows]))


if __name__ == "__main__":
    app()
