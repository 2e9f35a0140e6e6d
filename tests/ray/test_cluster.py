"""Tests of Ray on two nodes, both on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "helpers/ray_cluster.py"


def run_tool(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run ray_cluster.py. Return its result and its log.

    The exit status and output after the result are ignored, because they come from Ray.
    """
    with (
        (folder / "out").open("w+") as out,
        (folder / "log").open("w+") as log,
    ):  # not pipes: processes of Ray would keep them open
        command = [sys.executable, TOOL, *options]
        subprocess.run(command, cwd=folder, stdout=out, stderr=log, stdin=subprocess.DEVNULL, timeout=400)
        out.seek(0), log.seek(0)
        output, logged = out.read(), log.read()[-5000:]
    found = [line for line in output.splitlines() if line.startswith("{")]
    assert found, output + logged
    return json.loads(found[0]), logged


@pytest.mark.timeout(420)
def test_dataset_is_complete_and_correct_after_an_actor_was_killed_and_a_run_was_resumed(tmp_path: Path) -> None:
    found, logged = run_tool(tmp_path, "rows", "--rows", "96")
    assert found["killed"] == {"died": True, "nodes": 2, "rows": 96, "wrong": 0}, logged
    assert found["resumed"] == found["resumed"] | {"failed": True, "read_twice": 0, "wrong": 0}, logged
    assert 0 < found["resumed"]["first"] < 24, logged  # rows that are written when the first run fails


@pytest.mark.timeout(420)
def test_ray_application_answers_like_the_server_and_survives_a_killed_replica(tmp_path: Path) -> None:
    found, logged = run_tool(tmp_path, "application")
    # chats of two turns: the second turn goes to the replica of the first
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
    assert found["crowd"] == [4, 4]  # n_seq_max of each replica
    assert found["killing"] == {
        "fetched": [200] * 6,  # stored responses of both replicas
        "at": True,  # the expected replicas answered
        "stream": ["replica_lost", False],  # the error in the last event, and whether the stream was complete
        "whole": [503, "replica_lost"],
        "kept": True,  # the text of the other replica is complete
        "new": True,  # a new replica was started
        "stored": [200, 404, 400, "previous_response_not_found"],
    }
