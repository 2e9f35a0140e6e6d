"""The JSON text of values, as GBNF."""

from __future__ import annotations

import json
import re

from pymtp.grammar.characters import quoted


def literal(value: object) -> str:
    """Return GBNF that allows exactly the JSON text of a value."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return quoted(re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text))
