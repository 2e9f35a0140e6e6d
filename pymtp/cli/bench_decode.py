"""The command `pymtp bench decode`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pymtp.cli.bench_output import ReportOptions, Synthetic, bench_model
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions, read_draft_vocab

MAX_TOKENS = 16 * 1024


@expand_options
def decode(
    *,
    context: typer.Context,
    model: ModelName = None,
    depths: Annotated[
        str,
        typer.Option(help="Drafts per round."),
    ] = "none,1,2,3,4,5,6,7,8,auto",
    kinds: Annotated[str, typer.Option(help="Kinds of prompts.")] = "code,prose,lists,chat,repetition,random",
    temperatures: Annotated[str, typer.Option(help="0 is greedy.")] = "0,0.7",
    tokens: Annotated[int, typer.Option(min=2, max=MAX_TOKENS, help="Tokens to generate after each prompt.")] = 128,
    rounds: Annotated[
        int,
        typer.Option("--rounds", "-r", min=1, help="Measurements of each combination."),
    ] = 3,
    synthetic_acceptance: Synthetic = None,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for one request at a time.

    Text is generated without drafts, with fixed numbers of drafts, and with `auto`. Each has its own context; all share
    one copy of the weights. With --depths 3:host-copy, hidden states are copied through the host; with 3:new, each
    completion gets a new LLM. Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench.decode import ARMS, NONE, DecodeSettings, open_bench
    from pymtp.bench.decode_report import DecodeReport
    from pymtp.bench.prompts import KINDS
    from pymtp.cli.bench_values import check_head, read_names, read_reals, read_synthetic

    if report_options.show_saved(context, DecodeReport):
        return
    arms = read_names("--depths", depths, ARMS)
    chosen_kinds = read_names("--kinds", kinds, KINDS)
    chosen_temperatures = tuple(sorted(set(read_reals("--temperatures", temperatures))))
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings, with_head=arms != (NONE,))
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
    report_options.measure(settings, header.path, open_bench, DecodeReport)
