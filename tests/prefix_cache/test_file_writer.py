"""Tests of the prefix writer: interrupted writes, crashes, links and errors."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.prefix_files import save_prefix
from helpers.scripts import run_code
from safetensors.numpy import load_file

from pymtp import InvalidRequestError
from pymtp.context.context import Context
from pymtp.prefix_cache.file import PrefixFile, made_with
from pymtp.prefix_cache.file_writer import PrefixWriter


def test_failed_write_leaves_only_the_old_file(c: Context, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_prefix(c, path)
    old = path.read_bytes()
    c.verify([1, 2])
    for function in ("os.fsync", "os.replace", "pymtp.prefix_cache.file_writer.PrefixWriter._append", "zlib.crc32"):
        with monkeypatch.context() as patched:

            def fails(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(function, fails)
            with pytest.raises(KeyboardInterrupt):
                save_prefix(c, path)
        assert path.read_bytes() == old
        assert os.listdir(path.parent) == [path.name]
    save_prefix(c, path)
    assert path.read_bytes() != old
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(FileNotFoundError):
        save_prefix(c, path.parent / "missing" / "file")
    with pytest.raises(IsADirectoryError):
        save_prefix(c, path.parent)


def test_interrupted_write_can_be_repeated(c: Context, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    tokens, cells = c.tokens(), c.state.save_cells(0, 0, len(c.tokens()))
    states = {len(tokens): c.state.save()}
    pick = random.Random(3)
    interrupted = []

    class InterruptedFile(FileIO):
        """A file whose writes are partial, and sometimes raise KeyboardInterrupt."""

        def write(self, data: Any) -> int:
            if pick.random() < 0.3:
                super().write(data[: pick.randint(0, len(data))])
                interrupted.append(self.tell())
                raise KeyboardInterrupt
            return super().write(data[: pick.randint(1, len(data))])

    def repeat(call: Callable[[], None]) -> None:
        while True:
            try:
                return call()
            except KeyboardInterrupt:
                continue

    monkeypatch.setattr(
        "pymtp.prefix_cache.file_writer.open",
        lambda file, mode, buffering: InterruptedFile(file, mode[0]),
        raising=False,
    )
    writer = PrefixWriter(path, made_with(c))
    repeat(lambda: writer.begin(tokens, states, c.state.cell_bytes))
    for first in range(0, len(tokens), 9):
        assert writer.n_cells == first
        repeat(partial(writer.write_cells, cells[first : first + 9]))
    monkeypatch.setattr(InterruptedFile, "write", FileIO.write)
    writer.commit()
    assert len(interrupted) > 3
    assert path.read_bytes() == whole


def test_rewritten_file_keeps_its_permissions(c: Context, path: Path) -> None:
    save_prefix(c, path)
    for mode in (0o600, 0o640, 0o664):
        path.chmod(mode)
        save_prefix(c, path)
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("name", ["\N{HIRAGANA LETTER A}" * 85, "\N{GRINNING FACE}" * 63, "x" * 255])
def test_prefix_file_can_have_any_name(c: Context, tmp_path: Path, name: str) -> None:
    save_prefix(c, tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_killed_process_leaves_the_old_file_or_the_complete_new_one(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    old = path.read_bytes()
    rows, state = c.state.save_cells(0, 0, len(c.tokens())), c.state.save()
    np.savez(tmp_path / "held.npz", cells=rows[:-1], state=state)
    program = """if True:
        import os, signal, sys
        import numpy as np
        from pymtp.prefix_cache.file_writer import PrefixWriter
        step, held = int(sys.argv[2]), np.load(sys.argv[3])
        names = ("write", "fsync", "replace", "close")
        class Os:
            def __getattr__(self, name):
                real = getattr(os, name)
                def call(*arguments):
                    global step
                    step -= 1
                    if not step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments)
                return call if name in names else real
        import pymtp.prefix_cache.file_writer
        pymtp.prefix_cache.file_writer.os = Os()
        append = PrefixWriter._append
        def killing_append(self, *arguments):
            global step
            step -= 1
            if not step:
                os.kill(os.getpid(), signal.SIGKILL)
            append(self, *arguments)
        PrefixWriter._append = killing_append
        writer = PrefixWriter(sys.argv[1], {})
        n = len(held["cells"])
        writer.begin(range(n), {n: held["state"]}, held["cells"].shape[1])
        writer.write_cells(held["cells"])
        writer.commit()
        print("done")
    """
    found = []
    for step in range(1, 20):
        code, printed = run_code(program, [str(path), str(step), str(tmp_path / "held.npz")])
        assert code in (0, -9), printed
        found.append(path.read_bytes())
        if "done" in printed:
            break
    new = found[-1]
    assert new != old
    n_old = found.index(new)
    assert n_old > 3
    assert found == [old] * n_old + [new] * (len(found) - n_old)
    with PrefixFile(path, {}) as file:
        assert len(file.tokens) == len(rows) - 1


def test_prefix_file_ends_with_the_checksum_of_all_bytes_before_it(c: Context, path: Path) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    assert zlib.crc32(whole[:-4]).to_bytes(4, "little") == whole[-4:]
    found = load_file(path)
    assert found["tokens"].tolist() == c.tokens()
    np.testing.assert_array_equal(found["cells"], c.state.save_cells(0, 0, len(c.tokens())))
    np.testing.assert_array_equal(found[f"state.{len(c.tokens())}"], c.state.save())


def test_pipes_and_devices_are_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # os.replace would remove a pipe, as it would remove a device
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(OSError, match="not a regular file"):
            PrefixWriter(path, {})
    assert pipe.is_fifo()


def test_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other" / "file")
    for _ in range(2):
        writer = PrefixWriter(tmp_path / "link", {})
        writer.begin([1], {1: np.zeros(4, dtype=np.uint8)}, 2)
        writer.write_cells(np.zeros((1, 2), dtype=np.uint8))
        writer.commit()
        assert (tmp_path / "link").is_symlink()
        assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]


def test_write_error_names_the_requested_path_and_not_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as error:
        PrefixWriter(path, {})
    assert error.value.filename == str(path)
    with pytest.raises(InvalidRequestError, match="must be a path"):
        PrefixWriter("a\0b", {})
