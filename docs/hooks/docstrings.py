"""Make Markdown of docstrings: a list of the fields and arguments, which they have as lines `name: meaning`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

NAMES = re.compile(r"^(?=[a-z_]\w*(?:, [a-z_]\w*)*: )", flags=re.M)
WORDS = re.compile(r"(`[^`]*`)")  # code, which has stars as they are


class MarkdownDocstrings(Extension):
    """Change the docstring of each object that is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Begin a list item with each line that begins with names and a colon."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(_markdown(text) for text in obj.docstring.value.split("\n\n"))


def _markdown(paragraph: str) -> str:
    if paragraph.startswith("    "):  # an example
        return paragraph
    paragraph = "".join(part if part.startswith("`") else part.replace("*", r"\*") for part in WORDS.split(paragraph))
    if not NAMES.match(paragraph):
        return paragraph
    items = [" ".join(item.split()).split(": ", 1) for item in NAMES.split(paragraph) if item.strip()]
    return "\n".join(f"- `{names}`: {meaning}" for names, meaning in items)
