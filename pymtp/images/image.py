"""An image of a prompt: its source, size and digest."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import InvalidRequestError
from pymtp.images.decoding import decode_file, decode_pillow, is_pillow, open_file
from pymtp.images.limits import ImageLimits
from pymtp.validation import read_path, shown

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

DEFAULT_LIMITS = ImageLimits()
DECODED_AT_ONCE = 2**18  # characters of base64 that are decoded in one call, which lets no other thread run
_DATA = "data:"
# the characters of base64, and those between its lines, that URLs may escape
_ESCAPES = {"%2B": "+", "%2F": "/", "%3D": "=", "%0D": "\r", "%0A": "\n", "%20": " "}
# what `Image.read` takes
ImageSource: TypeAlias = "Image | bytes | str | os.PathLike[str] | PillowImage | NDArray[np.uint8]"


@dataclass(frozen=True, repr=False)
class Image:
    """An image, whose pixels are decoded each time that they are asked for. Images with the same source are equal.

    digest: the SHA-256 of the file's bytes; for pixels, of their shape and values. 32 bytes.
    width, height: pixels, after the EXIF orientation.
    """

    digest: bytes
    width: int = field(compare=False)
    height: int = field(compare=False)
    _source: bytes | NDArray[np.uint8] = field(compare=False)

    @classmethod
    def read(cls, source: ImageSource, limits: ImageLimits = DEFAULT_LIMITS) -> Image:
        """Read an image: its size and digest, but not yet its pixels.

        source: the bytes of a PNG, JPEG, GIF, WebP or BMP file; the path of one; a data URL; an image of Pillow; or an
            array of RGB, RGBA or grey values from 0 to 255, of type uint8 and shape (height, width[, 3 or 4]).

        Raises InvalidRequestError for other sources, for a file that cannot be read, for a damaged header, and for an
        image beyond the limits.
        """
        if isinstance(source, cls):
            limits.check_size(source.width, source.height)
            if isinstance(source._source, bytes):
                limits.check_bytes(len(source._source))
            return source
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls._of_file(bytes(source), limits)
        if isinstance(source, np.ndarray):
            return cls._of_pixels(_rgb(source), limits)
        if is_pillow(source):
            limits.check_size(*source.size)  # type: ignore[union-attr]
            return cls._of_pixels(decode_pillow(source), limits)  # type: ignore[arg-type]
        if isinstance(source, str) and source[: len(_DATA)].lower() == _DATA:
            return cls.from_data_url(source, limits)
        if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
            raise InvalidRequestError(f"an image must be a path, bytes or a data URL, not {shown(source)}")
        if not isinstance(source, (str, os.PathLike)):
            raise InvalidRequestError(
                "an image must be a path, bytes, a data URL, an image of Pillow or an array of uint8, not "
                f"{type(source).__name__}: {shown(source)}"
            )
        path = read_path("an image", source)
        data = _file_bytes(path, limits)
        try:
            return cls._of_file(data, limits)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{path}: {error}") from error

    @classmethod
    def from_data_url(cls, url: str, limits: ImageLimits = DEFAULT_LIMITS) -> Image:
        """Read an image from a URL "data:image/png;base64,…". Its bytes tell its format, whatever the URL says.

        Raises the errors of `read`, and InvalidRequestError for another URL.
        """
        head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        if not comma or head[: len(_DATA)].lower() != _DATA or not head.lower().endswith(";base64"):
            raise InvalidRequestError(f'an image\'s URL must be "data:image/…;base64,…", not {_beginning(url)}')
        if "%" in data:
            limits.check_bytes(len(data) // 4)  # three characters for each of base64, which has six bits
            for code, character in _ESCAPES.items():
                data = data.replace(code, character).replace(code.lower(), character)
        return cls.from_base64(data, limits)

    @classmethod
    def from_base64(cls, text: str, limits: ImageLimits = DEFAULT_LIMITS) -> Image:
        """Read an image from the base64 form of its file's bytes, with or without white space and the "=" at its end.

        Raises the errors of `read`, and InvalidRequestError for text that is not base64.
        """
        text = text.rstrip("= \t\r\n")
        limits.check_bytes((len(text) - text.count("\n") - text.count("\r")) * 3 // 4)
        try:
            data = b"".join(_decoded(text))
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"an image is not base64: {error}: {_beginning(text)}") from error
        return cls._of_file(data, limits)

    @classmethod
    def _of_file(cls, data: bytes, limits: ImageLimits) -> Image:
        limits.check_bytes(len(data))
        opened, orientation = open_file(data)
        width, height = opened.size
        limits.check_size(width, height)
        if orientation >= 5:  # turned by 90 or 270 degrees
            width, height = height, width
        return cls(hashlib.sha256(data).digest(), width, height, data)

    @classmethod
    def _of_pixels(cls, pixels: NDArray[np.uint8], limits: ImageLimits) -> Image:
        height, width, _ = pixels.shape
        limits.check_size(width, height)
        digest = hashlib.sha256(f"pixels {height} {width}\n".encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return cls(digest.digest(), width, height, pixels)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the source takes."""
        return len(self._source) if isinstance(self._source, bytes) else self._source.nbytes

    def pixels(self) -> NDArray[np.uint8]:
        """Decode the image to RGB pixels, of shape (height, width, 3). The array cannot be written to.

        Transparent pixels get a white background. Of an animation, the first frame counts.

        Raises InvalidRequestError for a damaged file.
        """
        if not isinstance(self._source, bytes):
            return self._source
        pixels = decode_file(self._source)
        if pixels.shape != (self.height, self.width, 3):
            raise InvalidRequestError(
                f"an image has {self.width} x {self.height} pixels by its header, and {pixels.shape[1]} x "
                f"{pixels.shape[0]} in its data"
            )
        return pixels

    def __repr__(self) -> str:
        return f"Image({self.width} x {self.height}, {self.digest.hex()[:12]}…)"


def _decoded(text: str) -> Iterator[bytes]:
    """Yield the bytes of base64 without the "=" at its end, part by part, so that other threads run in between."""
    rest = ""
    for start in range(0, len(text), DECODED_AT_ONCE):
        part = rest + "".join(text[start : start + DECODED_AT_ONCE].split())
        n = len(part) // 4 * 4
        yield base64.b64decode(part[:n], validate=True)
        rest = part[n:]
    yield base64.b64decode(rest + "=" * (-len(rest) % 4), validate=True)


def _rgb(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of an array's pixels as RGB, with a white background.

    Raises InvalidRequestError for an array of another type or shape.
    """
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (1, 3, 4)):
        raise InvalidRequestError(
            "an image's array must be of type uint8 and shape (height, width), (height, width, 3) or (height, width, "
            f"4), not {values.dtype} and {values.shape}"
        )
    pixels = values if values.ndim == 3 else values[:, :, None]
    if pixels.shape[2] == 4:
        alpha = pixels[:, :, 3:].astype(np.uint16)
        pixels = (pixels[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    rgb = np.array(np.broadcast_to(pixels, (*values.shape[:2], 3)), np.uint8, order="C")
    rgb.setflags(write=False)
    return rgb


def _file_bytes(path: Path, limits: ImageLimits) -> bytes:
    """Read a file. Raises InvalidRequestError if it cannot be read, is too large, or is no regular file."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InvalidRequestError(f"cannot read the image {path}: it is not a file")
            limits.check_bytes(about.st_size)
            return file.read(limits.max_bytes + 1)
    except OSError as error:
        raise InvalidRequestError(f"cannot read the image {path}: {error.strerror or error}") from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe without a writer is opened, too, where the system can."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _beginning(text: object) -> str:
    """Return the beginning of a value's text for a message."""
    return shown(text[:40] if isinstance(text, str) else text)
