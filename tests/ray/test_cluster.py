"""Claims about two machines, which are two nodes on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKS = Path(__file__).parents[2] / "tools/checks"


def told(folder: Path, tool: str, *options: str) -> tuple[dict[str, Any], str]:
    """What a tool found, and what was logged. How Ray ends after it is no claim of ours, nor what it prints then."""
    with (folder / "out").open("w+") as out, (folder / "log").open("w+") as log:  # pipes would stay open
        command = [sys.executable, CHECKS / tool, *options]
        subprocess.run(command, cwd=folder, stdout=out, stderr=log, stdin=subprocess.DEVNULL, timeout=400)
        out.seek(0), log.seek(0)
        said, logged = out.read(), log.read()[-5000:]
    found = [line for line in said.splitlines() if line.startswith("{")]
    assert found, said + logged
    return json.loads(found[0]), logged


@pytest.mark.timeout(420)
def test_rows_are_complete_and_those_of_llm_generate_whoever_dies_and_not_read_twice(tmp_path: Path) -> None:
    found, logged = told(tmp_path, "ray_rows.py", "--rows", "96")
    assert found["killed"] == {"died": True, "nodes": 2, "rows": 96, "wrong": 0}, logged
    assert found["resumed"] == found["resumed"] | {"failed": True, "read_twice": 0, "wrong": 0}, logged
    assert 0 < found["resumed"]["first"] < 24, logged  # rows that are there when the first run fails


@pytest.mark.timeout(420)
def test_an_application_answers_as_a_server_does_and_outlives_a_replica(tmp_path: Path) -> None:
    found, logged = told(tmp_path, "ray_serve.py")
    # chats of two turns, at each replica: the second turn is where the first was read
    assert found["turns"] == {"nodes": 2, "wrong": 0, "elsewhere": 0, "read_twice": 0}, logged
    assert found["stream"] == found["stream"] | {"right": True, "done": True, "came_in_pieces": True}
    assert found["refusals"] == {
        "empty": [400, "invalid_type"],
        "no_messages": [400, "invalid_type"],
        "no_json": [400, "invalid_json"],
        "no_key": [401, "invalid_api_key"],
        "no_path": [404, "unknown_url"],
    }
    assert found["leaving"] == {"aborted": 1}
    assert found["crowd"] == [4, 4]  # as many as each writes at once
    assert found["killing"] == {
        "fetched": [200] * 6,  # what each of the two had stored
        "at": True,  # the texts were where they were to be
        "stream": ["replica_lost", False],  # its last event, and whether the end of a whole text came
        "whole": [503, "replica_lost"],
        "kept": True,  # the text of the other replica
        "new": True,  # a replica came for the one that died
        "stored": [200, 404, 400, "previous_response_not_found"],
    }
