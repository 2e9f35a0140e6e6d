"""Progress of a bench on stderr: a bar with the estimated time left, and a line for each measurement."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class _TimeLeft(ProgressColumn):
    """A column of the progress display that counts down to the estimated end of the bench."""

    def render(self, task: Task) -> Text:
        end_time: float | None = task.fields["end_time"]
        if task.finished:
            return Text("done")
        if end_time is None:
            return Text("time left not known yet")
        return Text(f"about {timedelta(seconds=max(0, round(end_time - time.monotonic())))} left")


class BenchProgress:
    """The progress display of a bench of `total` measurements."""

    def __init__(self, total: int, screen: Console) -> None:
        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=screen)
        self._task = self._bar.add_task("warming up", total=total, end_time=None)

    def start(self, description: str, seconds_left: float | None) -> None:
        """Show the measurement that is about to start.

        seconds_left: estimated seconds until the bench ends; None if unknown.
        """
        end_time = None if seconds_left is None else time.monotonic() + seconds_left
        self._bar.update(self._task, description=description, end_time=end_time)

    def describe(self, step: str) -> None:
        """Show what the current measurement does."""
        self._bar.update(self._task, description=step)

    def finish(self, result: str) -> None:
        """Count the current measurement as done, and print a line with its result."""
        self._bar.update(self._task, advance=1, description="")
        self._bar.console.print(result, style="dim", soft_wrap=True)

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()
