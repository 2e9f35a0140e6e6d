"""How a bench goes: a bar with the time left, and a line for each measurement, on stderr."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from pymtp.bench.prefill import NONE, Group, Measurement, Settings, groups, tokens


class _TimeLeft(ProgressColumn):
    """Counts down between measurements to when the last is estimated to end."""

    def render(self, task: Task) -> Text:
        ends: float | None = task.fields["ends"]
        if ends is None:
            return Text("time left not known yet")
        return Text(f"about {timedelta(seconds=max(0, round(ends - time.monotonic())))} left")


class Watch:
    """Shows a PrefillBench at work: `on_start` and `on_done` are for it to call."""

    def __init__(self, settings: Settings, screen: Console) -> None:
        columns = (
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=screen)
        total = sum(len(group.modes) for group in groups(settings))
        self._task = self._bar.add_task("warming up", total=total, ends=None)

    def on_start(self, group: Group, mode: str, seconds_left: float | None) -> None:
        ends = None if seconds_left is None else time.monotonic() + seconds_left
        drafts = "" if mode == NONE else f", {group.depth} drafts"
        self._bar.update(self._task, description=f"{tokens(group.size)} {mode}{drafts}", ends=ends)

    def on_done(self, done: Measurement) -> None:
        self._bar.advance(self._task)
        drafts = "" if done.mode == NONE else f", {done.depth} drafts, {done.stats.acceptance_rate:.0%} accepted"
        self._bar.console.print(
            f"round {done.round + 1}: {tokens(done.size)} {done.mode}{drafts}: "
            f"prefill {done.stats.prefill_tokens_per_second:.1f}/s, decode {done.stats.decode_tokens_per_second:.1f}/s",
            style="dim",
            soft_wrap=True,
        )

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()
