"""Runs the rows of a dataset on two nodes of Ray on this machine, and compares the texts with those of LLM.generate.

A worker is killed during the run. Another run fails in the middle and is resumed.

    python tools/checks/ray_rows.py --rows 2000
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import ray
import ray_nodes
import typer
from pyarrow import parquet
from ray.data.checkpoint import CheckpointConfig

from pymtp import LLM, SamplingParams
from pymtp.ray import Generate

PARAMS = SamplingParams(max_tokens=6, temperature=1, seed=3)
OPTIONS = {"params": PARAMS, "n_ctx": 128, "draft_tokens": 1, "n_threads": 1, "cache_bytes": 0}


class Dies(Generate):
    """Generates rows; the first worker that gets a certain row is killed."""

    def __init__(self, folder: Path, deadly: int, **keywords: Any) -> None:
        self._folder, self._deadly = folder, deadly
        (folder / f"node-{ray.get_runtime_context().get_node_id()}").touch()
        super().__init__(**keywords)

    def __call__(self, batch: Any) -> Any:
        died = self._folder / "died"
        if self._deadly in batch["id"] and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


class Counts(Generate):
    """Generates rows and records their ids; fails at a certain row on request, after a checkpoint of others."""

    def __init__(self, folder: Path, deadly: int, **keywords: Any) -> None:
        self._folder, self._deadly = folder, deadly
        super().__init__(**keywords)

    def __call__(self, batch: Any) -> Any:
        if self._deadly in batch["id"] and (self._folder / "no power").exists():
            end = time.monotonic() + 60
            while not self._kept() and time.monotonic() < end:
                time.sleep(0.05)
            raise RuntimeError("no power")
        with (self._folder / "read").open("a") as file:
            file.writelines(f"{each}\n" for each in batch["id"])
        return super().__call__(batch)

    def _kept(self) -> bool:
        """Tell whether the checkpoint has rows, which a resumed run skips."""
        return any(".pending" not in file.name for file in (self._folder / "checkpoint").glob("*.parquet"))


def prompts(n: int) -> list[dict[str, Any]]:
    return [{"id": i, "prompt": f"def f{i}(a):"} for i in range(n)]


def with_a_death(folder: Path, rows: int) -> dict[str, Any]:
    """Kill a worker during a run; return the counts of wrong texts and of nodes with workers."""
    done = ray.data.from_items(prompts(rows), override_num_blocks=8).map_batches(
        Dies,
        fn_constructor_kwargs={"folder": folder, "deadly": rows // 2, **OPTIONS},
        batch_size=rows // 8,
        num_cpus=2,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    texts = {row["id"]: row["text"] for row in done.take_all()}
    with LLM(n_ctx=128, n_seq_max=8, n_threads=1, draft_tokens=0) as llm:
        alone = llm.generate([each["prompt"] for each in prompts(rows)], PARAMS)
    wrong = sum(texts.get(i) != each.text for i, each in enumerate(alone))
    died, nodes = (folder / "died").exists(), len(list(folder.glob("node-*")))
    return {"died": died, "nodes": nodes, "rows": len(texts), "wrong": wrong}


def in_two_runs(folder: Path, rows: int) -> dict[str, Any]:
    """Resume a failed run; return the counts of rows of the first run, of repeated rows, and of wrong rows."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts(rows)))
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=str(folder / "checkpoint"))
    (folder / "no power").touch()
    try:
        work(folder, rows)
        failed = False
    except Exception as error:
        failed = "no power" in str(error)
    first = written(folder)
    (folder / "no power").unlink()
    (folder / "read").unlink()
    work(folder, rows)
    context.checkpoint_config = None
    again = sorted(int(line) for line in (folder / "read").read_text().split())
    return {
        "failed": failed,
        "first": len(first),
        "read_twice": len(set(first) & set(again)),
        "wrong": abs(len(written(folder)) - rows) + len(set(range(rows)) - set(written(folder))),
    }


def work(folder: Path, rows: int) -> None:
    ray.data.read_json(str(folder / "rows.jsonl"), override_num_blocks=1).repartition(6).map_batches(
        Counts,
        fn_constructor_kwargs={"folder": folder, "deadly": rows - 1, **OPTIONS},
        batch_size=rows // 6,
        num_cpus=2,
        compute=ray.data.ActorPoolStrategy(size=1),
    ).write_parquet(str(folder / "written"))


def written(folder: Path) -> list[int]:
    """Return the ids of the rows in the output files."""
    files = (folder / "written").glob("*.parquet")
    return sorted(row for file in files for row in parquet.read_table(file)["id"].to_pylist())


def play(folder: Path, rows: int) -> dict[str, Any]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 300  # so that both nodes get work, however slow one starts
    return {"killed": with_a_death(folder, rows), "resumed": in_two_runs(folder, rows // 4)}


def main(rows: Annotated[int, typer.Option(min=48, help="Rows of the dataset.")] = 2000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # workers start here: the caller's folder may hold sources of pymtp that are not compiled
        with ray_nodes.two_nodes():
            found = play(Path(folder), rows)
            print(json.dumps(found), flush=True)  # before Ray shuts down
        os.chdir("/")
    killed, resumed = found["killed"], found["resumed"]
    good = killed["died"] and killed["nodes"] == 2 and killed["rows"] == rows and resumed["failed"] and resumed["first"]
    sys.exit(0 if good and not (killed["wrong"] or resumed["wrong"] or resumed["read_twice"]) else 1)


if __name__ == "__main__":
    typer.run(main)
