"""Runs pymtp on two nodes of Ray on this machine, and prints what came out as JSON.

    python tests/helpers/ray_cluster.py rows --rows 2000
    python tests/helpers/ray_cluster.py application
    python tests/helpers/ray_cluster.py both

rows         The rows of a dataset, compared with the texts of LLM.generate. A run fails in the middle and is resumed.
             A worker of the resumed run is killed. Exits with status 1 for wrong texts.
application  A Ray Serve application with a replica on each node, and clients over HTTP. Texts are compared with those
             of LLM.chat. A replica is killed while it generates; a client disconnects.
both         A short dataset, then the application on the same nodes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no requests to the internet
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 — with the default of 15, workers get no time beside other processes
os.environ["RAY_enable_worker_prestart"] = "0"  # noqa: SIM112 — each started worker imports Ray, used or not
os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
os.environ["RAY_DATA_USE_DATASOURCE_V2"] = "0"  # it starts an actor for each checkpoint that it reads

import httpx
import ray
import typer
from pyarrow import parquet
from ray import serve
from ray.cluster_utils import Cluster
from ray.data.checkpoint import CheckpointConfig

from pymtp import LLM, SamplingParams
from pymtp.ray import Generate, serve_app
from pymtp.ray.routing import rank_replicas, routing_hint

NODE = {"num_cpus": 3, "object_store_memory": 80 * 2**20, "include_log_monitor": False}  # 2 for a model, 1 for tasks
HEAD = {**NODE, "include_dashboard": False, "no_monitor": True}
PARAMS = SamplingParams(max_tokens=6, temperature=1, seed=3)
OPTIONS = {"params": PARAMS, "n_ctx": 128, "draft_tokens": 1, "n_threads": 1, "cache_bytes": 0}

LONG = 120.0  # timeout in seconds
PLACES = 4
LLM_OPTIONS = {"n_ctx": 32768, "n_seq_max": PLACES, "n_threads": 1, "draft_tokens": 3}
CHAT = "/v1/chat/completions"
KEY = "a key"
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}
ENDLESS = {**GREEDY, "ignore_eos": True}  # until the context is full, so that it runs when its replica is killed


# \b keeps the lines of the docstring
app = typer.Typer(add_completion=False, rich_markup_mode=None, help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))


@contextmanager
def two_nodes() -> Iterator[Path]:
    """Connect Ray to two nodes, and yield an empty folder in which their workers start.

    The caller's folder may hold sources of pymtp that are not compiled. A failure to shut down is only logged, because
    the results are known by then.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        try:
            cluster.add_node(**NODE)
            ray.init(address=cluster.address, log_to_driver=False)
            yield Path(folder)
        finally:
            for end in (ray.shutdown, cluster.shutdown):
                try:
                    end()
                except Exception:
                    logging.exception("Ray did not end")
            os.chdir("/")


class Fails(Generate):
    """Generates rows, records their ids and the nodes, and fails at the row `deadly`.

    While the file "no power" exists, the worker that gets the row raises after a checkpoint of other rows. Later the
    first worker that gets the row is killed.
    """

    def __init__(self, folder: Path, deadly: int, **keywords: Any) -> None:
        self._folder, self._deadly = folder, deadly
        (folder / f"node-{ray.get_runtime_context().get_node_id()}").touch()
        super().__init__(**keywords)

    def __call__(self, batch: Any) -> Any:
        died = self._folder / "died"
        if self._deadly in batch["id"] and (self._folder / "no power").exists():
            end = time.monotonic() + 60
            while not self._kept() and time.monotonic() < end:
                time.sleep(0.05)
            raise RuntimeError("no power")
        if self._deadly in batch["id"] and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (self._folder / "read").open("a") as file:
            file.writelines(f"{each}\n" for each in batch["id"])
        return super().__call__(batch)

    def _kept(self) -> bool:
        """Tell whether the checkpoint has rows, which a resumed run skips."""
        return any(".pending" not in file.name for file in (self._folder / "checkpoint").glob("*.parquet"))


def play_rows(folder: Path, n: int) -> dict[str, Any]:
    """Resume a failed run with two workers, one of which is killed. Return the counts of rows and of faults.

    first: rows that were written when the first run failed.
    nodes: nodes of the resumed run.
    read_twice: rows among `first` that the resumed run generated again.
    wrong: rows whose text is another than that of LLM.generate.
    """
    prompts = [{"id": i, "prompt": f"def f{i}(a):"} for i in range(n)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 300  # so that both nodes get work, however slow one starts
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=str(folder / "checkpoint"))

    def run(workers: int) -> None:
        rows = ray.data.read_json(str(folder / "rows.jsonl"), override_num_blocks=1).repartition(8)
        rows.map_batches(
            Fails,
            fn_constructor_kwargs={"folder": folder, "deadly": n - 1, **OPTIONS},
            batch_size=n // 8,
            num_cpus=2,
            compute=ray.data.ActorPoolStrategy(size=workers),
        ).write_parquet(str(folder / "written"))

    def written() -> list[tuple[int, str]]:
        tables = (parquet.read_table(file) for file in (folder / "written").glob("*.parquet"))
        return [(row["id"], row["text"]) for table in tables for row in table.to_pylist()]

    (folder / "no power").touch()
    failed = False
    try:
        run(1)
    except Exception as error:
        failed = "no power" in str(error)
    gc.collect()  # the failed run has reference cycles, which keep its worker and so the CPUs of a node
    first = {i for i, _ in written()}
    (folder / "no power").unlink()
    (folder / "read").unlink()
    for each in folder.glob("node-*"):
        each.unlink()
    run(2)
    context.checkpoint_config = None
    again = {int(line) for line in (folder / "read").read_text().split()}
    with LLM(n_ctx=128, n_seq_max=8, n_threads=1, draft_tokens=0) as llm:
        alone = llm.generate([each["prompt"] for each in prompts], PARAMS)
    texts = dict(written())
    return {
        "failed": failed,
        "first": len(first),
        "died": (folder / "died").exists(),
        "nodes": len(list(folder.glob("node-*"))),
        "rows": len(written()),
        "read_twice": len(first & again),
        "wrong": sum(texts.get(i) != each.text for i, each in enumerate(alone)),
    }


@app.command()
def rows(n: Annotated[int, typer.Option("--rows", min=48, help="Rows of the dataset.")] = 2000) -> None:
    """Generate the rows of a dataset."""
    with two_nodes() as folder:
        found = play_rows(folder, n)
        print(json.dumps(found), flush=True)  # before Ray shuts down
    good = found["failed"] and found["first"] and found["died"] and found["nodes"] == 2 and found["rows"] == n
    raise typer.Exit(0 if good and not (found["wrong"] or found["read_twice"]) else 1)


class Client:
    """A client of the application that can choose a replica."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=LONG)

    def metric(self, name: str, labels: str = "") -> dict[str, float]:
        """Return the values of a metric by replica."""
        found: dict[str, float] = {}
        for _ in range(30):  # a busy machine may be slow
            if (told := self.http.get("/metrics")).status_code == 200:
                break
            time.sleep(1)
        told.raise_for_status()
        for line in told.text.splitlines():
            if line.startswith(f"pymtp:{name}{{") and labels in line:
                replica = re.search(r'replica="(\w+)"', line)
                assert replica is not None, line
                found[replica[1]] = float(line.split()[-1])
        return found

    def replicas(self) -> list[str]:
        return sorted(self.metric("num_requests_max"))

    def chat(self, messages: list[dict[str, str]], **more: Any) -> httpx.Response:
        return self.http.post(CHAT, json={**GREEDY, "messages": messages, "max_tokens": 24, **more})

    def first(self, replica: str, among: list[str], more: str = "") -> Iterator[list[dict[str, str]]]:
        """Yield chats that are routed to a replica first, among these replicas. more: the end of their message."""
        for i in range(10**6):
            messages = [{"role": "user", "content": f"def f{i}(a):{more}"}]
            key = routing_hint("POST", CHAT, json.dumps({"messages": messages}).encode()).key
            assert key is not None
            if rank_replicas(key, dict.fromkeys(among, 0), PLACES)[0] == replica:
                yield messages


def wait_until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.2)  # not less, since most of these ask both replicas for their metrics


def text_of(events: str) -> str:
    """Join the content of the chunks of a chat."""
    found = ""
    for line in events.split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                found += choice["delta"].get("content") or ""
    return found


def turns(client: Client, llm: LLM) -> dict[str, Any]:
    """Run chats of two turns, two per replica; count wrong texts, wrong replicas, and prompts prefilled twice."""
    wait_until(lambda: len(client.replicas()) == 2)  # known to the proxy
    replicas = client.replicas()
    nodes = {node_of(replica) for replica in replicas}
    found: dict[str, Any] = {"nodes": len(nodes), "wrong": 0, "elsewhere": 0, "read_twice": 0}
    for replica in replicas:
        chats = client.first(replica, replicas, "\n    a += 1" * 80)  # long enough for a checkpoint
        for messages in (next(chats), next(chats)):
            for turn in range(2):
                done = client.chat(messages)
                answer = done.json()
                text = answer["choices"][0]["message"]["content"]
                found["wrong"] += text != llm.chat(messages, SamplingParams(max_tokens=24, temperature=0)).content
                found["elsewhere"] += done.headers["x-pymtp-replica"] != replica
                found["read_twice"] += turn and not answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    return found


def stream(client: Client, llm: LLM) -> dict[str, Any]:
    """Stream a text, and compare it."""
    messages = [{"role": "user", "content": "class Tree:"}]
    asked = {**ENDLESS, "messages": messages, "max_tokens": 400, "stream": True}
    with client.http.stream("POST", CHAT, json=asked) as answer:
        pieces = list(answer.iter_text())
    alone = llm.chat(messages, SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)).content
    return {
        "came_in_pieces": len(pieces) > 2,
        "right": text_of("".join(pieces)) == alone,
        "done": "data: [DONE]" in pieces[-1],
    }


def refusals(client: Client) -> dict[str, Any]:
    """Return the statuses and codes of invalid requests, which are those of `pymtp serve`."""
    asked = {
        "empty": client.chat([]),
        "no_messages": client.http.post(CHAT, json=GREEDY),
        "no_json": client.http.post(CHAT, content=b"{", headers={"Content-Type": "application/json"}),
        "no_key": client.http.post(CHAT, json={}, headers={"Authorization": "Bearer other"}),
        "no_path": client.http.get("/v1/other"),
    }
    return {name: [each.status_code, each.json()["error"]["code"]] for name, each in asked.items()}


def leaving(client: Client) -> dict[str, Any]:
    """Disconnect a client in the middle of its text, and wait until the request is aborted."""
    messages = [{"role": "user", "content": "import "}]

    def aborted() -> float:
        return sum(client.metric("request_success_total", 'finished_reason="abort"').values())

    before = aborted()
    with client.http.stream("POST", CHAT, json={**ENDLESS, "messages": messages, "stream": True}) as answer:
        next(answer.iter_text())
    wait_until(lambda: aborted() > before and not any(client.metric("num_requests_running").values()))
    return {"aborted": aborted() - before}


def crowd(client: Client) -> list[int]:
    """Return the counts by replica of as many texts with one beginning as all slots can run."""
    messages = [{"role": "user", "content": "class Node:"}]
    found: list[int] = []
    replicas = client.replicas()
    for replica in replicas:  # the proxy then knows that it answers
        client.chat(next(client.first(replica, replicas)))
    for _ in range(5):  # the proxy may not know yet that all earlier texts have ended
        with ThreadPoolExecutor(2 * PLACES) as threads, ExitStack() as stack:
            streams = [
                client.http.stream("POST", CHAT, json={**ENDLESS, "messages": messages, "stream": True})
                for _ in range(2 * PLACES)
            ]
            opened = list(threads.map(stack.enter_context, streams))
            found = sorted(Counter(each.headers["x-pymtp-replica"] for each in opened).values())
        wait_until(lambda: not any(client.metric("num_requests_running").values()))
        if found == [PLACES, PLACES]:
            break
    return found


def killing(client: Client, llm: LLM) -> dict[str, Any]:
    """Kill a replica while it generates two texts, and the other replica a third one."""
    replicas = client.replicas()
    dies, lives = replicas
    stored = {}
    for replica in replicas:  # any replica may store it: the id of the response says which
        while replica not in stored:
            asked = {**GREEDY, "input": f"import {len(stored)}{time.monotonic()}", "max_output_tokens": 4}
            answer = client.http.post("/v1/responses", json=asked)
            stored[answer.headers["x-pymtp-replica"]] = answer.json()["id"]
    fetched = [client.http.get(f"/v1/responses/{stored[name]}") for name in replicas for _ in range(3)]
    pid = of_replica(dies, lambda _: os.getpid())
    chats = client.first(dies, replicas)
    other = next(client.first(lives, replicas))
    with ExitStack() as stack:
        lost = stack.enter_context(
            client.http.stream("POST", CHAT, json={**ENDLESS, "messages": next(chats), "stream": True})
        )
        lost_pieces = lost.iter_text()
        next(lost_pieces)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            lambda: client.http.post(CHAT, json={**ENDLESS, "messages": next(chats)})
        )
        wait_until(lambda: client.metric("num_requests_running").get(dies) == 2)
        asked = {**ENDLESS, "messages": other, "max_tokens": 800, "stream": True}
        kept = stack.enter_context(client.http.stream("POST", CHAT, json=asked))
        kept_pieces = kept.iter_text()
        kept_text = next(kept_pieces)
        os.kill(pid, signal.SIGKILL)  # as the system does without memory
        at = [lost.headers["x-pymtp-replica"], kept.headers["x-pymtp-replica"]]
        events = "".join(lost_pieces)
        kept_text += "".join(kept_pieces)
        whole = waiting.result()
    told = json.loads(events.rstrip().split("\n")[-1].removeprefix("data: "))
    alone = llm.chat(other, SamplingParams(max_tokens=800, temperature=0, ignore_eos=True)).content
    found = {
        "fetched": [each.status_code for each in fetched],
        "at": at == [dies, lives],
        "stream": [told["error"]["code"], "[DONE]" in events],
        "whole": [whole.status_code, whole.json()["error"]["code"]],
        "kept": text_of(kept_text) == alone and "data: [DONE]" in kept_text,
    }
    wait_until(lambda: len(client.replicas()) == 2)
    found["new"] = dies not in client.replicas()
    again = {name: client.http.get(f"/v1/responses/{stored[name]}").status_code for name in replicas}
    asked = {**GREEDY, "input": "go on", "previous_response_id": stored[dies]}
    gone = client.http.post("/v1/responses", json=asked)
    found["stored"] = [again[lives], again[dies], gone.status_code, gone.json()["error"]["code"]]
    return found


def of_replica(replica: str, call: Callable[[object], Any]) -> Any:
    """Run a function in the process of a replica, and return its result."""
    actor = ray.get_actor(f"SERVE_REPLICA::default#Replica#{replica}", namespace="serve")
    return ray.get(actor.__ray_call__.remote(call))


def node_of(replica: str) -> str:
    found: str = of_replica(replica, lambda _: ray.get_runtime_context().get_node_id())
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def play_application() -> dict[str, Any]:
    """Start an application, and return the results of all its checks."""
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve_app(replicas=2, num_cpus=2, api_keys=[KEY], chunk_interval=0.05, **LLM_OPTIONS))
    client = Client(f"http://127.0.0.1:{port}")
    with LLM(**LLM_OPTIONS) as llm:
        return {
            "turns": turns(client, llm),
            "stream": stream(client, llm),
            "refusals": refusals(client),
            "leaving": leaving(client),
            "killing": killing(client, llm),
            "crowd": crowd(client),
        }


@app.command()
def application() -> None:
    """Run an application."""
    with two_nodes():
        print(json.dumps(play_application()), flush=True)  # before Ray shuts down
        serve.shutdown()


@app.command()
def both() -> None:
    """Generate the rows of a short dataset, then run an application."""
    with two_nodes() as folder:
        print(json.dumps(play_rows(folder, 96)), flush=True)
        print(json.dumps(play_application()), flush=True)
        serve.shutdown()


if __name__ == "__main__":
    app()
