"""The limits of the images that a request may have."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pymtp.errors import InvalidRequestError
from pymtp.validation import read_int


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """The limits of the images of a request. A larger image is refused before it is decoded.

    max_bytes: bytes of an image's file.
    max_pixels: width times height of an image. Decoding takes up to 22 bytes of memory for each pixel (an
        animated WebP with transparency; a JPEG or PNG takes 10).
    max_images: images in a request.

    Raises InvalidRequestError for a limit that is no whole number from 1.
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 50_000_000
    max_images: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, read_int(field.name, getattr(self, field.name), 1))

    def check_bytes(self, n: int) -> None:
        """Raise InvalidRequestError for an image of more than max_bytes."""
        if n > self.max_bytes:
            raise InvalidRequestError(f"an image has {n} bytes; at most {self.max_bytes} are allowed")

    def check_size(self, width: int, height: int) -> None:
        """Raise InvalidRequestError for an image without pixels, or with more than max_pixels."""
        if width < 1 or height < 1:
            raise InvalidRequestError(f"an image has {width} x {height} pixels: it must have at least 1 x 1")
        if width * height > self.max_pixels:
            raise InvalidRequestError(
                f"an image has {width} x {height} = {width * height} pixels; at most {self.max_pixels} are allowed"
            )

    def check_count(self, n: int) -> None:
        """Raise InvalidRequestError for a request of more than max_images."""
        if n > self.max_images:
            raise InvalidRequestError(f"a request has {n} images; at most {self.max_images} are allowed")
