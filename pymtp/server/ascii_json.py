"""JSON answers that can be written whatever text is in them."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse


class AsciiJson(JSONResponse):
    """What clients send comes back in answers: halves of surrogate pairs, too, which JSON may hold and UTF-8 not."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
