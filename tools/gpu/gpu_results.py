"""What was measured so far, in a folder that survives whatever ends a measurement."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_plan import Done, Job

CRASHED = "the process ended while it ran"


class Results:
    """Jobs that are done, in jobs.json; the reports lie beside it. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file, self._running = folder / "jobs.json", folder / "running"

    def done(self) -> list[Done]:
        """All jobs that need no further try."""
        return [Done(**record) for record in json.loads(self._file.read_text())] if self._file.is_file() else []

    def begin(self, job: Job) -> None:
        """If the process ends before `end`, `cut_off` says which job it was."""
        self._running.write_text(json.dumps({"name": job.name, "started": time.time()}))

    def end(self, job: Job, seconds: float, error: str = "") -> None:
        """The job needs no further try; its report is written."""
        self._add(Done(job.name, round(seconds, 2), error))
        self._running.unlink(missing_ok=True)

    def cut_off(self, *, time_up: bool) -> str:
        """The job that a process left unfinished, "" when there was none. Where its time was up it may be tried again,
        with more; otherwise it counts as failed."""
        if not self._running.is_file():
            return ""
        running = json.loads(self._running.read_text())
        took = round(time.time() - running["started"], 2)
        self._add(Done(running["name"], took, "" if time_up else CRASHED, cut=time_up))
        self._running.unlink()
        return str(running["name"])

    def _add(self, done: Done) -> None:
        kept = [one for one in self.done() if one.name != done.name]
        self.write("jobs.json", json.dumps([asdict(one) for one in [*kept, done]], indent=1))

    def write(self, name: str, text: str) -> None:
        """A whole file or none."""
        fresh = self.folder / f"{name}.part"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.folder / name)

    def read(self, name: str) -> Any:
        """What a JSON file holds; None when it is not there."""
        file = self.folder / name
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
