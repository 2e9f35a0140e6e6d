"""Claims about where a prefix is written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pymtp.prefix_writer import PrefixWriter


def test_what_is_no_regular_file_is_left_where_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # as a device would be: os.replace puts out of the way whatever there is
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(OSError, match="no regular file"):
            PrefixWriter(path, {})
    assert pipe.is_fifo()


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other" / "file")
    for _ in range(2):
        writer = PrefixWriter(tmp_path / "link", {})
        writer.begin([1], {1: np.zeros(4, dtype=np.uint8)}, 2)
        writer.write(np.zeros((1, 2), dtype=np.uint8))
        writer.commit()
        assert (tmp_path / "link").is_symlink()
        assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]


def test_where_no_file_can_be_written_the_error_names_the_one_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as error:
        PrefixWriter(path, {})
    assert error.value.filename == str(path)
    with pytest.raises(ValueError, match="null byte"):
        PrefixWriter("a\0b", {})
