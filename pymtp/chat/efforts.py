"""How much a model is to think: the words that clients have for it, and which stands in for another."""

from __future__ import annotations

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # rising


def nearest(effort: str) -> list[str]:
    """Sort the other efforts by how well they stand in for one: the nearest first, of two the higher. "none" is the
    last of all: it asks for another thing than little thinking."""
    at = EFFORTS.index(effort)
    others = (other for other in EFFORTS if other != effort)
    return sorted(others, key=lambda other: (other == "none", abs(EFFORTS.index(other) - at), -EFFORTS.index(other)))
