"""Claims about what a server says of its model's head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.served import Served
from makers.head_file import write_pair

TOLD = "has no multi-token-prediction head: it is decoded without drafts. --head FILE gives it one"


def test_a_server_tells_of_a_model_without_a_head_where_drafts_could_be_wanted(
    serve: Callable[..., Served], demo: Path, tmp_path: Path
) -> None:
    trunk, head = write_pair(demo, tmp_path)
    assert serve("-m", trunk, "-d", "auto").ready().line(TOLD)
    for options in (("-d", "0"), ("-d", "auto", "--head", head)):
        served = serve("-m", trunk, *options).ready()
        assert not [line for line in served.lines if TOLD in line]


def test_a_server_names_the_file_of_a_head_of_its_own(serve: Callable[..., Served], demo: Path, tmp_path: Path) -> None:
    trunk, head = write_pair(demo, tmp_path)
    assert serve("-m", trunk, "--head", head).ready().field("head") == head.name
