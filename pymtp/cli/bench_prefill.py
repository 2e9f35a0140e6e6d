"""`pymtp bench prefill`. What it measures with is imported when it runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pymtp.cli.bench_output import Showing, Synthetic
from pymtp.cli.model_file import model_file
from pymtp.cli.options import ModelName, spread
from pymtp.cli.running import BenchRunning
from pymtp.cli.screen import loading, screen

if TYPE_CHECKING:
    from pymtp.bench.prefill import Settings
    from pymtp.bench.prefill_report import Report

T = TypeVar("T")

SIZES, QUICK_SIZES = "1k,8k,32k,64k,128k,192k", "1k,4k"
DEPTHS, QUICK_DEPTHS = "2,3,4", "3"
GEN, QUICK_GEN, MAX_GEN = 128, 64, 16 * 1024
ROUNDS, QUICK_ROUNDS = 3, 1
STDLIB = "Python's standard library"


@spread
def prefill(
    *,
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
            "where these are not given.",
        ),
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option(min=0, metavar="MINUTES", help="Leave out measurements that would take longer.")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Cut prompts from this text.", show_default=STDLIB)] = None,
    cache_prompt: Annotated[bool, typer.Option("--cache-prompt", help="Use the same prompt in every round.")] = False,
    synthetic_acceptance: Synthetic = None,
    running: BenchRunning,
    showing: Showing,
) -> None:
    """Compare the ways to read a prompt.

    They are: no MTP, every row an output, hidden states copied through the host, fused. Ctrl-C ends the bench and
    shows the measurements made so far.
    """
    from pymtp.bench import prefill_report
    from pymtp.bench.prefill import NONE, Settings
    from pymtp.bench.prefill_plot import plot as draw
    from pymtp.cli.bench_requests import (
        MAX_DEPTH,
        check_modes,
        fitting,
        read_modes,
        read_numbers,
        read_synthetic,
        read_text,
    )
    from pymtp.model.model import Model

    if showing.again(prefill_report, draw):
        return
    chosen = read_modes(modes)
    asked = read_numbers("--sizes", _given(sizes, QUICK_SIZES if quick else SIZES))
    drafts = read_numbers("--depths", _given(depths, QUICK_DEPTHS if quick else DEPTHS), MAX_DEPTH)
    gen = _given(gen, QUICK_GEN if quick else GEN)
    text = None if prompt_file is None else read_text(prompt_file)
    rates = None if synthetic_acceptance is None else read_synthetic(synthetic_acceptance)
    running_with = running.settings()
    file, running_with["placing"] = model_file(model, running_with["placing"], with_head=chosen != (NONE,))
    with Model(file, vocab_only=True, head=running_with["placing"].get("head")) as looked_at:
        check_modes(looked_at, chosen)
        fit, left_out = fitting(looked_at, asked, gen, asked=sizes is not None)
    settings = Settings(
        model=looked_at.file_names,
        modes=chosen,
        sizes=fit,
        depths=(0,) if chosen == (NONE,) else drafts,
        gen=gen,
        rounds=_given(rounds, QUICK_ROUNDS if quick else ROUNDS),
        prompt=prompt_file.name if prompt_file else STDLIB,
        cache_prompt=cache_prompt,
        synthetic=rates,
        time_budget=None if time_budget is None else 60 * time_budget,
        **running_with,
    )
    report, failed, interrupted = _measure(settings, looked_at.path, text, left_out)
    showing.end(report, prefill_report, draw, failed=failed, interrupted=interrupted)


def _given(value: T | None, default: T) -> T:
    """An option's value, or what stands for it."""
    return default if value is None else value


def _measure(settings: Settings, model: Path, text: str | None, left_out: list[str]) -> tuple[Report, int, bool]:
    """The report, how many measurements failed, and whether it was interrupted."""
    from pymtp.bench.corpus import TokenSource, stdlib_texts
    from pymtp.bench.prefill import PrefillBench, contexts, groups
    from pymtp.bench.prefill_report import Report, done, going_on
    from pymtp.bench.report import measured_on
    from pymtp.cli.progress import Watch
    from pymtp.model.model import Model

    with loading(settings.model):
        loaded = Model(model, n_gpu_layers=settings.gpu_layers, **settings.placing)
    with loaded, Watch(sum(len(group.modes) for group in groups(settings)), screen) as watch:
        source = TokenSource(
            lambda text: loaded.tokenize(text, add_special=False), stdlib_texts if text is None else lambda: [text]
        )
        run = PrefillBench(
            settings,
            contexts(loaded, settings),
            source,
            on_start=lambda group, mode, left: watch.start(going_on(group, mode), left),
            on_done=lambda measurement: watch.done(done(measurement)),
        )
        try:
            run.run()
            interrupted = []
        except KeyboardInterrupt:
            interrupted = ["the measurements after the interruption"]
        report = Report(
            settings=asdict(settings),
            left_out=left_out + run.left_out + interrupted,
            measurements=run.measurements,
            **measured_on(loaded),
        )
    return report, len(run.failed), bool(interrupted)
