"""The command `pymtp bench batch`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from pymtp.cli.bench_output import ForcedText, ReportOptions, Synthetic, bench_model
from pymtp.cli.given import given_option
from pymtp.cli.options import DraftVocab, ModelName, expand_options
from pymtp.cli.running import BenchOptions, read_draft_vocab
from pymtp.errors import InvalidRequestError

MAX_TOKENS = 16 * 1024
MAX_ARRIVING = 256 * 1024
MAX_SEQUENCES = 256
DEPTHS, FORCED_DEPTHS = "none,1,2,3,5,7,auto", "none,2,auto:head,auto"
SEQUENCES, FORCED_SEQUENCES = "1,2,4,8,16", "8"
TOKENS, FORCED_TOKENS = 64, 256
# the options of prompts and texts that are not given
_OF_OTHER_TEXTS = ("acceptance", "prompt", "requests", "rate", "arriving")


@expand_options
def batch(
    *,
    context: typer.Context,
    model: ModelName = None,
    sequences: Annotated[
        str | None,
        typer.Option(
            help="Requests that run at the same time.", show_default=f"{SEQUENCES}; of forced text {FORCED_SEQUENCES}"
        ),
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(help="Drafts per round and sequence.", show_default=f"{DEPTHS}; of forced text {FORCED_DEPTHS}"),
    ] = None,
    acceptance: Annotated[
        str,
        typer.Option(
            help="How drafts are accepted: real for the target's decision, or a probability. For example real,0.5,0.9."
        ),
    ] = "real",
    prompt: Annotated[int, typer.Option(min=1, max=MAX_TOKENS, help="Tokens of each prompt.")] = 64,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MAX_TOKENS,
            help="Tokens to generate after each prompt.",
            show_default=f"{TOKENS}; of forced text {FORCED_TOKENS}",
        ),
    ] = None,
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
    forced_text: ForcedText = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of the requests with forced text, in turn.",
            show_default="of the library: half repeat their prompts, half are prose",
        ),
    ] = None,
    synthetic_acceptance: Synthetic = None,
    run_options: BenchOptions,
    draft_vocab: DraftVocab = "auto",
    report_options: ReportOptions,
) -> None:
    """Compare numbers of drafts for several requests at once.

    Requests run without drafts, with fixed numbers of drafts, and with `auto`. Each measurement has its own context.
    Ctrl-C ends the bench and shows the measurements made so far.
    """
    from pymtp.bench.batch import ARMS, FORCED, BatchSettings, open_bench
    from pymtp.bench.batch_forced import open_forced_bench
    from pymtp.bench.batch_report import BatchReport
    from pymtp.bench.decode import NONE
    from pymtp.bench.forced import PUBLISHED_RATES
    from pymtp.bench.library_pairs import LIBRARY, MIXED
    from pymtp.bench.text_pairs import kinds_of
    from pymtp.cli.bench_values import (
        arms_with_drafts,
        read_acceptance,
        read_forced_kinds,
        read_forced_text,
        read_names,
        read_number,
        read_numbers,
        read_synthetic,
    )

    if report_options.show_saved(context, BatchReport):
        return
    _check_given(context, forced_text)
    pairs = [] if forced_text is None else read_forced_text(forced_text)
    long_prompt = None if arriving is None else read_number("--arriving", arriving, MAX_ARRIVING)
    most = MAX_SEQUENCES - (arriving is not None)
    if sequences is None:
        sequences = FORCED_SEQUENCES if pairs else SEQUENCES
    numbers = read_numbers("--sequences", sequences, most)
    arms = read_names("--depths", (FORCED_DEPTHS if pairs else DEPTHS) if depths is None else depths, ARMS)
    accepted = (FORCED,) if pairs else read_acceptance(acceptance)
    rates = PUBLISHED_RATES if pairs else None
    if synthetic_acceptance is not None:
        rates = read_synthetic(synthetic_acceptance)
    chosen_kinds = MIXED if forced_text == LIBRARY else kinds_of(pairs)
    if kinds is not None:
        chosen_kinds = read_forced_kinds(kinds, pairs)
    vocabulary = read_draft_vocab(draft_vocab)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings, with_head=arms != (NONE,))
    arms = arms_with_drafts(header, arms, forced=bool(pairs), explicit=depths is not None)
    settings = BatchSettings(
        model=header.file_names,
        sequences=numbers,
        arms=arms,
        acceptance=accepted,
        prompt_tokens=prompt,
        tokens=tokens or (FORCED_TOKENS if pairs else TOKENS),
        warm_up=warm_up,
        requests=requests,
        rate=rate,
        arriving=long_prompt,
        temperature=temperature,
        rounds=rounds,
        forced_text=forced_text,
        kinds=chosen_kinds,
        synthetic=rates,
        draft_vocab=vocabulary,
        **run_settings,
    )
    chosen_pairs = [pair for pair in pairs if pair.kind in chosen_kinds]
    bench = partial(open_forced_bench, pairs=chosen_pairs) if pairs else open_bench
    report_options.measure(settings, header.path, bench, BatchReport)


def _check_given(context: typer.Context, forced_text: str | None) -> None:
    """Raise InvalidRequestError for an option that has no effect with forced text, or without it."""
    names = {option.name or "" for option in context.command.params}
    without_effect = ("kinds", "synthetic_acceptance") if forced_text is None else _OF_OTHER_TEXTS
    if (option := given_option(context, names - set(without_effect))) is not None:
        where = "without --forced-text" if forced_text is None else "beside --forced-text"
        raise InvalidRequestError(f"{option} has no effect {where}: leave it out")
