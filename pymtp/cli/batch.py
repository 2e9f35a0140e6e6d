"""`pymtp batch`: answer a file of requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymtp.async_llm import AsyncLLM
from pymtp.cli.exit_codes import FAILED
from pymtp.cli.load import Loading
from pymtp.cli.options import SeqMax, spread
from pymtp.cli.screen import screen
from pymtp.errors import InvalidRequestError
from pymtp.openai.batch import BatchFiles, run_batch
from pymtp.openai.batch import Progress as Done


@spread
def batch(
    *,
    requests: Annotated[Path, typer.Argument(help="Requests, one a line, in OpenAI's batch format (JSONL).")],
    answers: Annotated[Path, typer.Argument(help="Answers, in the same order. A file that is there is gone on with.")],
    n_seq_max: SeqMax = 4,
    loading: Loading,
) -> None:
    """Answer a file of requests, several at once. Goes on where an earlier run stopped."""
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
    with loading.llm(n_seq_max) as llm, Progress(*columns, console=screen) as bar:
        task = bar.add_task("", total=files.total, completed=files.done)

        def show(done: Done) -> None:
            speed = llm.figures().tokens_per_second
            bar.update(task, completed=done.done, description=f"{speed:.0f} tokens/s, {done.failed} failed")

        async def run() -> Done:
            async with AsyncLLM(llm) as made:
                return await run_batch(made, files, show)

        done = asyncio.run(run())
    screen.print(
        f"{done.done} of {files.total} answered, {done.failed} with an error, {done.tokens} tokens", style="dim"
    )
    if done.failed:
        raise typer.Exit(FAILED)
