"""The command `pymtp bench batch`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, run_with_progress
from pymtp.cli.load import read_draft_vocab
from pymtp.cli.model_file import model_file
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions
from pymtp.cli.screen import loading_status

if TYPE_CHECKING:
    from pymtp.bench.batch import BatchSettings
    from pymtp.bench.batch_report import BatchReport

MAX_TOKENS = 16 * 1024
MAX_ARRIVING = 256 * 1024
MAX_SEQUENCES = 256


@expand_options
def batch(
    *,
    model: ModelName = None,
    sequences: Annotated[str, typer.Option(help="Requests that run at the same time.")] = "1,2,4,8,16",
    depths: Annotated[str, typer.Option(help="Drafts per round and sequence.")] = "none,1,2,3,5,7,auto",
    acceptance: Annotated[
        str,
        typer.Option(
            help="How drafts are accepted: real for the target's decision, or a probability. For example real,0.5,0.9."
        ),
    ] = "real",
    prompt: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Tokens of each prompt.")] = 64,
    tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens to generate after each prompt.")] = 64,
    warm_up: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Tokens of each text of the warm-up.")] = 32,
    requests: Annotated[int, typer.Option(min=1, help="Requests for each sequence.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Mean number of requests per second, which arrive at random.", show_default="all at once"
        ),
    ] = None,
    arriving: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="Also measure how a prompt of this length, such as 4k, delays running requests."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", "-T", min=0.0, help="0 is greedy.")] = 0.0,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", "-r", min=1, help="Measurements of each number of sequences, acceptance and number of drafts."
        ),
    ] = 3,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for several requests at once.

    Requests run without drafts, with fixed numbers of drafts, and with `auto`. Each measurement has its own context.
    Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench import batch_report
    from pymtp.bench.batch import ARMS, BatchSettings
    from pymtp.bench.batch_plot import plot as draw
    from pymtp.bench.decode import NONE
    from pymtp.cli.bench_requests import check_head, read_acceptance, read_names, read_number, read_numbers
    from pymtp.model.model import Model

    if report_options.show_saved(batch_report, draw):
        return
    long_prompt = None if arriving is None else read_number("--arriving", arriving, MAX_ARRIVING)
    numbers = read_numbers("--sequences", sequences, MAX_SEQUENCES - (arriving is not None))
    arms = read_names("--depths", depths, ARMS)
    accepted = read_acceptance(acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    file, run_settings["placing"] = model_file(model, run_settings["placing"], with_head=arms != (NONE,))
    with Model(file, vocab_only=True, head=run_settings["placing"].get("head")) as header:
        if arms != (NONE,):
            check_head(header, f", it can only be measured with --depths {NONE}")
    settings = BatchSettings(
        model=header.file_names,
        sequences=numbers,
        arms=arms,
        acceptance=accepted,
        prompt_tokens=prompt,
        tokens=tokens,
        warm_up=warm_up,
        requests=requests,
        rate=rate,
        arriving=long_prompt,
        temperature=temperature,
        rounds=rounds,
        draft_vocab=vocabulary,
        **run_settings,
    )
    report, failed, interrupted = _measure(settings, header.path)
    report_options.finish(report, batch_report, draw, failed=failed, interrupted=interrupted)


def _measure(settings: BatchSettings, model: Path) -> tuple[BatchReport, int, bool]:
    """Run the bench. Return its report, the number of failed measurements, and whether Ctrl-C interrupted it."""
    from pymtp.bench import batch_report
    from pymtp.bench.batch import BatchArms, groups
    from pymtp.bench.corpus import TokenSource, stdlib_texts
    from pymtp.bench.paired import PairedBench
    from pymtp.bench.report import run_environment
    from pymtp.model.model import Model

    with loading_status(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded:
        source = TokenSource(lambda text: loaded.tokenize(text, add_special=False), stdlib_texts)
        bench = PairedBench(groups(settings), BatchArms(loaded, settings, source).measure)
        interrupted = run_with_progress(bench, batch_report)
        report = batch_report.BatchReport(
            settings=asdict(settings),
            left_out=bench.left_out + interrupted,
            measurements=bench.measurements,
            **run_environment(loaded),
        )
    return report, sum(bench.failed.values()), bool(interrupted)
