"""Tests of the files that a restarted worker loads: those of a separate head and of a projector are checked, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymtp.errors import ModelLoadError
from pymtp.options import LLMOptions
from pymtp.server.process.model_source import ModelSource, SeparateFile
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ServerSettings


@pytest.mark.parametrize("names", [["mtp.gguf"], ["mtp-00001-of-00002.gguf", "mtp-00002-of-00002.gguf"]])
@pytest.mark.parametrize("which", [0, -1])
def test_head_file_check_detects_missing_and_truncated_files(tmp_path: Path, names: list[str], which: int) -> None:
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_bytes(bytes(1000))
    head = SeparateFile(str(files[0]))
    head.check()
    os.truncate(files[which], 500)
    with pytest.raises(ModelLoadError, match=f"{files[which]}: 500 bytes, but 1,000 when it was loaded"):
        head.check()
    files[which].unlink()
    with pytest.raises(ModelLoadError, match=f"{files[which]}: no such file"):
        head.check()
    files[which].write_bytes(bytes(1000))
    head.check()


def test_restarted_worker_loads_the_projector_of_the_earlier_one(demo: Path, tmp_path: Path) -> None:
    projector = tmp_path / "mmproj.gguf"
    projector.write_bytes(bytes(1000))
    source = ModelSource(WorkerConfig(ServerSettings(), LLMOptions("hf:owner/name"), None))
    source.note_loaded(str(demo), None, str(projector))
    llm = source.next_config().llm
    assert (llm.model, llm.mmproj) == (str(demo), str(projector))
    source.note_failed()
    assert source.next_config().llm == llm
    projector.unlink()
    source.note_failed()
    assert source.next_config().llm == LLMOptions("hf:owner/name")
