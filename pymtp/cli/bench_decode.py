"""The command `pymtp bench decode`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from pymtp.cli.bench_output import ForcedText, ReportOptions, Synthetic, bench_model
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions, read_draft_vocab

MAX_TOKENS = 16 * 1024
DEPTHS, TOKENS, TEMPERATURES = "none,1,2,3,4,5,6,7,8,auto", 128, "0,0.7"
FORCED_DEPTHS, FORCED_TEMPERATURES = "none,2,auto:head,auto", "0"


@expand_options
def decode(
    *,
    context: typer.Context,
    model: ModelName = None,
    depths: Annotated[
        str | None, typer.Option(help="Drafts per round.", show_default=f"{DEPTHS}; of forced text {FORCED_DEPTHS}")
    ] = None,
    kinds: Annotated[str | None, typer.Option(help="Kinds of prompts.", show_default="all")] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(help="0 is greedy.", show_default=f"{TEMPERATURES}; of forced text {FORCED_TEMPERATURES}"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MAX_TOKENS,
            help="Tokens to generate after each prompt.",
            show_default=f"{TOKENS}; the whole forced text",
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option("--rounds", "-r", min=1, help="Measurements of each combination."),
    ] = 3,
    synthetic_acceptance: Synthetic = None,
    forced_text: ForcedText = None,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for one request at a time.

    Text is generated without drafts, with fixed numbers of drafts, and with `auto`. Each has its own context; all share
    one copy of the weights. With --depths 3:host-copy, hidden states are copied through the host; with 3:new, each
    completion gets a new LLM; with auto:head, drafts come from the head alone. Ctrl-C ends the bench and shows the
    measurements made so far.
    """
    from pymtp.bench.decode import ARMS, NONE, DecodeSettings, open_bench
    from pymtp.bench.decode_report import DecodeReport
    from pymtp.bench.forced import PUBLISHED_RATES
    from pymtp.bench.prompts import KINDS
    from pymtp.bench.text_pairs import kinds_of
    from pymtp.cli.bench_values import arms_with_drafts, read_forced_text, read_names, read_reals, read_synthetic

    if report_options.show_saved(context, DecodeReport):
        return
    pairs = [] if forced_text is None else read_forced_text(forced_text)
    arms = read_names("--depths", (FORCED_DEPTHS if pairs else DEPTHS) if depths is None else depths, ARMS)
    known_kinds = kinds_of(pairs) if pairs else KINDS
    chosen_kinds = known_kinds if kinds is None else read_names("--kinds", kinds, known_kinds)
    if temperatures is None:
        temperatures = FORCED_TEMPERATURES if pairs else TEMPERATURES
    chosen_temperatures = tuple(sorted(set(read_reals("--temperatures", temperatures))))
    rates = PUBLISHED_RATES if pairs else None
    if synthetic_acceptance is not None:
        rates = read_synthetic(synthetic_acceptance)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings, with_head=arms != (NONE,))
    arms = arms_with_drafts(header, arms, forced=bool(pairs), explicit=depths is not None)
    settings = DecodeSettings(
        model=header.file_names,
        arms=arms,
        kinds=chosen_kinds,
        temperatures=chosen_temperatures,
        tokens=tokens or (MAX_TOKENS if pairs else TOKENS),
        rounds=rounds,
        synthetic=rates,
        forced_text=forced_text,
        draft_vocab=vocabulary,
        **run_settings,
    )
    chosen_pairs = [pair for pair in pairs if pair.kind in chosen_kinds]
    report_options.measure(settings, header.path, partial(open_bench, pairs=chosen_pairs), DecodeReport)
