"""The command `pymtp bench prefill`. The bench itself is imported only when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pymtp.cli.bench_output import ReportOptions, Synthetic, bench_model
from pymtp.cli.options import ModelName, expand_options
from pymtp.cli.running import BenchOptions

T = TypeVar("T")

SIZES, QUICK_SIZES = "1k,8k,32k,64k,128k,192k", "1k,4k"
DEPTHS, QUICK_DEPTHS = "2,3,4", "3"
GEN, QUICK_GEN, MAX_GEN = 128, 64, 16 * 1024
ROUNDS, QUICK_ROUNDS = 3, 1
STDLIB = "Python's standard library"


@expand_options
def prefill(
    *,
    context: typer.Context,
    model: ModelName = None,
    sizes: Annotated[str | None, typer.Option(help="Prompt sizes in tokens, e.g. 1k,8k.", show_default=SIZES)] = None,
    depths: Annotated[str | None, typer.Option(help="Drafts per round.", show_default=DEPTHS)] = None,
    modes: Annotated[str, typer.Option(help="Ways to prefill to compare.")] = "none,all-outputs,host-copy,fused",
    gen: Annotated[
        int | None,
        typer.Option(min=2, max=MAX_GEN, help="Tokens to generate after each prompt.", show_default=str(GEN)),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", "-r", min=1, help="Measurements of each mode, size and depth.", show_default=str(ROUNDS)
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"--sizes {QUICK_SIZES} --depths {QUICK_DEPTHS} --gen {QUICK_GEN} --rounds {QUICK_ROUNDS}, "
            "for those of these options that are not given.",
        ),
    ] = False,
    prompt_file: Annotated[Path | None, typer.Option(help="Cut prompts from this text.", show_default=STDLIB)] = None,
    synthetic_acceptance: Synthetic = None,
    run_options: BenchOptions,
    report_options: ReportOptions,
) -> None:
    """Compare the ways to read a prompt.

    The modes are: without MTP, with every row as an output, with hidden states copied through the host, and fused.
    Ctrl-C ends the bench and shows the measurements made so far.
    """
    from functools import partial

    from pymtp.bench.prefill import MODES, NONE, PrefillSettings, open_bench
    from pymtp.bench.prefill_report import PrefillReport
    from pymtp.cli.bench_values import (
        MAX_DEPTH,
        check_modes,
        read_names,
        read_numbers,
        read_synthetic,
        read_text,
        sizes_within_context,
    )

    if report_options.show_saved(context, PrefillReport):
        return
    chosen_modes = read_names("--modes", modes, MODES)
    requested_sizes = read_numbers("--sizes", _or_default(sizes, QUICK_SIZES if quick else SIZES))
    drafts = read_numbers("--depths", _or_default(depths, QUICK_DEPTHS if quick else DEPTHS), MAX_DEPTH)
    gen = _or_default(gen, QUICK_GEN if quick else GEN)
    text = None if prompt_file is None else read_text(prompt_file)
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    run_settings = run_options.settings()
    header = bench_model(model, run_settings, with_head=chosen_modes != (NONE,))
    check_modes(header, chosen_modes)
    usable_sizes, left_out = sizes_within_context(header, requested_sizes, gen, explicit=sizes is not None)
    settings = PrefillSettings(
        model=header.file_names,
        modes=chosen_modes,
        sizes=usable_sizes,
        depths=(0,) if chosen_modes == (NONE,) else drafts,
        gen=gen,
        rounds=_or_default(rounds, QUICK_ROUNDS if quick else ROUNDS),
        prompt=prompt_file.name if prompt_file else STDLIB,
        synthetic=rates,
        **run_settings,
    )
    report_options.measure(settings, header.path, partial(open_bench, text=text), PrefillReport, left_out)


def _or_default(value: T | None, default: T) -> T:
    """Return the value of an option, or the default if the option was not given."""
    return default if value is None else value
