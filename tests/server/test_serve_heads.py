"""Tests of the log lines of `pymtp serve` about the MTP head of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.served import Served
from makers.head_file import write_pair

TOLD = "has no multi-token-prediction head: it is decoded without a head's drafts. --head FILE gives it one"


def test_serve_warns_of_a_missing_head_unless_drafts_are_off(
    serve: Callable[..., Served], demo: Path, tmp_path: Path
) -> None:
    trunk, head = write_pair(demo, tmp_path)
    assert serve("-m", trunk, "-d", "auto").ready().line(TOLD)
    for options in (("-d", "0"), ("-d", "auto", "--head", head)):
        served = serve("-m", trunk, *options).ready()
        assert not [line for line in served.lines if TOLD in line]


def test_serve_logs_the_file_of_a_separate_head(serve: Callable[..., Served], demo: Path, tmp_path: Path) -> None:
    trunk, head = write_pair(demo, tmp_path)
    assert serve("-m", trunk, "--head", head).ready().field("head") == head.name
