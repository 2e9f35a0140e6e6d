#!/usr/bin/env python3
"""Writes tests/reference/prompts.json: what transformers makes of the conversations of makers/conversations.py with
Qwen's templates, of those that llama.cpp's sources carry.

    pip install transformers numpy cffi jinja2 rich typer
    PYTHONPATH=. python tests/reference/make_prompts.py

The file has each text once a line: a text is a list of numbers of lines. What pymtp makes is written beside it where
transformers refuses a conversation, for a reader to judge: a test holds pymtp to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "vendor")]

from helpers.templates import QWEN, render, render_chat, template  # noqa: E402
from makers.conversations import CONVERSATIONS, Conversation  # noqa: E402

from pymtp.model.model import Model  # noqa: E402

FILE = Path(__file__).with_name("prompts.json")


class Lines:
    """All lines of all texts, each once."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {}

    def numbers(self, text: str | None) -> list[int] | None:
        """A text by its lines; None for none."""
        return None if text is None else [self.all.setdefault(line, len(self.all)) for line in text.split("\n")]


def by_transformers(tokenizer: Any, source: str, conversation: Conversation) -> tuple[str | None, str]:
    """The text, or None and why there is none."""
    messages, tools, variables = conversation
    try:
        options = {"chat_template": source, "tokenize": False, "add_generation_prompt": True, **(variables or {})}
        return tokenizer.apply_chat_template(messages, tools=tools, **options), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def main() -> None:
    """Renders everything, and writes the file."""
    model = Model(vocab_only=True)
    words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    special = {"bos_token": model.bos_token, "eos_token": model.eos_token}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    lines = Lines()
    found: dict[str, Any] = {}
    for name in QWEN:
        source = template(name)
        for about, conversation in CONVERSATIONS.items():
            theirs, why = by_transformers(tokenizer, source, conversation)
            ours, chat = render(model, source, conversation), render_chat(model, source, conversation)
            entry: dict[str, Any] = {"transformers": lines.numbers(theirs)} if theirs is not None else {"refused": why}
            if ours != theirs:
                entry["render"] = lines.numbers(ours)
            if chat != ours:
                entry["chat"] = lines.numbers(chat)
            found.setdefault(name, {})[about] = entry
    head = {"transformers": transformers.__version__, "special": special}
    parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    parts.append('"lines": ' + json.dumps(list(lines.all), indent=0))
    texts = [
        f'"{name}": {{\n'
        + ",\n".join(f"{json.dumps(about)}: {json.dumps(entry)}" for about, entry in each.items())
        + "}"
        for name, each in found.items()
    ]
    parts.append('"prompts": {\n' + ",\n".join(texts) + "}")
    FILE.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
