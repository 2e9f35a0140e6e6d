"""The function generate: load a model, generate, and keep the model loaded for the next call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, overload

from pymtp.engine.prepare import Prompt
from pymtp.engine.request import Completion
from pymtp.llm import LLM
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.native.process import in_children
from pymtp.options import OPTION_NAMES, LLMOptions, read_options
from pymtp.samplers import SAMPLING_NAMES_ELSEWHERE
from pymtp.sampling import SamplingParams
from pymtp.validation import absolute_path, is_hub_name, refuse_unknown

_last: tuple[LLMOptions, LLM] | None = None
_last_lock = threading.RLock()


@in_children
def _replace_lock() -> None:
    global _last_lock
    _last_lock = threading.RLock()


def _with_absolute_paths(options: LLMOptions) -> LLMOptions:
    """Return the options with absolute paths, so that they stay equal when the process changes its folder."""
    model = options.model
    if isinstance(model, str) and model and not is_hub_name(model):
        model = absolute_path(model)
    head = None if options.head is None else absolute_path(str(options.head))
    return replace(options, model=model, head=head, lora=[(absolute_path(path), n) for path, n in options.adapters])


def _equal(one: LLMOptions, other: LLMOptions) -> bool:
    try:
        return one == other
    except ValueError:  # a NumPy array in chat_template_kwargs has no truth value
        return False


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
    names = {field.name for field in fields(SamplingParams)} - OPTION_NAMES  # both have draft_tokens: here it is LLM's
    refuse_unknown(
        "generate()", keywords, {"model", *names, *OPTION_NAMES}, {**OPTION_NAMES_ELSEWHERE, **SAMPLING_NAMES_ELSEWHERE}
    )
    params = SamplingParams(**{name: keywords.pop(name) for name in names & keywords.keys()})
    options = _with_absolute_paths(read_options("generate()", keywords.pop("model", None), keywords))
    with _last_lock:
        if _last is None or _last[1].closed or not _equal(_last[0], options):
            options.check_machine()  # raises before the loaded model is closed
            if _last is not None:
                _last[1].close()
            _last = None
            _last = (options, LLM.from_options(options))
        return _last[1].generate(prompts, params)  # under the lock: another thread would close this LLM to load its own
