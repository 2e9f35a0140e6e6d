"""Measure what rows cost by type of weights: verifications of 2, 4 and 8 rows, relative to one row.

    pip install '.[test]' typer
    python tools/bench/bench_types.py --types q4_0,q8_0 --json build/types.json

Each type is that of all matrices of a model with random weights: four layers in the shape of Qwen3.5-0.8B with a
vocabulary of 8,192 tokens. `pymtp bench rows -m MODEL` and `pymtp info MODEL --prices` measure your own model.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
from peer import Output, Threads, errors_shown, screen, show, write_json

from pymtp import InvalidRequestError
from pymtp.bench.rows import RowsSettings, open_bench
from pymtp.bench.table import Column, Spread, Table
from pymtp.model.model import Model
from pymtp.native.cores import default_threads

from makers.make_model import make_model  # isort: skip  # peer makes the folder of tests importable
from makers.model_shapes import PRESETS  # isort: skip
from makers.random_weights import TYPES  # isort: skip

SHAPE, LAYERS, VOCABULARY = "qwen3.5-0.8b", 4, 8192
NUMBERS = (2, 4, 8)


def measure(weight_type: str, threads: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Make a model of a type, and return the milliseconds of one row and the medians and ranges relative to it."""
    shape = replace(PRESETS[SHAPE], n_layer=LAYERS, n_vocab=VOCABULARY)
    (path,) = make_model(shape, folder / f"{weight_type}.gguf", weight_type=weight_type)
    fixed: dict[str, Any] = {"gpu_layers": 0, "cache_type": "f16", "steps": (), "memory": 0}
    settings = RowsSettings(model=path.name, rounds=rounds, threads=threads, rows=(1, *NUMBERS), **fixed)
    with Model(path, n_gpu_layers=0) as model, open_bench(model, settings) as bench:
        bench.run()
        if bench.failed:
            raise InvalidRequestError(f"{weight_type}: {'; '.join(bench.failed)}")
        times = {(m.round, m.n): statistics.median(m.seconds) for m in bench.measurements}
    path.unlink()
    one_row = [times[turn, 1] for turn in range(rounds)]
    ratios = {n: Spread.of([times[turn, n] / one for turn, one in enumerate(one_row)]) for n in NUMBERS}
    return {
        "type": weight_type,
        "one_row_ms": 1e3 * statistics.median(one_row),
        "rows": {str(n): {"median": r.median, "low": r.low, "high": r.high} for n, r in ratios.items() if r},
    }


def main(
    types: Annotated[str, typer.Option(help="Types of weights, separated by commas.")] = ",".join(TYPES),
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Measurements of each number of rows.")] = 5,
    threads: Threads = None,
    output: Output = None,
) -> None:
    """Measure the price of rows by type of weights."""
    found: list[dict[str, Any]] = []
    n_threads = threads or default_threads()
    settings = {"shape": SHAPE, "layers": LAYERS, "vocabulary": VOCABULARY, "threads": n_threads, "rounds": rounds}
    with errors_shown(), tempfile.TemporaryDirectory() as folder:
        for weight_type in types.split(","):
            found.append(measure(weight_type, n_threads, rounds, Path(folder)))
            screen.print(f"{found[-1]}")
            # after each type, so that no result is lost
            write_json(output, "rows by type of weights", settings=settings, types=found)
    columns = [Column("type", itemgetter("type")), Column("one row, ms", itemgetter("one_row_ms"), ".2f")]
    columns += [Column(f"{n} rows", lambda row, n=n: row["rows"][str(n)]["median"], ".2f") for n in NUMBERS]
    show(Table("Rows by type of weights, of one row", columns, found))


if __name__ == "__main__":
    typer.run(main)
