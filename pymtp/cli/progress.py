"""Progress of a bench on stderr: a bar with the time left, and a line for each measurement."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class _TimeLeft(ProgressColumn):
    """Counts down between measurements to when the last is estimated to end."""

    def render(self, task: Task) -> Text:
        ends: float | None = task.fields["ends"]
        if task.finished:
            return Text("done")
        if ends is None:
            return Text("time left not known yet")
        return Text(f"about {timedelta(seconds=max(0, round(ends - time.monotonic())))} left")


class Watch:
    """Shows a bench of `total` measurements at work."""

    def __init__(self, total: int, screen: Console) -> None:
        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=screen)
        self._task = self._bar.add_task("warming up", total=total, ends=None)

    def start(self, what: str, seconds_left: float | None) -> None:
        """Before a measurement: what it is, and how long all that are left will take (None: not known yet)."""
        ends = None if seconds_left is None else time.monotonic() + seconds_left
        self._bar.update(self._task, description=what, ends=ends)

    def done(self, line: str) -> None:
        """After it: what it came to."""
        self._bar.update(self._task, advance=1, description="")
        self._bar.console.print(line, style="dim", soft_wrap=True)

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()
