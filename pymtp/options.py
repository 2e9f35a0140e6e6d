"""Keywords of an LLM, looked at before a model is brought or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymtp.chat import read_template, read_variables
from pymtp.context.host_memory import read_cache_bytes
from pymtp.context.options import check_keywords
from pymtp.model.options import ModelOptions, read_options
from pymtp.model.rope import NAMES as ROPE_OPTIONS
from pymtp.model.rope import RopeOptions
from pymtp.validation import flag


def read_keywords(keywords: Mapping[str, Any], *, here: bool = True) -> dict[str, Any]:
    """The keywords, as `read_options` has them. Raises InvalidRequestError for values that they cannot have, as far as
    can be said without the model and without files.

    here: whether they are for this machine, whose GPUs are known.
    """
    RopeOptions(**{name: keywords[name] for name in keywords.keys() & ROPE_OPTIONS})
    check_keywords(keywords)
    read_cache_bytes(keywords.get("cache_bytes"))
    flag("cache_prompt", keywords.get("cache_prompt", True))
    read = read_options(keywords, here=here)
    if keywords.get("chat_template_kwargs") is not None:
        read["chat_template_kwargs"] = read_variables(keywords["chat_template_kwargs"])
    if keywords.get("chat_template") is not None:
        # its text: the file may be on this machine only
        read["chat_template"] = read_template(keywords["chat_template"])
    return read


def find_files(keywords: Mapping[str, Any]) -> None:
    """Raise ModelLoadError for a head or adapters that are not there or cannot be read."""
    ModelOptions(head=keywords.get("head"), lora=keywords.get("lora", ())).find_files()
