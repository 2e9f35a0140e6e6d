"""Tests of Ray on two nodes, both on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "helpers/ray_cluster.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Run a dataset and an application on the same two nodes. Return their results and the log.

    The exit status and output after the results are ignored, because they come from Ray.
    """
    folder = tmp_path_factory.mktemp("ray")
    with (
        (folder / "out").open("w+") as out,
        (folder / "log").open("w+") as log,
    ):  # not pipes: processes of Ray would keep them open
        command = [sys.executable, TOOL, "both"]
        subprocess.run(command, cwd=folder, stdout=out, stderr=log, stdin=subprocess.DEVNULL, timeout=400)
        out.seek(0), log.seek(0)
        output, logged = out.read(), log.read()[-5000:]
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(found) == 2, output + logged
    return found, logged


@pytest.mark.timeout(420)
def test_dataset_is_complete_and_correct_after_a_run_was_resumed_and_an_actor_was_killed(
    results: tuple[list[dict[str, Any]], str],
) -> None:
    (found, _), logged = results
    first = found.pop("first")  # rows that are written when the first run fails
    assert found == {"failed": True, "died": True, "nodes": 2, "rows": 96, "read_twice": 0, "wrong": 0}, logged
    assert 0 < first < 96, logged


@pytest.mark.timeout(420)
def test_ray_application_answers_like_the_server_and_survives_a_killed_replica(
    results: tuple[list[dict[str, Any]], str],
) -> None:
    (_, found), logged = results
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
