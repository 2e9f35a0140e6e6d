"""Chat templates of llama.cpp's sources, and prompts made with them."""

from __future__ import annotations

import tarfile
from functools import cache

from index import fetch
from makers.conversations import Conversation
from sources import Paths, Pin

from pymtp.chat import ChatTemplate, template_messages
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

FOLDER = "models/templates"
QWEN = (
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
)


@cache
def templates() -> dict[str, str]:
    """Return all templates by name: from the build's files, or else from the source distribution of llama.cpp."""
    paths = Paths.default()
    laid_out = paths.target / FOLDER
    if laid_out.is_dir():
        return {file.stem: file.read_text(encoding="utf-8") for file in laid_out.glob("*.jinja")}
    found = {}
    with tarfile.open(fetch(paths, Pin.read(paths.requirements))) as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            if folder.endswith(f"/llama.cpp/{FOLDER}") and name.endswith(".jinja"):
                file = archive.extractfile(member)
                assert file is not None
                found[name.removesuffix(".jinja")] = file.read().decode()
    return found


def template(name: str) -> str:
    """Return one template."""
    return templates()[name]


@cache
def _compiled(model: Model, source: str) -> ChatTemplate:
    return ChatTemplate(model, source)


def render(model: Model, source: str, conversation: Conversation) -> str | None:
    """Render messages as they are; None where the template refuses them."""
    messages, tools, variables = conversation
    try:
        return _compiled(model, source).render(messages, tools=tools, chat_template_kwargs=variables)
    except InvalidRequestError:
        return None


def render_chat(model: Model, source: str, conversation: Conversation) -> str | None:
    """Render messages in OpenAI's form, as a chat does; None where they or the template refuse."""
    try:
        messages = template_messages(conversation.messages)
    except InvalidRequestError:
        return None
    return render(model, source, conversation._replace(messages=messages))
