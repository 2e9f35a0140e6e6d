"""The function generate: load a model, generate, and keep the model loaded for the next call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from inspect import signature
from typing import Any, overload

from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Completion
from pymtp.llm import LLM
from pymtp.model.options import MODEL_OPTION_NAMES
from pymtp.model.rope import ROPE_OPTION_NAMES
from pymtp.native.locking import in_children
from pymtp.options import check_files, read_keywords
from pymtp.sampling import SamplingParams
from pymtp.validation import absolute_path, is_hub_name

_last: tuple[dict[str, Any], LLM] | None = None
_last_lock = threading.RLock()


@in_children
def _replace_lock() -> None:
    global _last_lock
    _last_lock = threading.RLock()


def _keywords(function: Callable[..., Any]) -> set[str]:
    return set(signature(function).parameters) - {"self"}


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return one == other
    except ValueError:  # NumPy arrays have no truth value; no keyword takes them, so LLM refuses them
        return False


def _with_absolute_paths(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords with absolute paths, so that they stay equal when the process changes its folder.

    Values that are not paths are returned unchanged: LLM refuses them.
    """
    found = dict(keywords)
    if isinstance(model := found.get("model"), (str, os.PathLike)):
        with suppress(TypeError):  # __fspath__ may raise it
            path = os.fspath(model)
            if isinstance(path, str) and path and not is_hub_name(path):
                found["model"] = absolute_path(path)
    if found.get("head") is not None:
        found["head"] = absolute_path(found["head"])
    if "lora" in found:
        found["lora"] = tuple((absolute_path(path), scale) for path, scale in found["lora"])
    return found


@overload
def generate(prompts: Prompt, **keywords: Any) -> Completion: ...
@overload
def generate(prompts: Sequence[Prompt], **keywords: Any) -> list[Completion]: ...


def generate(prompts: Prompt | Sequence[Prompt], **keywords: Any) -> Completion | list[Completion]:
    """Generate completions with a model that is loaded at the first call and kept for the next ones.

    A call is `LLM(…).generate(prompts, SamplingParams(…))`. It takes the keywords of LLM and of SamplingParams;
    draft_tokens, which both have, is given to LLM. The model stays loaded for the next call with the same LLM keywords;
    a call with other LLM keywords closes it first, so at most one model is loaded. Calls from several threads run one
    after the other.

    Raises TypeError for a keyword that neither LLM nor SamplingParams has, and the errors of LLM, SamplingParams and
    LLM.generate.
    """
    global _last
    known = _keywords(LLM.__init__) - {"placing"} | MODEL_OPTION_NAMES | ROPE_OPTION_NAMES
    names = {field.name for field in fields(SamplingParams)} - known  # both have draft_tokens: here it is LLM's
    params = SamplingParams(**{name: keywords.pop(name) for name in names & keywords.keys()})
    if unknown := keywords.keys() - known:
        raise TypeError(f"generate() got unexpected keywords: {', '.join(sorted(unknown))}")
    with _last_lock:
        wanted = _with_absolute_paths(read_keywords(keywords))
        if _last is None or _last[1].closed or not _equal(_last[0], wanted):
            check_files(wanted)  # raises before the loaded model is closed
            if _last is not None:
                _last[1].close()
            _last = None
            _last = (wanted, LLM(**wanted))
        return _last[1].generate(prompts, params)  # under the lock: another thread would close this LLM to load its own
