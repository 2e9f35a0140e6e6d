"""The files that a restarted worker loads: those of an earlier worker, or what the hub has now."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from pymtp.errors import ModelLoadError
from pymtp.hub.files import split_paths
from pymtp.model.files import read_file_info
from pymtp.server.metrics.logs import hold_errors, log
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.validation import is_hub_name


class ModelSource:
    """The model of a server's workers. Of a model of the hub, it remembers the files that a worker has loaded."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._model_file: str | None = None  # the file of the hub model that a worker has loaded
        self._head_file: SeparateFile | None = None  # the separate head of that model, if any
        self._projector: SeparateFile | None = None  # its projector, if any
        self._asks_hub = True  # whether the next worker asks the hub for the files of the model

    def next_config(self) -> WorkerConfig:
        """Return the config of the next worker.

        If an earlier worker has loaded a model of the hub, the config has the paths of its files, so that the next
        worker loads the same files. Otherwise the config has the name of the model, as the user gave it.
        """
        if self._asks_hub or self._model_file is None:
            return self._config
        llm = self._config.llm
        head = llm.head if self._head_file is None else self._head_file.path
        mmproj = llm.mmproj if self._projector is None else self._projector.path
        return replace(self._config, llm=replace(llm, model=self._model_file, head=head, mmproj=mmproj))

    def note_loaded(self, file: str, head: str | None, projector: str | None = None) -> None:
        """Remember the files that a worker has loaded, if the model comes from the hub.

        file: the path of the model's file.
        head: the path of the separate head; None if the model's file contains the head.
        projector: the path of the projector; None without one.
        """
        if isinstance(self._config.llm.model, str) and is_hub_name(self._config.llm.model):
            self._model_file, self._asks_hub = file, False
            self._head_file = None if head is None else SeparateFile(head)
            self._projector = None if projector is None else SeparateFile(projector)

    def note_failed(self) -> None:
        """Choose what the next worker loads after one that died before it was ready: the files, or what the hub has.

        By default the next worker loads the files of the earlier worker, even if the hub has newer files. If a worker
        died before it was ready, the other source may be chosen: the hub after a missing or damaged file, the files
        after the hub.
        """
        if self._model_file is None:
            return
        if self._asks_hub:
            self._asks_hub = False
            return
        try:
            with hold_errors(logging.getLogger("pymtp.native")):
                read_file_info(Path(self._model_file))
            for file in (self._head_file, self._projector):
                if file is not None:
                    file.check()
        except ModelLoadError as error:
            self._asks_hub = True
            log.warning(
                "%s. The next worker asks the hub for %s; the hub may have another file by now",
                error,
                self._config.llm.model,
            )


class SeparateFile:
    """The files of a separate head or of a projector, and their sizes at the time of loading.

    The check compares only the sizes, because neither can be opened without its model.
    """

    def __init__(self, path: str) -> None:
        """path: the file, or its first part if it is split into several files."""
        self.path = path
        self._sizes = {part: _size(part) for part in split_paths(Path(path))}

    def check(self) -> None:
        """Raise ModelLoadError if a file is missing, or has another size than at the time of loading."""
        for part, size in self._sizes.items():
            if (now := _size(part)) != size:
                state = "no such file" if now is None else f"{now:,} bytes, but {size or 0:,} when it was loaded"
                raise ModelLoadError(f"{part}: {state}")


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
