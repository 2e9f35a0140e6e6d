"""Tests of SeparateFile, which detects changes of the files of a separate head or a projector."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pymtp.errors import ModelLoadError
from pymtp.server.process.model_source import SeparateFile


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
