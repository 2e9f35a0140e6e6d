"""`pymtp tap`: which hidden state a head was trained on."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pymtp.cli.model_file import model_file
from pymtp.cli.options import AsJson, ModelArgument, spread
from pymtp.cli.running import Running
from pymtp.cli.screen import loading, screen, tables
from pymtp.model.model import Model


@spread
def tap(
    model: ModelArgument = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate after each prompt.")] = 128,
    json_output: AsJson = False,
    *,
    running: Running,
) -> None:
    """Find the hidden state that an MTP head was trained on. It is the one before or after the final norm."""
    from pymtp.bench.tap import as_dict, as_table, in_words, judge
    from pymtp.cli.bench_requests import check_head

    given = running.settings()
    file, placing = model_file(model, given["placing"])
    with loading(file.name if file else "the shipped model"):
        loaded = Model(file, n_gpu_layers=given["gpu_layers"], **placing)
    with loaded, screen.status("drafting with both taps …"):
        check_head(loaded)
        judgement = judge(loaded, tokens=tokens, n_threads=given["threads"])
    if json_output:
        print(json.dumps(as_dict(judgement), ensure_ascii=False))
        return
    out = tables()
    out.print(as_table(judgement))
    for line in in_words(judgement):
        out.print(line, soft_wrap=True, markup=False)
