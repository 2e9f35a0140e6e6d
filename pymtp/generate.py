"""One call that loads a model, generates, and keeps the model for the next call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from inspect import signature
from typing import Any, overload

from pymtp.engine.prefix_files import Prompt
from pymtp.engine.request import Completion
from pymtp.llm import LLM
from pymtp.model.options import NAMES as MODEL_OPTIONS
from pymtp.model.rope import NAMES as ROPE_OPTIONS
from pymtp.native.locking import in_children
from pymtp.options import find_files, read_keywords
from pymtp.sampling import SamplingParams
from pymtp.validation import is_hub_name, whole

_last: tuple[dict[str, Any], LLM] | None = None
_last_lock = threading.RLock()


@in_children
def _take_turns_anew() -> None:
    global _last_lock
    _last_lock = threading.RLock()


def _keywords(of: Callable[..., Any]) -> set[str]:
    return set(signature(of).parameters) - {"self"}


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return one == other
    except ValueError:  # of arrays, which no keyword takes
        return False


def _whole_paths(keywords: dict[str, Any]) -> dict[str, Any]:
    """With paths that mean the same wherever the process goes. What is no path stays, for LLM to say so."""
    found = dict(keywords)
    if isinstance(model := found.get("model"), (str, os.PathLike)):
        with suppress(TypeError):  # of an odd __fspath__
            path = os.fspath(model)
            if isinstance(path, str) and path and not is_hub_name(path):
                found["model"] = whole(path)
    if found.get("head") is not None:
        found["head"] = whole(found["head"])
    if "lora" in found:
        found["lora"] = tuple((whole(path), scale) for path, scale in found["lora"])
    return found


@overload
def generate(prompts: Prompt, **keywords: Any) -> Completion: ...
@overload
def generate(prompts: Sequence[Prompt], **keywords: Any) -> list[Completion]: ...


def generate(prompts: Prompt | Sequence[Prompt], **keywords: Any) -> Completion | list[Completion]:
    """`LLM(…).generate(prompts, SamplingParams(…))` in one call: takes the keywords of both. The model stays loaded for
    the next call with the same LLM keywords. A call with others closes it first: there is never more than one. Calls
    from several threads take turns.

    Raises TypeError for a keyword of neither, and what LLM, SamplingParams and LLM.generate raise.
    """
    global _last
    known = _keywords(LLM.__init__) - {"placing"} | MODEL_OPTIONS | ROPE_OPTIONS
    names = {field.name for field in fields(SamplingParams)} - known  # draft_tokens is the LLM's
    params = SamplingParams(**{name: keywords.pop(name) for name in names & keywords.keys()})
    if unknown := keywords.keys() - known:
        raise TypeError(f"generate() got unexpected keywords: {', '.join(sorted(unknown))}")
    with _last_lock:
        wanted = _whole_paths(read_keywords(keywords))
        if _last is None or _last[1].closed or not _equal(_last[0], wanted):
            find_files(wanted)  # before the model that is there goes
            if _last is not None:
                _last[1].close()
            _last = None
            _last = (wanted, LLM(**wanted))
        return _last[1].generate(prompts, params)  # within the lock: another thread may ask for another model
