"""Bodies of requests with images, for the tests of the server."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from helpers.picture_files import data_url, picture

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
RED = picture()
BASE64 = base64.b64encode(RED).decode()
TEXT = {"type": "text", "text": "What is it?"}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
LIMITS = {"max_tokens": 4, "temperature": 0}


def image(url: str = data_url(RED)) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()
