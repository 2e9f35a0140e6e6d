"""Paths that mean the same wherever the process goes."""

from __future__ import annotations

import os


def whole(path: str) -> str:
    """The path of the same file from anywhere. ".." stays: a folder before it may be a link to another place. So does a
    path that begins in a folder that is gone."""
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except FileNotFoundError:
        return path
