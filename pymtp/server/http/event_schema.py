"""What the schema says of streams of events."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def event_stream(about: str, *models: type[BaseModel], done: bool = True) -> dict[str, Any]:
    """The content of an answer that is a stream: what the data of each event are, as JSON.

    models: one of these; any object where there are none. done: the last event's data are `[DONE]`.
    """
    each = [_inlined(model.model_json_schema(mode="serialization")) for model in models] or [{"type": "object"}]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": each} if len(each) > 1 else each[0],
    }
    event = {
        "type": "object",
        "description": about,
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [data, {"const": "[DONE]"}]} if done else data,
        },
        "required": ["data"],
    }
    return {"text/event-stream": {"schema": event}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references: a schema within text has no place to refer to."""
    named = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            name = value.get("$ref", "").rpartition("/")[2]
            return resolve(named[name]) if name else {key: resolve(item) for key, item in value.items()}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    found: dict[str, Any] = resolve(schema)
    return found
