"""The command `pymtp bench decode`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, Synthetic, run_with_progress
from pymtp.cli.load import read_draft_vocab
from pymtp.cli.model_file import model_file
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions
from pymtp.cli.screen import loading_status

if TYPE_CHECKING:
    from pymtp.bench.decode import DecodeSettings
    from pymtp.bench.decode_report import DecodeReport

MAX_TOKENS = 16 * 1024


@expand_options
def decode(
    *,
    model: ModelName = None,
    depths: Annotated[
        str,
        typer.Option(
            help="Drafts per round. With 3:host-copy, hidden states are copied through the host; with 3:new, each "
            "completion gets a new LLM."
        ),
    ] = "none,1,2,3,4,5,6,7,8,auto",
    kinds: Annotated[str, typer.Option(help="Kinds of prompts.")] = "code,prose,lists,chat,repetition,random",
    temperatures: Annotated[str, typer.Option(help="0 is greedy.")] = "0,0.7",
    tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens to generate after each prompt.")] = 128,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", "-r", min=1, help="Measurements of each kind of prompt, temperature and number of drafts."
        ),
    ] = 3,
    synthetic_acceptance: Synthetic = None,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for one request at a time.

    Text is generated without drafts, with fixed numbers of drafts, and with `auto`. Each has its own context; all share
    one copy of the weights. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench import decode_report
    from pymtp.bench.decode import NONE, DecodeSettings
    from pymtp.bench.decode_plot import plot as draw
    from pymtp.bench.prompts import KINDS
    from pymtp.cli.bench_requests import check_head, read_arms, read_names, read_reals, read_synthetic
    from pymtp.model.model import Model

    if report_options.show_saved(decode_report, draw):
        return
    arms = read_arms(depths)
    chosen_kinds = read_names("--kinds", kinds, KINDS)
    chosen_temperatures = tuple(sorted(set(read_reals("--temperatures", temperatures))))
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    file, run_settings["placing"] = model_file(model, run_settings["placing"], with_head=arms != (NONE,))
    with Model(file, vocab_only=True, head=run_settings["placing"].get("head")) as header:
        if arms != (NONE,):
            check_head(header, f", it can only be measured with --depths {NONE}")
    settings = DecodeSettings(
        model=header.file_names,
        arms=arms,
        kinds=chosen_kinds,
        temperatures=chosen_temperatures,
        tokens=tokens,
        rounds=rounds,
        synthetic=rates,
        draft_vocab=vocabulary,
        **run_settings,
    )
    report, failed, interrupted = _measure(settings, header.path)
    report_options.finish(report, decode_report, draw, failed=failed, interrupted=interrupted)


def _measure(settings: DecodeSettings, model: Path) -> tuple[DecodeReport, int, bool]:
    """Run the bench. Return its report, the number of failed measurements, and whether Ctrl-C interrupted it."""
    from pymtp.bench import decode_report
    from pymtp.bench.decode import DecodeArms, decode_bench
    from pymtp.bench.report import run_environment
    from pymtp.model.model import Model

    with loading_status(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded, closing(DecodeArms(loaded, settings)) as arms:
        bench = decode_bench(settings, arms.run)
        interrupted = run_with_progress(bench, decode_report)
        report = decode_report.DecodeReport.of(
            bench.measurements, asdict(settings), left_out=bench.left_out + interrupted, **run_environment(loaded)
        )
    return report, sum(bench.failed.values()), bool(interrupted)
