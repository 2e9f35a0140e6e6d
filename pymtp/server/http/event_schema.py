"""The schema of event streams."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def event_stream_schema(description: str, *models: type[BaseModel], done: bool = True) -> dict[str, Any]:
    """Return the content of a response that is an event stream, with the schema of the events' data.

    models: the data are JSON of one of these; without models, of any object. done: the last event is `[DONE]`.
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
    """Replace references by their schemas: contentSchema cannot refer to components."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return resolve(definitions[name]) if name else {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = resolve(schema)
    return inlined
