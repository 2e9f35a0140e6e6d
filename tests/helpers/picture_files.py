"""Files of pictures, made by Pillow."""

from __future__ import annotations

import base64
import io
from typing import Any

import PIL.Image


def picture(colour: str = "red", size: tuple[int, int] = (64, 48), kind: str = "PNG", **options: Any) -> bytes:
    """Return the bytes of a picture of one colour."""
    file = io.BytesIO()
    PIL.Image.new("RGB", size, colour).save(file, kind, **options)
    return file.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
