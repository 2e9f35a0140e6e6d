"""Decoding of image files by Pillow, which is imported when the first image is read.

The plugins of five formats are used directly. `PIL.Image.open` would load all of Pillow's plugins, and its check of
sizes would warn about images that are refused anyway.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import InvalidRequestError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

FORMATS = "PNG, JPEG, GIF, WebP and BMP"
# A progressive JPEG repeats the whole image in each scan. Encoders write about 10 scans; a file of 20 MB could have a
# million of them, and decoding would take hours.
MAX_SCANS = 100
_SCAN = b"\xff\xda"  # the marker of a scan; compressed data have a zero after each 0xff
_ORIENTATION = 0x0112  # the EXIF tag


def open_file(data: bytes) -> tuple[PillowImage, int]:
    """Open an image file by its first bytes. Return it, before its pixels are decoded, and its EXIF orientation.

    Raises InvalidRequestError for other formats and for damaged files.
    """
    if not data:
        raise InvalidRequestError("an image has no bytes")
    kind = _format(data)
    if kind is None:
        raise InvalidRequestError(f"an image is none of {FORMATS}: it begins with {data[:8]!r}")
    if kind == "JPEG" and (scans := data.count(_SCAN)) > MAX_SCANS:
        raise InvalidRequestError(f"a JPEG image has {scans} scans; at most {MAX_SCANS} are allowed")
    with _decoding_errors(kind):
        opened = _openers()[kind](io.BytesIO(data))
        return opened, _orientation(opened)


def decode_file(data: bytes) -> NDArray[np.uint8]:
    """Decode an image file to RGB pixels: see `rgb_pixels`. Raises InvalidRequestError for a damaged file."""
    opened, orientation = open_file(data)
    with _decoding_errors(opened.format or "image"):
        return rgb_pixels(opened, orientation)


def decode_pillow(image: PillowImage) -> NDArray[np.uint8]:
    """Return the RGB pixels of an image of Pillow. Raises InvalidRequestError if its file is damaged."""
    _silence_warnings()
    with _decoding_errors("Pillow"):
        image.load()
        return rgb_pixels(image, _orientation(image))


def is_pillow(value: object) -> bool:
    """Return whether a value is an image of Pillow, without importing Pillow."""
    # another thread may be importing it: then it has no such class yet, and the value is none of it
    pillow = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return pillow is not None and isinstance(value, pillow)


def rgb_pixels(image: PillowImage, orientation: int) -> NDArray[np.uint8]:
    """Return the pixels of an image as it is looked at. Shape (height, width, 3).

    The image is turned by its EXIF orientation, transparent pixels get a white background, and of 16 bits the upper 8
    are used.
    """
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(_upper_bits(np.asarray(image)))
    if image.has_transparency_data:
        if image.mode != "RGBA":  # else convert would copy it, here and below
            image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)
    return np.asarray(image if turn is None else image.transpose(turn))


def _upper_bits(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the upper 8 bits of grey values of 16 bits. Floats count as values from 0 to 255."""
    is_float = values.dtype.kind == "f"
    grey = np.nan_to_num(values).clip(0, 255) if is_float else values.astype(np.int64).clip(0, 2**16 - 1) >> 8
    return np.asarray(grey, np.uint8)


def _orientation(image: PillowImage) -> int:
    """Return the EXIF orientation, from 1 to 8. 1, which turns nothing, if there is none or the data are damaged."""
    from PIL import Image

    data = image.info.get("exif")
    if not isinstance(data, bytes):
        return 1
    exif = Image.Exif()
    try:
        exif.load(data)
        value = exif.get(_ORIENTATION)
    except Exception:  # damaged data raise exceptions of many kinds
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _format(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WebP"
    return "BMP" if data.startswith(b"BM") else None


@lru_cache(1)
def _openers() -> dict[str, Callable[[io.BytesIO], PillowImage]]:
    """Import Pillow's plugins, and return for each format the function that opens its files."""
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    _silence_warnings()
    return {"PNG": PngImageFile, "JPEG": JpegImageFile, "GIF": GifImageFile, "WebP": WebPImageFile, "BMP": BmpImageFile}


@lru_cache(1)
def _silence_warnings() -> None:
    """Turn off Pillow's warnings of damaged EXIF data, which do no harm, and of GIF images that are refused anyway.

    Files of clients would fill the standard error of a server with them.
    """
    from PIL.Image import DecompressionBombWarning

    for category in (UserWarning, DecompressionBombWarning):
        warnings.filterwarnings("ignore", category=category, module=r"PIL\.")


@contextmanager
def _decoding_errors(kind: str) -> Iterator[None]:
    """Raise InvalidRequestError for whatever Pillow raises: damaged files raise exceptions of many kinds."""
    try:
        yield
    except InvalidRequestError:
        raise
    except Exception as error:
        raise InvalidRequestError(
            f"a {kind} image cannot be decoded: {f'{error}'[:200] or type(error).__name__}"
        ) from error
