"""The OpenAPI schema of event streams."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def event_stream_schema(description: str, *models: type[BaseModel], done: bool = True) -> dict[str, Any]:
    """Return the `content` entry of a response that is an event stream, for the OpenAPI schema.

    description: the description of the events.
    models: the data of each event are the JSON of one of these models; without models, they may be any JSON object.
    done: whether the stream ends with the data `[DONE]`.
    """
    schemas = [_inlined(model.model_json_schema(mode="serialization")) for model in models] or [{"type": "object"}]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0],
    }
    event = {
        "type": "object",
        "description": description,
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [data, {"const": "[DONE]"}]} if done else data,
        },
        "required": ["data"],
    }
    return {"text/event-stream": {"schema": event}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace each reference by the schema that it refers to, because contentSchema allows no references."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return resolve(definitions[name]) if name else {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined
