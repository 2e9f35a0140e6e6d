"""Tests of images: sources, sizes and digests, what their pixels are, and what is refused."""

from __future__ import annotations

import base64
import io
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

from pymtp import InvalidRequestError
from pymtp.images import Image, ImageLimits
from pymtp.images.decoding import is_pillow

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
RED = np.array([[[255, 0, 0], [0, 0, 255]], [[0, 255, 0], [9, 9, 9]], [[0, 0, 0], [255, 255, 255]]], np.uint8)  # 2 x 3


def saved(pixels: NDArray[Any] | PIL.Image.Image = RED, kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of a file with these pixels."""
    file = io.BytesIO()
    image = PIL.Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(file, kind, **options)
    return file.getvalue()


def refusal(source: Any, limits: ImageLimits | None = None) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        Image.read(source, limits or ImageLimits()).pixels()
    return str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_image_reads_the_size_of_each_format_and_decodes_its_pixels(kind: str) -> None:
    gradient = np.linspace(0, 255, 40 * 24 * 3).reshape(24, 40, 3).astype(np.uint8)
    image = Image.read(saved(gradient, kind))
    assert (image.width, image.height) == (40, 24)
    assert image.pixels().shape == (24, 40, 3)
    assert np.abs(image.pixels().astype(int) - gradient).mean() < 20


def test_images_of_one_source_are_equal_however_they_are_given(tmp_path: Path) -> None:
    data, path = saved(), tmp_path / "a.png"
    path.write_bytes(data)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    images = [Image.read(one) for one in (data, bytearray(data), path, str(path), url, Image.read(data))]
    assert set(images) == {images[0]}
    assert images[0].digest == images[4].digest
    assert Image.read(saved(RED, "BMP")) != images[0]
    assert pickle.loads(pickle.dumps(images[0])).pixels().tolist() == RED.tolist()


def test_arrays_and_images_of_pillow_with_the_same_pixels_are_equal() -> None:
    pillow, array = PIL.Image.fromarray(RED), RED.copy()
    image = Image.read(array)
    array[:] = 0
    assert image.pixels().tolist() == RED.tolist()
    assert Image.read(pillow) == image
    assert Image.read(RED[::-1]) != image
    assert Image.read(RED[:, :, 0]).pixels().tolist() == np.repeat(RED[:, :, :1], 3, 2).tolist()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_image_is_turned_as_its_exif_data_say(kind: str) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees, clockwise
    wide = np.zeros((16, 32, 3), np.uint8)
    wide[:, :16] = 255
    image = Image.read(saved(wide, kind, exif=exif))
    assert (image.width, image.height) == (16, 32)
    assert image.pixels()[:16].min() > 200
    assert image.pixels()[16:].max() < 50


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # pytest undoes the filter of pymtp
def test_damaged_exif_data_turn_nothing() -> None:
    for exif in (b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense"):
        assert Image.read(saved(exif=exif)).pixels().tolist() == RED.tolist()


def printed(source: str) -> tuple[str, str]:
    """Return what a new process prints on stdout and stderr when it reads an image. source: a Python expression."""
    code = f"""
import io, PIL.Image
from pymtp.images import Image
try:
    print(Image.read({source}))
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    return done.stdout, done.stderr


def test_huge_gif_is_refused_without_a_line_on_the_standard_error() -> None:
    data = bytearray(saved(kind="GIF"))
    frame = data.index(b"\x2c", 13)
    data[frame + 5 : frame + 9] = (12_000).to_bytes(2, "little") * 2
    out, errors = printed(repr(bytes(data)))
    assert "144000000 pixels; at most 50000000 are allowed" in out
    assert errors == ""


def test_damaged_exif_data_of_a_pillow_image_print_no_line_on_the_standard_error() -> None:
    data = saved(exif=b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\xff\0\0\0\xff\0\0\0")
    out, errors = printed(f"PIL.Image.open(io.BytesIO({data!r}))")
    assert "Image(2 x 3" in out
    assert errors == ""


def test_transparent_pixels_are_white() -> None:
    clear = np.dstack([RED, np.array([[0, 255], [255, 255], [255, 0]], np.uint8)])
    expected = RED.copy()
    expected[0, 0] = expected[2, 1] = 255
    assert Image.read(saved(clear)).pixels().tolist() == expected.tolist()
    assert Image.read(clear).pixels().tolist() == expected.tolist()
    palette = PIL.Image.fromarray(RED).convert("P", palette=PIL.Image.Palette.ADAPTIVE)
    index = palette.getpixel((0, 0))
    assert Image.read(saved(palette, transparency=index)).pixels()[0, 0].tolist() == [255, 255, 255]


def test_sixteen_bits_of_grey_become_their_upper_eight() -> None:
    grey = np.array([[0, 257, 65535, 256 * 100]], np.uint16)
    assert Image.read(saved(grey)).pixels()[0, :, 0].tolist() == [0, 1, 255, 100]


def test_first_frame_of_an_animation_counts() -> None:
    frames = [PIL.Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        image = Image.read(saved(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert image.pixels()[4, 4, 0] > 200, kind


def test_images_beyond_the_limits_are_refused_with_the_numbers() -> None:
    data = saved(np.zeros((20, 30, 3), np.uint8), "BMP")
    assert refusal(data, ImageLimits(max_bytes=100)) == f"an image has {len(data)} bytes; at most 100 are allowed"
    assert "30 x 20 = 600 pixels; at most 599" in refusal(data, ImageLimits(max_pixels=599))
    assert "30 x 20 = 600 pixels" in refusal(np.zeros((20, 30, 3), np.uint8), ImageLimits(max_pixels=599))
    assert "600 pixels" in refusal(PIL.Image.new("L", (30, 20)), ImageLimits(max_pixels=599))
    url = "data:;base64," + base64.b64encode(data).decode()
    assert "at most 100" in refusal(url, ImageLimits(max_bytes=100))
    with pytest.raises(InvalidRequestError, match="max_pixels=0"):
        ImageLimits(max_pixels=0)


def test_a_header_that_lies_about_the_size_is_refused_before_the_pixels_are_decoded() -> None:
    data = bytearray(saved())
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    assert "900000000 pixels" in refusal(bytes(data))


def test_a_jpeg_of_too_many_scans_is_refused() -> None:
    data = saved(np.zeros((16, 16, 3), np.uint8), "JPEG", progressive=True)
    start, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    assert "202 scans; at most 100" in refusal(data[:start] + data[start:end] * 193 + data[end:])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_cut_file_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    data = saved(noise, kind)
    for length in (0, 1, 12, 30, len(data) // 2):
        assert "image" in refusal(data[:length])


def test_other_sources_are_refused_by_name(tmp_path: Path) -> None:
    assert "none of PNG, JPEG, GIF, WebP and BMP" in refusal(b"%PDF-1.7")
    assert "none of PNG" in refusal(saved(RED, "TIFF"))
    assert "must be a path" in refusal(7)
    assert "not 'https://example.com/a.png'" in refusal("https://example.com/a.png")
    assert "No such file" in refusal(tmp_path / "nothing.png")
    assert "not float64 and (3, 2, 3)" in refusal(RED / 255)
    assert "and (3,)" in refusal(RED[:, 0, 0])
    assert "0 x 3 pixels" in refusal(RED[:, :0])
    assert 'must be "data:image' in refusal("data:image/png,abc")
    assert "is not base64" in refusal("data:image/png;base64,*!")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "it is not a file" in refusal(tmp_path / "pipe")
    assert "cannot read the image" in refusal(tmp_path)


def test_refused_image_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%PDF-1.7")
    assert refusal(path).startswith(f"{path}: an image is none of PNG")
    path.write_bytes(b"")
    assert refusal(path) == f"{path}: an image has no bytes"


def test_data_url_may_escape_the_characters_of_base64() -> None:
    data = saved()
    text = base64.b64encode(data).decode()
    escaped = text.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D")
    assert Image.from_data_url(f"data:image/png;base64,{escaped}").digest == Image.read(data).digest
    with pytest.raises(InvalidRequestError, match="not base64"):
        Image.from_data_url("data:image/png;base64,%41%41%41%41")
    with pytest.raises(InvalidRequestError, match="at most"):
        Image.from_data_url("data:image/png;base64,%2B" + "A" * 500, ImageLimits(max_bytes=100))


def test_image_is_read_while_another_thread_imports_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("PIL.Image")  # as sys.modules has it meanwhile
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL.Image", half)
        assert not is_pillow("data:image/png;base64,iVBO")


def test_pixels_cannot_be_written_to() -> None:
    for source in (saved(PIL.Image.new("RGB", (8, 8)), "png"), saved(PIL.Image.new("L", (8, 8)), "png")):
        with pytest.raises(ValueError, match="read-only"):
            Image.read(source).pixels()[0, 0, 0] = 1
