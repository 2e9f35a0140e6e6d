"""Images of prompts: read from files, bytes, data URLs and arrays, within limits, and decoded by Pillow.

image.py has `Image`, which knows its size and its digest; decoding.py is the only file that imports Pillow, when the
first image is read.
"""

from pymtp.images.image import Image
from pymtp.images.limits import ImageLimits

__all__ = ["Image", "ImageLimits"]
