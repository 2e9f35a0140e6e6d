"""`pymtp bench decode`. What it measures with is imported when it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import Showing, Synthetic, watch
from pymtp.cli.load import read_draft_vocab
from pymtp.cli.model_file import model_file
from pymtp.cli.options import DraftVocab, ModelName, spread
from pymtp.cli.running import BenchRunning
from pymtp.cli.screen import loading

if TYPE_CHECKING:
    from pymtp.bench.decode import Settings
    from pymtp.bench.decode_report import Report

MAX_TOKENS = 16 * 1024


@spread
def decode(
    *,
    model: ModelName = None,
    depths: Annotated[
        str,
        typer.Option(
            help="Drafts per round. 3:host-copy takes hidden states through the host, 3:new a new LLM each time."
        ),
    ] = "none,1,2,3,4,5,6,7,8,auto",
    kinds: Annotated[str, typer.Option(help="Kinds of prompts.")] = "code,prose,lists,chat,repetition,random",
    temperatures: Annotated[str, typer.Option(help="0 is greedy.")] = "0,0.7",
    tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens to generate after each prompt.")] = 128,
    rounds: Annotated[
        int, typer.Option("--rounds", "-r", min=1, help="Measurements of each prompt, temperature and depth.")
    ] = 3,
    synthetic_acceptance: Synthetic = None,
    running: BenchRunning,
    draft_vocab: DraftVocab = "auto",
    showing: Showing,
) -> None:
    """Compare numbers of drafts for one text.

    It is written without drafts, with fixed numbers of drafts, and with `auto`. Each depth has its own context; all
    share one copy of the weights. Ctrl-C ends the bench and shows the measurements
    made so far.
    """
    from pymtp.bench import decode_report
    from pymtp.bench.decode import NONE, Settings
    from pymtp.bench.decode_plot import plot as draw
    from pymtp.bench.prompts import KINDS
    from pymtp.cli.bench_requests import check_head, read_arms, read_names, read_reals, read_synthetic
    from pymtp.model.model import Model

    if showing.again(decode_report, draw):
        return
    arms = read_arms(depths)
    chosen = read_names("--kinds", kinds, KINDS)
    heats = tuple(sorted(set(read_reals("--temperatures", temperatures))))
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    running_with = running.settings()
    file, running_with["placing"] = model_file(model, running_with["placing"], with_head=arms != (NONE,))
    with Model(file, vocab_only=True, head=running_with["placing"].get("head")) as looked_at:
        if arms != (NONE,):
            check_head(looked_at, f", it can only be measured with --depths {NONE}")
    settings = Settings(
        model=looked_at.file_names,
        arms=arms,
        kinds=chosen,
        temperatures=heats,
        tokens=tokens,
        rounds=rounds,
        synthetic=rates,
        draft_vocab=vocabulary,
        **running_with,
    )
    report, failed, interrupted = _measure(settings, looked_at.path)
    showing.end(report, decode_report, draw, failed=failed, interrupted=interrupted)


def _measure(settings: Settings, model: Path) -> tuple[Report, int, bool]:
    """The report, how many measurements failed, and whether it was interrupted."""
    from pymtp.bench import decode_report
    from pymtp.bench.decode import Arms, decode_bench
    from pymtp.bench.report import measured_on
    from pymtp.model.model import Model

    with loading(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded, closing(Arms(loaded, settings)) as arms:
        run = decode_bench(settings, arms.run)
        interrupted = watch(run, decode_report)
        report = decode_report.Report.of(
            run.measurements, asdict(settings), left_out=run.left_out + interrupted, **measured_on(loaded)
        )
    return report, sum(run.failed.values()), bool(interrupted)
