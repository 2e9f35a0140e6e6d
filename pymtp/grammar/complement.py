"""The opposite of a schema, where schemas can express it."""

from __future__ import annotations

from typing import Any

from pymtp.grammar.keywords import ANNOTATIONS, EXCLUDED_PATTERNS, EXCLUDED_VALUES, TYPES, Several

# Keywords, each with the keyword of the opposite bound, and what is added to the value of a size.
_OPPOSITES = {
    "minimum": ("exclusiveMaximum", 0, "number"),
    "maximum": ("exclusiveMinimum", 0, "number"),
    "exclusiveMinimum": ("maximum", 0, "number"),
    "exclusiveMaximum": ("minimum", 0, "number"),
    "minLength": ("maxLength", -1, "string"),
    "maxLength": ("minLength", 1, "string"),
    "minItems": ("maxItems", -1, "array"),
    "maxItems": ("minItems", 1, "array"),
}


def complement(schema: object) -> list[object] | None:
    """Return schemas of which one is valid for a value, if and only if the value is not valid for `schema`.

    A few values that are valid for neither are left out: objects only are followed where a schema has properties.
    EXCLUDED_VALUES and EXCLUDED_PATTERNS are keywords of the result. Returns None if schemas cannot
    express the opposite.
    """
    if isinstance(schema, bool):
        return [not schema]
    if not isinstance(schema, dict):
        return None
    parts: list[object] = []
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS:
            continue
        opposite = _opposite(keyword, value, schema)
        if opposite is None:
            return None
        parts += opposite
    return parts


def _opposite(keyword: str, value: Any, schema: dict[str, Any]) -> list[object] | None:
    match keyword:
        case "type":
            given = value if isinstance(value, list) else [value]
            names = [name for name in TYPES if name not in given and name != "integer"]
            names = [name for name in names if name != "number" or "integer" not in given]
            return [{"type": names}] if names else []
        case "const":
            return [{EXCLUDED_VALUES: Several([value])}]
        case "enum" if isinstance(value, list):
            return [{EXCLUDED_VALUES: Several(value)}]
        case "pattern" if isinstance(value, str):
            return [{"type": "string", EXCLUDED_PATTERNS: Several([value])}]
        case "required" if isinstance(value, list):
            return [{"type": "object", "properties": {name: False}} for name in value if isinstance(name, str)]
        case "properties" if isinstance(value, dict):
            cases: list[object] = []
            for name, part in value.items():
                if (others := complement(part)) is None:
                    return None
                cases += [{"type": "object", "properties": {name: other}, "required": [name]} for other in others]
            return cases
        case "not":
            return [value]
        case "allOf" if isinstance(value, list):
            each = [complement(part) for part in value]
            return None if None in each else [one for part in each for one in part or ()]
        case "anyOf" | "oneOf" if isinstance(value, list):
            each = [complement(part) for part in value]
            return None if None in each else [{"allOf": [{"anyOf": part} if part else False for part in each]}]
    if keyword in _OPPOSITES and isinstance(value, (int, float)) and not isinstance(value, bool):
        other, step, kind = _OPPOSITES[keyword]
        return [{"type": kind, other: value + step}] if value + step >= 0 or kind == "number" else []
    return None
