"""Claims about what a server says of its model's head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.served import Served
from makers.head_file import write_pair


def test_a_server_names_the_file_of_a_head_of_its_own(serve: Callable[..., Served], demo: Path, tmp_path: Path) -> None:
    trunk, head = write_pair(demo, tmp_path)
    assert serve("-m", trunk, "--head", head).ready().field("head") == head.name
