"""Odd and damaged images, for tools/checks/fuzz_images.py: files of five formats, of others, and arrays.

An image has an odd size or mode, odd metadata, several frames, a size that its header does not tell, or wrong bytes.
The same seed makes the same image.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from makers.gguf_damage import damage_bytes

FORMATS = ("PNG", "JPEG", "GIF", "WebP", "BMP")
_MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "RGB", "CMYK"),
    "GIF": ("1", "L", "P", "RGB", "RGBA"),
    "WebP": ("L", "RGB", "RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
}
_SIDES = (1, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 127, 200)
_LONG = (1000, 5000, 16_383)
_STATED = (0, 1, 2, 255, 256, 4096, 8192, 32_767, 65_535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1)
_OTHER_FORMATS = ("TIFF", "ICO", "PPM", "TGA", "PCX", "SGI")
_TEXTS = (
    b"",
    b"\x89",
    b"BM",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBP",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    b"%PDF-1.7\n",
    b"\0\0\0\x1cftypavif\0\0\0\0avifmif1",
    b"GGUF\x03\0\0\0",
    b"<html></html>",
)


def odd_file(rng: Random) -> tuple[bytes, list[str]]:
    """Return the bytes of an odd image, and what is odd about it."""
    if rng.random() < 0.04:
        return _other_file(rng)
    kind = rng.choice(FORMATS)
    data, done = _image_file(rng, kind)
    for change in rng.choice(((), (_lie,), (_lie,), (_damage,), (_damage,), (_cut,), (_join,), (_lie, _damage))):
        data, what = change(rng, kind, data)
        done.append(what)
    return data, done


def odd_array(rng: Random) -> tuple[NDArray[Any], list[str]]:
    """Return an array of pixels of any shape and type, most of them valid."""
    shape: tuple[int, ...] = (rng.choice(_SIDES), rng.choice(_SIDES), rng.choice((3, 3, 3, 4, 1, 2, 0, 5)))
    if rng.random() < 0.3:
        shape = rng.choice((shape[:2], shape[:1], (), (0, *shape[1:]), (shape[0], 0, 3), (1, *shape)))
    dtype = rng.choice(("u1", "u1", "u1", "u1", "i1", "u2", "i8", "f4", "f8", "?", "c8", "O", "U1"))
    array: NDArray[Any] = np.resize(np.arange(251), shape).astype(dtype)
    if rng.random() < 0.2 and array.ndim:
        array = array[::-1]  # of negative strides
    return array, [f"array {array.shape} of {dtype}"]


def _pixels(rng: Random, width: int, height: int) -> Image.Image:
    noise = np.frombuffer(rng.randbytes(min(3 * width * height, 50_000)), np.uint8)
    return Image.fromarray(np.resize(noise, (height, width, 3)))


def _image_file(rng: Random, kind: str) -> tuple[bytes, list[str]]:
    width, height = rng.choice(_SIDES), rng.choice(_SIDES)
    if rng.random() < 0.05:
        width, height = rng.choice(((rng.choice(_LONG), width), (width, rng.choice(_LONG))))
    mode = rng.choice(_MODES[kind])
    image = _pixels(rng, width, height)
    image = image.convert("L").convert("I").convert(mode) if mode.startswith("I") else image.convert(mode)
    options = _options(rng, kind, image)
    if rng.random() < 0.2:
        options["exif"] = _exif(rng)
    if rng.random() < 0.1:
        options["icc_profile"] = rng.choice(
            (b"", b"acsp" * 30, rng.randbytes(500), bytes(2**20 if kind == "PNG" else 2**10))
        )
    out = io.BytesIO()
    try:
        image.save(out, kind, **options)
    except OSError:  # metadata that are too long for a tiny JPEG
        options, out = {}, io.BytesIO()
        image.save(out, kind)
    return out.getvalue(), [f"{kind} {mode} {width} x {height} {', '.join(sorted(options))}"]


def _options(rng: Random, kind: str, image: Image.Image) -> dict[str, Any]:
    """Return options of Pillow's writers, for features that readers have code for."""
    options: dict[str, Any] = {}
    if kind in ("PNG", "GIF", "WebP") and rng.random() < 0.2:
        sizes = [image.size] * rng.randint(1, 3)
        frames = [_pixels(rng, *size).convert(image.mode if image.mode != "I;16" else "L") for size in sizes]
        options |= {"save_all": True, "append_images": frames, "duration": rng.choice((0, 100))}
    if kind == "PNG":
        options["compress_level"] = rng.choice((0, 1, 9))
        if image.mode in ("P", "L", "1") and rng.random() < 0.5:
            options["transparency"] = rng.randrange(2)
        if rng.random() < 0.1:
            info = PngImagePlugin.PngInfo()
            info.add_text("Comment", "x" * rng.choice((1, 1000, 10**7)), zip=rng.random() < 0.8)
            options["pnginfo"] = info
    elif kind == "JPEG":
        options["quality"] = rng.choice((1, 50, 95, 100))
        options["progressive"] = rng.random() < 0.4
        options["subsampling"] = rng.choice((0, 1, 2))
        if rng.random() < 0.2:
            options["comment"] = rng.randbytes(rng.choice((1, 1000)))
        if rng.random() < 0.2:
            options["restart_marker_blocks"] = rng.choice((1, 7))
    elif kind == "GIF":
        options["interlace"] = rng.randrange(2)
        if rng.random() < 0.3:
            options["transparency"] = rng.randrange(256)
    elif kind == "WebP":
        options["lossless"] = rng.random() < 0.5
        options["quality"] = rng.choice((0, 80, 100))
        options["method"] = 0
    return options


def _exif(rng: Random) -> bytes:
    """Return EXIF data with an orientation, valid or not, and now and then wrong bytes."""
    exif = Image.Exif()
    exif[0x0112] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65_535))
    exif[0x010E] = "x" * rng.choice((0, 3, 2000))
    data = exif.tobytes()
    return data if rng.random() < 0.6 else damage_bytes(rng, data, len(data))[0]


def _other_file(rng: Random) -> tuple[bytes, list[str]]:
    if rng.random() < 0.5:
        text = rng.choice(_TEXTS) + rng.randbytes(rng.choice((0, 0, 20, 1000)))
        return text, [f"{text[:20]!r}, {len(text)} bytes"]
    kind, out = rng.choice(_OTHER_FORMATS), io.BytesIO()
    _pixels(rng, 16, 16).save(out, kind)
    return out.getvalue(), [kind]


def _stated(rng: Random, old: int) -> int:
    near = (old + 1, old - 1, old * 2, old // 2, old * 1000, -old)
    return rng.choice(rng.choice((_STATED, near, near)))


def _put(data: bytes, at: int, code: str, value: int) -> bytes:
    """Overwrite a number without a sign; what does not fit is cut off."""
    n = struct.calcsize(code)
    packed = struct.pack(code, value & 2 ** (8 * n) - 1)
    return data[:at] + packed + data[at + n :] if 0 <= at <= len(data) - n else data


def _lie(rng: Random, kind: str, data: bytes) -> tuple[bytes, str]:
    """Let the header tell another width, height, depth or number of bytes."""
    places = _PLACES[kind](data)
    if not places:
        return data, "no header"
    at, code = rng.choice(places)
    n = struct.calcsize(code)
    (old,) = struct.unpack(code, data[at : at + n].ljust(n, b"\0"))
    new = _stated(rng, old)
    data = _put(data, at, code, new)
    if kind == "PNG" and rng.random() < 0.9:
        data = _put(data, 29, ">I", zlib.crc32(data[12:29]))
    return data, f"the number at {at} is {new} instead of {old}"


def _png_places(data: bytes) -> list[tuple[int, str]]:
    return [(16, ">I"), (20, ">I"), (16, ">I"), (20, ">I"), (24, ">B"), (25, ">B"), (28, ">B"), (8, ">I"), (33, ">I")]


def _jpeg_places(data: bytes) -> list[tuple[int, str]]:
    """Return the places of sizes, components and lengths of all segments before the first scan."""
    at, places = 2, list[tuple[int, str]]()
    while at + 9 < len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        if data[at + 1] in (0xC0, 0xC1, 0xC2):
            places += [(at + 5, ">H"), (at + 7, ">H")] * 5 + [(at + 9, ">B"), (at + 4, ">B"), (at + 11, ">B")]
        places.append((at + 2, ">H"))
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return places


def _gif_places(data: bytes) -> list[tuple[int, str]]:
    frame = data.find(b"\x2c", 13)
    return [(6, "<H"), (8, "<H"), (10, "<B"), *((frame + n, "<H") for n in (1, 3, 5, 7, 5, 7) if frame > 0)]


def _webp_places(data: bytes) -> list[tuple[int, str]]:
    places = [(4, "<I"), (16, "<I")]
    if data[12:16] == b"VP8X":
        return [*places, (20, "<I"), *((24 + n, "<H") for n in (0, 3, 0, 3))]
    return [*places, *((n, "<H") for n in (21, 23, 26, 28, 26, 28))]


def _bmp_places(data: bytes) -> list[tuple[int, str]]:
    return [*((n, "<I") for n in (18, 22, 18, 22, 10, 14, 30, 34, 46)), (26, "<H"), (28, "<H")]


_PLACES: dict[str, Callable[[bytes], list[tuple[int, str]]]] = {
    "PNG": _png_places,
    "JPEG": _jpeg_places,
    "GIF": _gif_places,
    "WebP": _webp_places,
    "BMP": _bmp_places,
}


def _damage(rng: Random, kind: str, data: bytes) -> tuple[bytes, str]:
    """Damage bytes of the header, or anywhere."""
    return damage_bytes(rng, data, rng.choice((min(64, len(data)), len(data)))) if data else (data, "empty")


def _cut(rng: Random, kind: str, data: bytes) -> tuple[bytes, str]:
    n = rng.choice((rng.randrange(len(data) + 1), rng.randrange(min(len(data), 60) + 1), max(0, len(data) - 1)))
    return data[:n], f"cut to {n} bytes"


def _join(rng: Random, kind: str, data: bytes) -> tuple[bytes, str]:
    """Append another image, or repeat a part of the file."""
    more, what = _image_file(rng, rng.choice(FORMATS))
    start = rng.randrange(len(data))
    part = data[start:] * rng.choice((1, 1, 3, 200 if len(data) < 5000 else 2))
    return rng.choice(((data + more, f"with {what[0]} after it"), (data + part, f"the bytes from {start} on repeated")))
