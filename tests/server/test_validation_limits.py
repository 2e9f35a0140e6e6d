"""Tests of bodies with many errors, whose validation must not cost more than that of valid bodies."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pymtp.server.messages.types import MessageRequest
from pymtp.server.openai.types import ChatRequest, CompletionRequest, RequestModel
from pymtp.server.responses.types import ResponseRequest
from pymtp.server.tokenize import DetokenizeRequest

MANY = 1000 * [1.5]
USER: Any = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"model": "m", "messages": MANY}),
        (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": MANY}]}),
        (ChatRequest, {"model": "m", "messages": [USER], "tools": MANY, "stop": MANY}),
        (CompletionRequest, {"prompt": MANY}),
        (CompletionRequest, {"prompt": [MANY]}),
        (MessageRequest, {"model": "m", "max_tokens": 1, "messages": MANY, "tools": MANY, "system": MANY}),
        (MessageRequest, {"model": "m", "max_tokens": 1, "messages": [USER | {"content": MANY}]}),
        (ResponseRequest, {"model": "m", "input": MANY, "tools": MANY, "include": MANY}),
        (ResponseRequest, {"model": "m", "input": [USER | {"content": MANY}]}),
        (DetokenizeRequest, {"tokens": MANY}),
    ],
)
def test_validation_of_a_list_reports_only_the_first_error(kind: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(body)
    assert 1 <= raised.value.error_count() <= 8


def kinds(of: type[BaseModel]) -> list[type[BaseModel]]:
    return [kind for child in of.__subclasses__() for kind in (child, *kinds(child))]


def n_errors(kind: type[BaseModel], name: str, value: object) -> int:
    try:
        kind.model_validate({kind.model_fields[name].alias or name: value})
    except ValidationError as error:
        return error.error_count()
    return 0


def test_no_field_of_a_request_reports_more_than_a_few_errors() -> None:
    mapping: Any = {str(i): {} for i in range(1100)}
    for wrong in ({}, 1.5, math.nan):
        many = 50 * [wrong]
        values = (many, [many], {"a": many}, *([mapping] if wrong == {} else []))
        found = {
            (kind.__name__, name): max(n_errors(kind, name, value) for value in values)
            for kind in kinds(RequestModel)
            for name in kind.__annotations__
        }
        assert {field: n for field, n in found.items() if n > 32} == {}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"model": "m", "messages": [USER], "logit_bias": {f"no {i}": 1 for i in range(2000)}}),
        (ResponseRequest, {"model": "m", "input": "a", "metadata": {f"key {i}": i for i in range(2000)}}),
    ],
)
def test_too_large_mapping_is_refused_before_its_pairs_are_read(kind: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="at most") as raised:
        kind.model_validate(body)
    assert raised.value.error_count() == 1


@pytest.mark.parametrize("stops", [65 * ["a"], ["a" * 1001]])
def test_number_and_length_of_stop_strings_are_limited(stops: list[str]) -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate({"model": "m", "messages": [USER], "stop": stops})
    with pytest.raises(ValidationError):
        MessageRequest.model_validate({"model": "m", "max_tokens": 1, "messages": [USER], "stop_sequences": stops})
