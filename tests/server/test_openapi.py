"""Tests of the server's OpenAPI schema: its names, the errors of each API, and when it is made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Event
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from helpers.servers import LONG, Server

from pymtp import LLM
from pymtp.server.app import create_app
from pymtp.server.settings import ServerSettings


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return create_app(ServerSettings(), LLM).openapi()


def test_each_component_is_named_by_its_own_class(schema: dict[str, Any]) -> None:
    """FastAPI names two classes of one name by their modules, and clients that are made from the schema show that."""
    names = schema["components"]["schemas"]
    assert [name for name in names if "__" in name] == []
    assert {*re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema))} <= names.keys()


def test_errors_are_described_in_the_form_of_their_api(schema: dict[str, Any]) -> None:
    forms = {"/api/": "OllamaErrorBody", "/v1/messages": "MessageErrorBody"}
    for path, methods in schema["paths"].items():
        if path.endswith("/health"):  # its 503 is no error
            continue
        form = next((form for prefix, form in forms.items() if path.startswith(prefix)), "ErrorBody")
        for method in methods.values():
            for status, response in method["responses"].items():
                if status >= "400" and status != "422":  # FastAPI adds 422, which the server never answers
                    described = response["content"]["application/json"]["schema"]["$ref"]
                    assert described == f"#/components/schemas/{form}", f"{path} {status}"
    assert schema["components"]["schemas"]["OllamaErrorBody"]["properties"]["error"]["type"] == "string"


def test_schema_of_a_server_with_keys_is_made_once_and_not_at_the_start(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FastAPI] = []
    monkeypatch.setattr(FastAPI, "openapi", lambda app: made.append(app) or deepcopy(schema))
    app = create_app(ServerSettings(api_keys=("secret",)), LLM)
    assert made == []
    paths = app.openapi()["paths"]
    assert app.openapi()["paths"] is paths
    assert made == [app]
    assert ["security" in paths[path]["get"] for path in ("/v1/models", "/health")] == [True, False]


def test_schema_that_takes_long_delays_no_other_request(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = Event(), Event()
    server = new_server().ready()

    def slow() -> dict[str, Any]:
        begun.set()
        may_end.wait(LONG)
        return {}

    monkeypatch.setattr(server.app, "openapi", slow)
    with ThreadPoolExecutor() as pool:
        schema = pool.submit(httpx.get, f"{server.url}/openapi.json", timeout=LONG)
        try:
            assert begun.wait(LONG)
            assert httpx.get(f"{server.url}/health", timeout=LONG).status_code == 200
            assert not schema.done()
        finally:
            may_end.set()
        assert schema.result().json() == {}
