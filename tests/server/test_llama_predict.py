"""Tests of /predict, the path of Vertex AI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from helpers.servers import LONG, Server

CHAT: dict[str, Any] = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "a"}]}
CHAT |= {"max_tokens": 4, "temperature": 0}


def predict(server: Server, *instances: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/predict", json={"instances": instances}, timeout=LONG, **more)


def test_each_instance_has_the_answer_of_its_path(server: Server) -> None:
    text = {"@requestFormat": "/v1/completions", "prompt": "import", "max_tokens": 4, "temperature": 0}
    chat, completion, embedding = predict(server, CHAT, text, {"@requestFormat": "embeddings", "input": "a"}).json()[
        "predictions"
    ]
    asked = {name: value for name, value in CHAT.items() if name != "@requestFormat"}
    alone = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=LONG).json()
    assert chat["choices"] == alone["choices"]
    assert completion["object"] == "text_completion"
    assert len(embedding["data"][0]["embedding"]) == server.llm.model.n_embd


@pytest.mark.parametrize(
    ("instance", "param"),
    [
        ({}, "@requestFormat"),
        (CHAT | {"@requestFormat": "x"}, "@requestFormat"),
        (CHAT | {"@requestFormat": 1}, "@requestFormat"),
        (CHAT | {"stream": True}, "stream"),
        (CHAT | {"max_tokens": "x"}, "max_tokens"),
    ],
)
def test_wrong_instance_fails_alone(server: Server, instance: dict[str, Any], param: str) -> None:
    wrong, right = predict(server, instance, CHAT).json()["predictions"]
    assert wrong["error"]["param"] == param
    assert right["choices"][0]["message"]["role"] == "assistant"


def test_instance_that_fails_with_an_unknown_error_fails_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.app.state.service, "check_model", lambda name: {}[name] if name == "wrong" else None)
    wrong, right = predict(server, CHAT | {"model": "wrong"}, CHAT).json()["predictions"]
    assert wrong["error"]["code"] == "internal_error"
    assert right["choices"]


def test_fields_beside_the_instances_are_named(server: Server) -> None:
    answer = httpx.post(f"{server.url}/predict", json={"instances": [], "parameters": {"a": 1}}, timeout=LONG)
    assert (answer.json(), answer.headers["x-pymtp-ignored"]) == ({"predictions": []}, "parameters")


def test_instances_need_the_key_of_the_request(new_server: Callable[..., Server]) -> None:
    server = new_server(api_keys=("k",)).ready()
    assert predict(server, CHAT).status_code == 401
    answer = predict(server, CHAT, headers={"Authorization": "Bearer k"}).json()
    assert "choices" in answer["predictions"][0]


@pytest.mark.parametrize("body", [{}, {"instances": 1}, {"instances": [1]}, {"instances": [CHAT] * 129}])
def test_body_without_instances_is_refused(server: Server, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{server.url}/predict", json=body, timeout=LONG)
    assert (answer.status_code, answer.json()["error"]["param"].partition("[")[0]) == (400, "instances")
