"""Make a list of the fields and arguments of a docstring, which it has as lines `name: meaning`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

NAMES = re.compile(r"^(?=[a-z_]\w*(?:, \w+)*: )", flags=re.M)


class FieldLists(Extension):
    """Change the docstring of each object that is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Begin a list item with each line that begins with names and a colon."""
        if not obj.docstring:
            return
        paragraphs = obj.docstring.value.split("\n\n")
        for i, paragraph in enumerate(paragraphs):
            if NAMES.match(paragraph):
                items = [" ".join(item.split()) for item in NAMES.split(paragraph) if item.strip()]
                paragraphs[i] = "\n".join("- `{}`: {}".format(*item.split(": ", 1)) for item in items)
        obj.docstring.value = "\n\n".join(paragraphs)
