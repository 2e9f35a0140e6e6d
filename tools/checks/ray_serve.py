"""Runs a Ray Serve application on two nodes of Ray on this machine: a replica on each, clients over HTTP.

Texts are compared with those of LLM.chat. A replica is killed while it generates; a client disconnects.

    python tools/checks/ray_serve.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import ray
import ray_nodes
from ray import serve

from pymtp import LLM, SamplingParams
from pymtp.ray import serve_app
from pymtp.ray.routing import rank_replicas, routing_hint

LONG = 120.0  # timeout in seconds
PLACES = 4
LLM_OPTIONS = {"n_ctx": 32768, "n_seq_max": PLACES, "n_threads": 1, "draft_tokens": 3}
CHAT = "/v1/chat/completions"
KEY = "a key"
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0}
ENDLESS = {
    **GREEDY,
    "ignore_eos": True,
}  # generates until the context is full, so that it is running when it is killed


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

    def first(self, replica: str, among: list[str]) -> Iterator[list[dict[str, str]]]:
        """Yield chats that are routed to a replica first, among these replicas."""
        for i in range(10**6):
            messages = [{"role": "user", "content": f"def f{i}(a):"}]
            key = routing_hint("POST", CHAT, json.dumps({"messages": messages}).encode()).key
            assert key is not None
            if rank_replicas(key, dict.fromkeys(among, 0), PLACES)[0] == replica:
                yield messages


def wait_until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


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
        chats = client.first(replica, replicas)
        for messages in (next(chats), next(chats)):
            for turn in range(2):
                done = client.chat(messages)
                answer = done.json()
                text = answer["choices"][0]["message"]["content"]
                found["wrong"] += text != llm.chat(messages, SamplingParams(max_tokens=24, temperature=0)).text
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
    alone = llm.chat(messages, SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)).text
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
    chats = client.first(dies, replicas)
    other = next(client.first(lives, replicas))
    with ExitStack() as stack:
        lost = stack.enter_context(
            client.http.stream("POST", CHAT, json={**ENDLESS, "messages": next(chats), "stream": True})
        )
        lost_pieces = lost.iter_text()
        next(lost_pieces)
        asked = {**ENDLESS, "messages": other, "max_tokens": 1500, "stream": True}
        kept = stack.enter_context(client.http.stream("POST", CHAT, json=asked))
        kept_pieces = kept.iter_text()
        kept_text = next(kept_pieces)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            lambda: client.http.post(CHAT, json={**ENDLESS, "messages": next(chats)})
        )
        wait_until(lambda: client.metric("num_requests_running").get(dies) == 2)
        at = [lost.headers["x-pymtp-replica"], kept.headers["x-pymtp-replica"]]
        kill(dies)
        events = "".join(lost_pieces)
        kept_text += "".join(kept_pieces)
        whole = waiting.result()
    told = json.loads(events.rstrip().split("\n")[-1].removeprefix("data: "))
    alone = llm.chat(other, SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)).text
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


def kill(replica: str) -> None:
    """Kill a replica with SIGKILL, as the system does without memory."""
    os.kill(of_replica(replica, lambda _: os.getpid()), signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def play() -> dict[str, Any]:
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    serve.run(serve_app(replicas=2, num_cpus=2, api_keys=[KEY], chunk_interval=0.01, **LLM_OPTIONS))
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # workers start here: the caller's folder may hold sources of pymtp that are not compiled
        with ray_nodes.two_nodes():
            print(json.dumps(play()), flush=True)  # before Ray shuts down
            serve.shutdown()
        os.chdir("/")


if __name__ == "__main__":
    main()
