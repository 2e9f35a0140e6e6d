"""Saves and loads prefix files of a context's sequences, without an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from helpers.contexts import context
from helpers.moments import prefill_and_sample
from pymtp import Model
from pymtp.context.context import Context
from pymtp.context.state import Bytes
from pymtp.prefix_cache.file import PrefixFile, made_with
from pymtp.prefix_cache.file_writer import PrefixWriter

CHUNK_TOKENS = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder / "text.prefix"


@pytest.fixture
def c(dense: Model) -> Iterator[Context]:
    """Yield a context whose sequence 0 holds a prompt."""
    with context(dense, n_seq_max=2) as c:
        prefill_and_sample(c, 0)
        yield c


def save_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> None:
    tokens = context.tokens(seq)
    state = context.state.save(seq)
    cells = context.state.save_cells(seq, 0, len(tokens))
    write_prefix(path, made_with(context), tokens, {len(tokens): state}, cells)


def write_prefix(
    path: str | os.PathLike[str],
    settings: Mapping[str, str],
    tokens: Sequence[int],
    states: Mapping[int, Bytes],
    cells: Bytes,
) -> None:
    writer = PrefixWriter(path, settings)
    try:
        writer.begin(tokens, states, cells.shape[1])
        for first in range(0, len(tokens), CHUNK_TOKENS):
            writer.write_cells(cells[first : first + CHUNK_TOKENS])
        writer.commit()
    finally:
        writer.discard()


def load_prefix(context: Context, path: str | os.PathLike[str], seq: int = 0) -> list[int]:
    """Load all tokens of a file into an empty sequence, and return them."""
    with PrefixFile(path, made_with(context)) as file:
        try:
            for first in range(0, len(file.tokens), CHUNK_TOKENS):
                context.state.load_cells(seq, first, [file.cells(first, CHUNK_TOKENS)])
            context.state.load(seq, file.tokens, file.state(len(file.tokens)))
        except BaseException:
            if not context.closed:
                context.clear(seq)
            raise
        return file.tokens
