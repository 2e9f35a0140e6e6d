"""Prefix files: the tokens of a prompt with their K, V and states, from which any process can continue.

A file is in the safetensors format. Its tensors: "tokens"; "cells" (K and V, a row per token); a "state.N" for each
checkpoint, the state after N tokens, the last one after all of them; and at the end of the file "sum", the CRC-32 of
all bytes before it. The metadata name the format, its version, the images of the prompt (see file_images.py), and the
settings that the prefix was made with. A CRC-32 detects any damage within four neighboring bytes; it misses other
damage in one of four billion cases.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from pymtp.context.context import Context
from pymtp.context.state import Bytes
from pymtp.errors import InvalidRequestError
from pymtp.native.build_info import build_info
from pymtp.prefix_cache.file_images import FileImage, prompt_tokens, read_images
from pymtp.prefix_cache.safetensors import DamagedFileError, TensorFile
from pymtp.validation import read_path

FORMAT = "pymtp prefix"
VERSION = 1
CHECKSUM_BYTES = 4
CHUNK_BYTES = 16 << 20  # bytes to read or write at a time
TENSORS = {"tokens": ("I32", 1), "cells": ("U8", 2), "sum": ("U8", 1)}  # the type, and the number of dimensions
STATE_NAME = re.compile(r"state\.([1-9][0-9]{0,9})", re.ASCII)
IMAGES, PROJECTOR = "images", "projector"  # keys of the metadata, only of files with images
NOT_COMPARED = ("n_ubatch",)  # settings that may differ: the bits of a prefix do not depend on where it is cut
MAX_SHOWN = 200  # characters of a file's metadata in an error message


def made_with(context: Context) -> dict[str, str]:
    """Return the settings that the bits of a prefix depend on, by the names that error messages use, and n_ubatch."""
    info, rope = build_info(), context.options.rope
    return {
        "model": context.model.digest,
        **({"head's file": context.model.head_digest} if context.model.head_digest else {}),
        "pymtp": info["pymtp"],
        "llama.cpp": " ".join([info["llama_cpp_commit"], *info["patches"]]),
        "tap": context.tap,
        **context.state.cell_options,
        # named only if there are any, so that older files, which never name them, match a context without them
        **({"adapters": context.model.lora_digest} if context.model.lora_digest else {}),
        **({"rope scaling": ", ".join(f"{name}={value}" for name, value in rope.items())} if rope else {}),
    }


def check_header(path: str | os.PathLike[str]) -> None:
    """Check that a file begins like a prefix file, before a model is loaded for it.

    Raises the errors of `PrefixFile`.
    """
    _open(read_path("a prefix", path)).close()


class PrefixFile:
    """An open prefix file that was checked completely: it is intact, and fits the context. Arrays are read on demand.

    tokens: the token ids of the saved prompt. Those of its images count within the file, until `number_images`.
    images: the images of the prompt, in the order of their tokens in the file.
    checkpoints: the positions of the states in the prompt, in rising order.
    made_with: the settings that the file was made with.
    nbytes: the size of the K, V and states.
    """

    def __init__(self, path: str | os.PathLike[str], expected: Mapping[str, str] | None) -> None:
        """Open and check a file.

        expected: the settings of the context that will load it; None accepts a file with any settings.

        Raises InvalidRequestError for a file that is damaged or does not fit, with the reason, and OSError for one that
        cannot be read. All other methods raise these errors, too, if another process changes the file.
        """
        self.path = read_path("a prefix", path)
        self._file = _open(self.path)
        try:
            self._check(expected)
        except BaseException:
            self.close()
            raise

    def _check(self, expected: Mapping[str, str] | None) -> None:
        metadata = dict(self._file.metadata)
        del metadata["format"]
        version = metadata.pop("version", "")
        if version != str(VERSION):
            raise self.error(f"has format version {_shown(version)}, but this pymtp reads version {VERSION}")
        tensors = self._file.tensors
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        states = [name for name in kinds if STATE_NAME.fullmatch(name)]
        if not states or kinds != TENSORS | dict.fromkeys(states, ("U8", 1)):
            raise self.error("is damaged: its tensors are not those of a prefix file")
        if self._checksum(self._file.size - CHECKSUM_BYTES) != self._read("sum").tobytes():
            raise self.error("is damaged: its checksum is wrong")
        named_images = metadata.pop(IMAGES, "")
        self.made_with = metadata
        expected = dict(metadata if expected is None else expected)
        if not named_images:  # text can be loaded with any projector
            expected.pop(PROJECTOR, None)
        for name in dict.fromkeys([*expected, *sorted(metadata)]):
            if name in NOT_COMPARED:
                continue
            theirs, ours = metadata.get(name), expected.get(name)
            if theirs != ours:
                raise self.error(_difference(name, _shown(theirs), _shown(ours)))
        self.tokens: list[int] = self._read("tokens").tolist()
        n_cells, self.cell_bytes = tensors["cells"].shape
        if n_cells != len(self.tokens):
            raise self.error(f"has {len(self.tokens)} tokens, but the K and V of {n_cells} tokens")
        try:
            self.images: list[FileImage] = read_images(named_images or "[]", self.tokens)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.error("is damaged: its images do not fit its tokens") from error
        self._state_bytes: dict[int, int] = {int(name.split(".")[1]): tensors[name].shape[0] for name in states}
        self.checkpoints = sorted(self._state_bytes)
        if self.checkpoints[-1] != n_cells:
            raise self.error(f"has {n_cells} tokens, but its last state is after {self.checkpoints[-1]} tokens")
        self.nbytes: int = n_cells * self.cell_bytes + sum(self._state_bytes.values())

    def error(self, message: str) -> InvalidRequestError:
        """Return an InvalidRequestError with this message after the path of the file."""
        return _error(self.path, message)

    def number_images(self, numbers: Sequence[int]) -> None:
        """Give the images the tokens that they have in this process, in the order of `images`."""
        self.tokens = prompt_tokens(self.tokens, numbers)

    def _read(self, name: str, first: int = 0, n: int | None = None) -> NDArray[Any]:
        try:
            return self._file.read(name, first, n)
        except DamagedFileError as error:
            raise _damaged(self.path, error) from error

    def _checksum(self, size: int) -> bytes:
        """Compute the checksum of the first `size` bytes of the file."""
        checksum, buffer = 0, memoryview(bytearray(min(CHUNK_BYTES, size)))
        for start in range(0, size, CHUNK_BYTES):
            chunk = buffer[: size - start]
            try:
                self._file.read_into(chunk, start)
            except DamagedFileError as error:
                raise _damaged(self.path, error) from error
            checksum = zlib.crc32(chunk, checksum)
        return checksum.to_bytes(CHECKSUM_BYTES, "little")

    def state_bytes(self, position: int) -> int:
        """Return the size, in bytes, of the state at one of the checkpoints."""
        return self._state_bytes[position]

    def state(self, position: int) -> Bytes:
        """Read the state at a checkpoint; `Context.state.load` takes it with the tokens before the checkpoint."""
        return self._read(f"state.{position}")

    def cells(self, first: int, n: int) -> Bytes:
        """Read the K and V of up to n tokens from position `first` on, for `Context.state.load_cells`."""
        return self._read("cells", first, min(n, len(self.tokens) - first))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> PrefixFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _open(path: Path) -> TensorFile:
    try:
        file = TensorFile(path)
    except DamagedFileError as error:
        raise _damaged(path, error) from error
    if file.metadata.get("format") != FORMAT:
        file.close()
        raise _error(path, "is not a prefix file")
    return file


def _error(path: Path, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {message}")


def _damaged(path: Path, error: DamagedFileError) -> InvalidRequestError:
    return _error(path, f"is not a prefix file, or it is cut short or damaged ({error})")


def _difference(name: str, theirs: str, ours: str) -> str:
    if name == "head":  # the value is "with drafts" or "without drafts"
        takes = "draft_tokens=0" if ours == "with drafts" else "a head, and draft_tokens other than 0"
        return f"was made {theirs}, but would be loaded {ours}: loading it takes {takes}"
    if name == PROJECTOR and ours == _shown(None):
        return "has images, which need the projector that they were encoded with: give mmproj=…"
    if name == "adapters":  # the values are hashes, which tell a user nothing
        return "was made with other adapters, or with other scales of the adapters"
    return f"was made with another {_shown(name)}: {theirs} in the file, {ours} here"


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    # escape sequences could control the user's terminal
    text = "".join(c if c.isprintable() else "\ufffd" for c in value[:MAX_SHOWN])
    return text if len(value) <= MAX_SHOWN else f"{text}…"
