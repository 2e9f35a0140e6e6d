"""The keywords of JSON schemas, the lookup of references, and the report of keywords that no grammar can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import unquote

ANNOTATIONS = {  # keywords that do not restrict the values
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "id", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "$dynamicAnchor"),
    *("discriminator", "xml", "externalDocs", "contentEncoding", "contentMediaType", "contentSchema"),
}
TYPE_KEYWORDS = {  # keywords that restrict the values of a type
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "unevaluatedProperties"),
    },
    "array": {
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains"),
    },
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
# Keywords that combine schemas.
COMBINERS = {
    *("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "nullable"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
}
# Keywords of plain schemas only, each with Several values or patterns that are not allowed. No JSON document has them,
# because Combiner removes what it does not know.
EXCLUDED_VALUES, EXCLUDED_PATTERNS = "$excludedValues", "$excludedPatterns"
PLAIN_KEYWORDS = {"type", "const", "enum"}.union(*TYPE_KEYWORDS.values())  # all others
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: is_whole_number(value),
    "number": lambda value: is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


class SchemaError(ValueError):
    """A malformed schema, or one that no grammar can express."""


class NoValueError(SchemaError):
    """A schema that no value fulfils."""


class Several(tuple[Any, ...]):
    """Values of one keyword from several schemas, which must all hold."""

    @classmethod
    def of(cls, value: object) -> Several:
        """Return the values of a keyword, of which there may be one."""
        return value if isinstance(value, Several) else cls((value,))

    def joined(self, others: Several) -> Several:
        """Return these values and those of the others that are not among them."""
        return Several([*self, *(other for other in others if other not in self)])


# strict: a keyword that no grammar can express is refused. weaken: it is left out. lenient: malformed keywords are left
# out, too: clients often cannot change the schemas of their tools.
Mode = Literal["strict", "weaken", "lenient"]


class KeywordReport:
    """The keywords that a grammar leaves out.

    names: the places of the keywords, such as "#/properties/a/uniqueItems".
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.names: dict[str, None] = {}

    def leave_out(self, path: str, keyword: str, reason: str) -> None:
        """Note that a keyword is left out. Raises SchemaError in strict mode."""
        if self.mode == "strict":
            raise SchemaError(f"{path} has the keyword {keyword!r:.40}, which no grammar can express: {reason}")
        self.note(path, keyword)

    def skip_malformed(self, path: str, keyword: str, error: SchemaError) -> None:
        """Note that a malformed keyword is left out. Raises the error unless the mode is lenient."""
        if self.mode != "lenient":
            raise error
        self.note(path, keyword)

    def note_schema(self, path: str) -> None:
        """Note that only the types of a schema are used, or nothing of it."""
        self.names[path] = None

    def note(self, path: str, keyword: str) -> None:
        """Note that a keyword is left out in every mode, because it is an annotation in most schemas."""
        self.names[f"{path}/{keyword}"] = None


def find_ref(root: object, ref: object, path: str) -> object:
    """Return the schema that a reference points to. Raises SchemaError if the document has no such schema."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise SchemaError(f"{path}: $ref {ref!r:.80} does not point into the same document, as '#/$defs/name' does")
    target = root
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and len(name) < 10 and int(name) < len(target):
            target = target[int(name)]
        else:
            raise SchemaError(f"{path}: cannot resolve $ref {ref!r:.80}: there is no {name!r:.40}")
    return target


def is_number(value: object) -> bool:
    """Return whether a value is a JSON number. A bool, which is an int in Python, is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole_number(value: object) -> bool:
    """Return whether a value is a JSON number without a fraction, of any size."""
    return value.is_integer() if isinstance(value, float) else is_number(value)


def types_of(schema: dict[str, Any], path: str) -> list[str]:
    """Return the types in a schema's "type", each once; [] without a "type". Raises SchemaError for unknown types."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if (
        not isinstance(types, list)
        or not all(isinstance(name, str) for name in types)
        or ("type" in schema and not types)
    ):
        raise SchemaError(f"{path}/type must be the name of a type, or a list of such names")
    if unknown := [name for name in types if name not in TYPES]:
        raise SchemaError(f"{path} has the type {unknown[0]!r:.40}, which is none of {', '.join(TYPES)}")
    return list(dict.fromkeys(types))


def non_empty_list(schema: dict[str, Any], keyword: str, path: str) -> list[Any]:
    """Return the value of a keyword that must be a list. Raises SchemaError if it is empty or not a list."""
    values = schema[keyword]
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{path}/{keyword} must be a list that is not empty")
    return values


def read_size(schema: dict[str, Any], keyword: str, path: str) -> int | None:
    """Return the value of a keyword that is a size; None without it. Raises SchemaError for anything else."""
    if keyword not in schema:
        return None
    value = schema[keyword]
    if not is_whole_number(value) or value < 0:
        raise SchemaError(f"{path}/{keyword} must be an integer, 0 or more")
    return int(value)
