"""Prefixes of a context's sequences in files, without an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from helpers.contexts import context
from helpers.moments import begin
from pymtp import Model
from pymtp.context.context import Context
from pymtp.context.state import Bytes
from pymtp.prefix_cache.file import PrefixFile, made_with
from pymtp.prefix_cache.file_writer import PrefixWriter

PIECE = 100  # tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder / "text.prefix"


@pytest.fixture
def c(dense: Model) -> Iterator[Context]:
    """A context whose sequence 0 holds a prompt."""
    with context(dense, n_seq_max=2) as c:
        begin(c, 0)
        yield c


def save_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> None:
    tokens = context.tokens(seq)
    state = context.save_state(seq)
    write(path, made_with(context), tokens, {len(tokens): state}, context.save_cells(seq, 0, len(tokens)))


def write(
    path: str | os.PathLike[str],
    depends_on: Mapping[str, str],
    tokens: Sequence[int],
    states: Mapping[int, Bytes],
    cells: Bytes,
) -> None:
    writer = PrefixWriter(path, depends_on)
    try:
        writer.begin(tokens, states, cells.shape[1])
        for first in range(0, len(tokens), PIECE):
            writer.write(cells[first : first + PIECE])
        writer.commit()
    finally:
        writer.discard()


def load_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> list[int]:
    """The last place of a file, in an empty sequence."""
    with PrefixFile(path, made_with(context)) as file:
        try:
            for first in range(0, len(file.tokens), PIECE):
                context.load_cells(seq, first, [file.cells(first, PIECE)])
            context.load_state(seq, file.tokens, file.state(len(file.tokens)))
        except BaseException:
            if not context.closed:
                context.clear(seq)
            raise
        return file.tokens
