"""The projector of a model: it encodes images to the rows that the model takes in place of the embeddings of tokens."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import ClosedError, InvalidRequestError, ModelLoadError, NativeError
from pymtp.model.files import file_digest
from pymtp.model.model import Model
from pymtp.native import Handle, alone, check, ffi, lib
from pymtp.native.process import tell_of_forks
from pymtp.validation import read_int, read_path, shown

LEAST_TOKENS, MOST_TOKENS = 8, 4096  # llama.cpp's defaults for projectors of this kind
MAX_TOKENS = 2**16  # bound of min_tokens and max_tokens
POLL_SECONDS = 0.05  # `encode` looks at this interval whether the projector was closed


class Projector:
    """A projector that is loaded for a model. Threads may share it; one image is encoded at a time.

    path: the path of the projector's file.
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        *,
        n_threads: int,
        offload: bool = True,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Load a projector.

        path: a GGUF file, usually named mmproj-….gguf.
        n_threads: the number of threads that encode an image on the CPU.
        offload: run on the first GPU, if there is one.
        min_tokens, max_tokens: enlarge smaller images and reduce larger ones to these numbers of tokens; None for
            LEAST_TOKENS and MOST_TOKENS, or for the other one where that is beyond.

        Raises ModelLoadError for a file that is no projector, is damaged, or is of another model, and if there is too
        little memory; OSError for a file that cannot be read; InvalidRequestError for impossible numbers of tokens.
        """
        self.path = read_path("mmproj", path)
        least = LEAST_TOKENS if min_tokens is None else read_int("image_min_tokens", min_tokens, 1, MAX_TOKENS)
        most = MOST_TOKENS if max_tokens is None else read_int("image_max_tokens", max_tokens, 1, MAX_TOKENS)
        if least > most and None not in (min_tokens, max_tokens):
            raise InvalidRequestError(f"image_min_tokens={least} is more than image_max_tokens={most}")
        least, most = (most, most) if min_tokens is None and least > most else (least, max(least, most))
        with open(self.path, "rb"):
            pass  # the error of a missing file says more than llama.cpp's
        options = ffi.new(
            "struct pymtp_projector_options *",
            {"use_gpu": offload, "n_threads": n_threads, "min_tokens": least, "max_tokens": most},
        )
        name = os.fsencode(self.path)
        try:
            self._handle = Handle(
                "Projector",
                lambda: lib.pymtp_projector_load(name, model.handle, options),
                lib.pymtp_projector_free,
            )
        except NativeError as error:
            raise ModelLoadError(f"{self.path}: {error}") from error
        self.n_embd = model.n_embd
        self._rows = np.empty((0, self.n_embd), np.float32)  # where the current image's rows go
        self._after_fork_in_child()
        tell_of_forks(self)

    def _after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, because another thread may have held it at the fork."""
        self._encoding = threading.RLock()

    @cached_property
    def digest(self) -> str:
        """Return the digest of the projector's file, see `Model.digest`."""
        return file_digest(Path(self.path))

    @property
    @alone
    def nbytes(self) -> int:
        """Return the memory that the projector takes: weights, and after the first image compute buffers."""
        return int(lib.pymtp_projector_bytes(self._handle.pointer))

    @property
    @alone
    def n_layers(self) -> int:
        """Return how many layers were computed so far, for all images."""
        return int(lib.pymtp_projector_layers(self._handle.pointer))

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Return the numbers of columns and rows of tokens that an image of width x height pixels takes.

        Does not wait for an image that is being encoded. Raises InvalidRequestError for an image that is too narrow or
        too large, and ClosedError after close().
        """
        pointer = self._handle.pointer
        if pointer is None:
            self._handle.raise_refusal()
        nx, ny = ffi.new("int32_t *"), ffi.new("int32_t *")
        try:
            check(lib.pymtp_projector_grid(pointer, width, height, nx, ny))
        except OverflowError as error:
            raise InvalidRequestError(f"an image of {shown(width)} x {shown(height)} pixels is too large") from error
        return int(nx[0]), int(ny[0])

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Encode an image. Threads wait for each other.

        pixels: red, green and blue of each pixel, shape (height, width, 3).

        Returns a row for each token of the image's grid, shape (nx * ny, n_embd), row by row of the grid. Raises
        InvalidRequestError as `grid` and for other arrays, NativeError if the projector computes values that are not
        finite, and ClosedError.
        """
        with self._encoding:
            self.begin(pixels)
            try:
                while (rows := self.advance(POLL_SECONDS)) is None:
                    pass
            except BaseException:
                self.end()
                raise
            return rows

    @alone
    def begin(self, pixels: NDArray[np.uint8]) -> None:
        """Begin to encode an image, which only `advance` goes on with. pixels, errors: see `encode`."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise InvalidRequestError("an image is an array of type uint8 and shape (height, width, 3)")
        height, width, _ = pixels.shape
        nx, ny = self.grid(width, height)
        data = ffi.from_buffer("uint8_t[]", np.ascontiguousarray(pixels))
        rows = np.empty((nx * ny, self.n_embd), np.float32)
        check(lib.pymtp_projector_begin(self._handle.pointer, data, width, height))
        self._rows = rows

    @alone
    def advance(self, seconds: float) -> NDArray[np.float32] | None:
        """Compute for some seconds, and then to the end of a layer. Return the rows, or None if they are not complete.

        An image is prepared beside this call, so its first calls may have nothing to compute. Rows, errors: see
        `encode`. After an error and after the rows, another image may begin.
        """
        out = ffi.from_buffer("float[]", self._rows, require_writable=True)
        status = lib.pymtp_projector_advance(self._handle.pointer, seconds, out)
        check(lib.PYMTP_OK if status == lib.PYMTP_RUNNING else status)
        return None if status == lib.PYMTP_RUNNING else self._rows

    def end(self) -> None:
        """Give up the image that is being encoded, if there is one. Waits for its preparation, if it has just begun."""
        with suppress(ClosedError):
            self._end()

    @alone
    def _end(self) -> None:
        lib.pymtp_projector_end(self._handle.pointer)

    def close(self) -> None:
        """Free the projector, or let the running call do it at its end. All later calls raise ClosedError.

        A signal handler may call it while its own thread encodes an image.
        """
        handle = self._handle
        handle.closed = True
        if handle.lock.acquire(blocking=False):
            try:
                if not handle.caller:
                    handle.pointer = None
            finally:
                handle.lock.release()
