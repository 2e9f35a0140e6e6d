"""Results of the GPU suite, in a folder that stays valid if a process is killed at any time."""

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
    """The results of jobs, in jobs.json, and the reports beside it. Only one process may write at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file, self._running = folder / "jobs.json", folder / "running"

    def done(self) -> list[Done]:
        """Return the results of all jobs so far."""
        return [Done(**record) for record in json.loads(self._file.read_text())] if self._file.is_file() else []

    def begin(self, job: Job) -> None:
        """Record that a job starts. If the process ends before `end`, `cut_off` returns this job."""
        self._running.write_text(json.dumps({"name": job.name, "started": time.time()}))

    def end(self, job: Job, seconds: float, error: str = "") -> None:
        """Record the result of a job, after its report was written."""
        self._add(Done(job.name, round(seconds, 2), error))
        self._running.unlink(missing_ok=True)

    def cut_off(self, *, time_up: bool) -> str:
        """Record and return the job that a process left unfinished; "" if there is none.

        time_up: it may be tried again with more time. Otherwise it counts as failed.
        """
        if not self._running.is_file():
            return ""
        running = json.loads(self._running.read_text())
        took = round(time.time() - running["started"], 2)
        self._add(Done(running["name"], took, "" if time_up else CRASHED, cut=time_up))
        self._running.unlink()
        return str(running["name"])

    def _add(self, done: Done) -> None:
        others = [result for result in self.done() if result.name != done.name]
        self.write("jobs.json", json.dumps([asdict(result) for result in [*others, done]], indent=1))

    def write(self, name: str, text: str) -> None:
        """Write a file atomically."""
        part = self.folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.folder / name)

    def read(self, name: str) -> Any:
        """Read a JSON file; return None if it does not exist."""
        file = self.folder / name
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
