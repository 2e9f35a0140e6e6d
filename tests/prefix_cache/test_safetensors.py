"""Tests of the safetensors reader: it reads tensors as the safetensors library does, and refuses damaged files."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pymtp.prefix_cache.safetensors import DTYPES, MAX_HEADER_BYTES, DamagedFileError, TensorFile

TENSORS = {
    "cells": np.random.default_rng(0).integers(0, 256, (300, 1111), dtype=np.uint8),
    "empty": np.zeros(0, dtype=np.uint8),
    "none": np.zeros((0, 7), dtype=np.int32),
    "tokens": np.arange(-5, 40, dtype=np.int32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    save_file(TENSORS, path, {"one": "1", "two": "\N{SNOWMAN}"})
    return path


def test_tensors_equal_those_that_the_safetensors_library_wrote(path: Path) -> None:
    file = TensorFile(path)
    assert file.size == path.stat().st_size
    assert file.metadata == {"one": "1", "two": "\N{SNOWMAN}"}
    assert file.tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        found = file.read(name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        n = len(expected)
        for first, last in ((0, n), (n // 3, n), (n // 2, n // 2), (n // 4, n // 2)):
            np.testing.assert_array_equal(file.read(name, first, last - first), expected[first:last])
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read("tokens")


def header_of(whole: bytes) -> tuple[dict[str, Any], bytes]:
    n = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + n]), whole[8 + n :]


def check_refused(path: Path, message: str) -> None:
    descriptors = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with pytest.raises(DamagedFileError, match=message):
        TensorFile(path)
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], str]:
    def text(header: dict[str, Any]) -> str:
        change(header)
        return json.dumps(header)

    return text


def put(name: str, key: str, value: object) -> Callable[[dict[str, Any]], str]:
    return changed(lambda header: header[name].update({key: value}))


N = 300 * 1111
DAMAGED_HEADERS = [
    (lambda _: "[]", "not a JSON object"),
    (lambda _: "{ ", "not JSON"),
    (lambda _: "[" * 100_000, "not JSON"),
    (lambda _: '{"a": ' * 100_000, "not JSON"),
    (lambda header: json.dumps(header)[:-1] + ', "tokens": {}}', "occurs twice"),
    (lambda header: json.dumps(header).replace('"one"', '"two"'), "occurs twice"),
    (lambda header: json.dumps(header).replace("1111", "1" * 5000), "not JSON|does not fit its shape"),
    (changed(lambda header: header.update(__metadata__=None)), "metadata"),
    (changed(lambda header: header.update(__metadata__=[])), "metadata"),
    (changed(lambda header: header["__metadata__"].update(one=1)), "metadata"),
    (changed(lambda header: header["__metadata__"].update(one=float("nan"))), "metadata"),
    (changed(lambda header: header.update(x=None)), "'x' is not a tensor"),
    (changed(lambda header: header.update(x={})), "'x' is not a tensor"),
    (changed(lambda header: header["tokens"].update(x=1)), "not a tensor"),
    (changed(lambda header: header["tokens"].pop("shape")), "not a tensor"),
    (changed(lambda header: header.pop("tokens")), "overlap or leave gaps|end at byte"),
    (changed(lambda header: header.update(x=header["tokens"])), "overlap or leave gaps"),
    (changed(lambda header: header["cells"].update(header["tokens"])), "overlap or leave gaps"),
    (put("tokens", "dtype", None), "not a tensor"),
    (put("tokens", "dtype", "U8"), "does not fit its shape"),
    *((put("tokens", "shape", shape), "shape") for shape in (None, 45, [44], [46], [-45], [45.0], [[45]], [True], [])),
    (put("tokens", "shape", [45, 2**64]), "does not fit its shape"),
    (put("tokens", "shape", [1] * 9), "invalid shape"),
    (put("cells", "shape", [-300, -1111]), "invalid shape"),
    (put("none", "dtype", "X"), None),
    *(
        (put("cells", "data_offsets", at), "invalid shape")
        for at in (None, [], [0], [0, N, N], [False, N], [0.0, N], [-1, N])
    ),
    *((put("cells", "data_offsets", at), "does not fit its shape") for at in ([N, 0], [1, N], [0, 2**63], [0, 10**30])),
    (put("cells", "data_offsets", [180 + 8, N + 188]), "overlap or leave gaps"),
    (put("cells", "data_offsets", [2**63, 2**63 + N]), "overlap or leave gaps"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED_HEADERS, ids=range(len(DAMAGED_HEADERS)))
def test_damaged_header_is_refused(path: Path, text: Callable[[dict[str, Any]], str], message: str | None) -> None:
    header, content = header_of(path.read_bytes())
    data = text(header).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + content)
    if message is None:  # an unknown type is not damage: only reading a tensor of that type fails
        TensorFile(path).close()
    else:
        check_refused(path, message)


def test_header_with_a_wrong_length_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    n = int.from_bytes(whole[:8], "little")
    for length in (0, 1, n - 1, n + 1, len(whole) - 8, len(whole) - 7, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1):
        path.write_bytes(length.to_bytes(8, "little") + whole[8:])
        check_refused(path, "header|end at byte")
    path.write_bytes((2 * MAX_HEADER_BYTES).to_bytes(8, "little") + bytes(3 * MAX_HEADER_BYTES))
    check_refused(path, "length of its header is invalid")


def test_header_that_the_safetensors_library_refuses_is_refused(path: Path) -> None:
    """Change a byte of the header. The library accepts some headers that pymtp refuses, such as duplicate names."""
    save_file(TENSORS | {"cells": TENSORS["cells"][:3]}, path, {"one": "1"})
    whole = bytearray(path.read_bytes())
    n = 8 + int.from_bytes(whole[:8], "little")
    pick, n_accepted = random.Random(0), 0
    for _ in range(2000):
        at = pick.randrange(n)
        original, whole[at] = whole[at], pick.choice(b'0123456789,:[]{}"-. \\a\0\xff')
        path.write_bytes(whole)
        whole[at] = original
        try:
            file = TensorFile(path)
        except DamagedFileError:
            continue
        if all(tensor.dtype in DTYPES for tensor in file.tensors.values()):
            n_accepted += 1
            for name, tensor in load_file(path).items():
                np.testing.assert_array_equal(file.read(name), tensor)
        file.close()
    assert n_accepted > 20


def test_file_that_is_changed_while_open_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for change, message in (
        (lambda: os.truncate(path, 3000), "ends before its tensors do"),
        (lambda: path.write_bytes(whole[:-1] + b"x"), "changed while it was read"),
        (lambda: path.write_bytes(whole + b"x"), "changed while it was read"),
    ):
        path.write_bytes(whole)
        os.utime(path, (0, 0))
        file = TensorFile(path)
        file.read("tokens")
        change()
        with pytest.raises(DamagedFileError, match=message):
            file.read("cells")
        file.close()


def test_file_that_is_replaced_or_removed_while_open_is_read_to_its_end(path: Path, tmp_path: Path) -> None:
    file = TensorFile(path)
    (tmp_path / "other").write_bytes(b"x")
    os.replace(tmp_path / "other", path)
    path.unlink()
    np.testing.assert_array_equal(file.read("cells"), TENSORS["cells"])
    file.close()


def test_pipe_and_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        check_refused(path, "not a regular file")
    with pytest.raises(IsADirectoryError):
        TensorFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        TensorFile(tmp_path / "missing")
