"""Checks of an LLM's keywords before a model is downloaded or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymtp.chat import read_template, read_variables
from pymtp.context.host_memory import read_cache_bytes
from pymtp.context.options import check_keywords
from pymtp.model.options import ModelOptions, read_options
from pymtp.model.rope import ROPE_OPTION_NAMES, RopeOptions
from pymtp.validation import read_bool


def read_keywords(keywords: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
    """Check the keywords of an LLM without reading its model files, and return them in a normal form.

    here: False if the LLM will run on another machine, which may have other GPUs and buffer types.

    Raises InvalidRequestError for a value that cannot be valid.
    """
    RopeOptions(**{name: keywords[name] for name in keywords.keys() & ROPE_OPTION_NAMES})
    check_keywords(keywords)
    read_cache_bytes(keywords.get("cache_bytes"))
    read_bool("cache_prompt", keywords.get("cache_prompt", True))
    read = read_options(keywords, here=here)
    if keywords.get("chat_template_kwargs") is not None:
        read["chat_template_kwargs"] = read_variables(keywords["chat_template_kwargs"])
    if keywords.get("chat_template") is not None:
        # the template's text replaces its path: another machine may not have the file
        read["chat_template"] = read_template(keywords["chat_template"])
    return read


def check_files(keywords: Mapping[str, Any]) -> None:
    """Raise ModelLoadError for a head or an adapter whose file is missing or cannot be read."""
    ModelOptions(head=keywords.get("head"), lora=keywords.get("lora", ())).check_files()
