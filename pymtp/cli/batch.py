"""`pymtp batch`: answer a file of requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymtp.async_llm import AsyncLLM
from pymtp.cli.batch_files import BatchFiles, BatchProgress, run_batch
from pymtp.cli.exit_codes import FAILED
from pymtp.cli.load import LoadOptions
from pymtp.cli.options import SeqMax, expand_options
from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError


@expand_options
def batch(
    *,
    requests: Annotated[Path, typer.Argument(help="File of requests, one per line, in OpenAI's batch format (JSONL).")],
    answers: Annotated[
        Path,
        typer.Argument(help="File for the answers, in the order of the requests. If it exists, it is continued."),
    ],
    n_seq_max: SeqMax = 4,
    load_options: LoadOptions,
) -> None:
    """Answer a file of requests, several at once. Continues where an earlier run stopped."""
    try:
        files = BatchFiles(requests, answers)
    except OSError as error:
        raise InvalidRequestError(f"cannot open {error.filename or requests}: {error.strerror}") from error
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with load_options.llm(n_seq_max) as llm, Progress(*columns, console=screen) as bar:
        task = bar.add_task("", total=files.total, completed=files.done)

        def show(progress: BatchProgress) -> None:
            speed = llm.figures().tokens_per_second
            bar.update(task, completed=progress.done, description=f"{speed:.0f} tokens/s, {progress.failed} failed")

        async def run() -> BatchProgress:
            async with AsyncLLM(llm) as async_llm:
                return await run_batch(async_llm, files, show)

        result = asyncio.run(run())
    screen.print(
        f"{result.done} of {files.total} answered, {result.failed} with an error, {result.tokens} tokens", style="dim"
    )
    if result.failed:
        raise typer.Exit(FAILED)
