"""Perception of colours: contrast, and distances for the colour-blind."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = NDArray[np.float64]  # linear red, green, blue

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
# Machado, Oliveira, Fernandes 2009, severity 1: without the cones for long, middle and short waves.
EYES = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def read(css: str) -> Colour:
    """Parse CSS' rgb(…)."""
    values = np.array([float(each) for each in re.findall(r"[\d.]+", css)[:3]]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: Colour, two: Colour) -> float:
    """Return WCAG's contrast, from 1 to 21."""
    low, high = sorted(float(_LUMINANCE @ colour) + 0.05 for colour in (one, two))
    return high / low


def nearest(colours: Sequence[Colour]) -> float:
    """Return the least distance in CIELAB between two of the colours, for any kind of eyes."""
    return min(
        float(np.linalg.norm(seen[i] - seen[j]))
        for eye in EYES.values()
        for seen in [[_lab(eye @ colour) for colour in colours]]
        for i in range(len(seen))
        for j in range(i)
    )


def _lab(colour: Colour) -> NDArray[np.float64]:
    ratio = _XYZ @ np.clip(colour, 0, 1) / _WHITE
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
