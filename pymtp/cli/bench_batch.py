"""The command `pymtp bench batch`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, bench_model
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions, read_draft_vocab

MAX_TOKENS = 16 * 1024
MAX_ARRIVING = 256 * 1024
MAX_SEQUENCES = 256


@expand_options
def batch(
    *,
    context: typer.Context,
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
        typer.Option("--rounds", "-r", min=1, help="Measurements of each combination."),
    ] = 3,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for several requests at once.

    Requests run without drafts, with fixed numbers of drafts, and with `auto`. Each measurement has its own context.
    Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench.batch import ARMS, BatchSettings, open_bench
    from pymtp.bench.batch_report import BatchReport
    from pymtp.bench.decode import NONE
    from pymtp.cli.bench_values import check_head, read_acceptance, read_names, read_number, read_numbers

    if report_options.show_saved(context, BatchReport):
        return
    long_prompt = None if arriving is None else read_number("--arriving", arriving, MAX_ARRIVING)
    numbers = read_numbers("--sequences", sequences, MAX_SEQUENCES - (arriving is not None))
    arms = read_names("--depths", depths, ARMS)
    accepted = read_acceptance(acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings, with_head=arms != (NONE,))
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
    report_options.measure(settings, header.path, open_bench, BatchReport)
