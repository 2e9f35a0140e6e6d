"""The command `pymtp tap`: find the hidden state that a head was trained on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pymtp.cli.model_file import model_file
from pymtp.cli.options import AsJson, ModelArgument, expand_options
from pymtp.cli.running import RunOptions
from pymtp.cli.screen import loading_status, screen
from pymtp.cli.tables import print_tables
from pymtp.model.model import Model


@expand_options
def tap(
    model: ModelArgument = None,
    tokens: Annotated[int, typer.Option(min=2, help="At most so many tokens after each prompt.")] = 128,
    json_output: AsJson = False,
    *,
    run_options: RunOptions,
) -> None:
    """Find the hidden state that an MTP head was trained on. It is the state before or after the final norm."""
    from pymtp.bench.tap import as_dict, as_table, judge, verdict
    from pymtp.cli.bench_values import check_head

    settings = run_options.settings()
    file, placing = model_file(model, settings["placing"])
    with loading_status(file.name if file else "the shipped model"):
        loaded = Model(file, n_gpu_layers=settings["gpu_layers"], **placing)
    with loaded, screen.status("drafting with both taps …"):
        check_head(loaded)
        judgement = judge(loaded, tokens=tokens, n_threads=settings["threads"])
    if json_output:
        print(json.dumps(as_dict(judgement), ensure_ascii=False))
        return
    print_tables(as_table(judgement), *verdict(judgement))
