"""Requests for a prompt alone: bodies of /v1/completions with max_tokens 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pymtp.engine.request import Completion
from pymtp.openai.generate_request import Output


def is_prompt_only(body: Mapping[str, Any]) -> bool:
    """Return whether a body of /v1/completions asks for the prompt alone: the answer has no text beside `echo`."""
    asked = body.get("max_tokens")  # 0.0 is a whole number in JSON; False is none
    return asked == 0 and asked is not False and body.get("max_completion_tokens") is None


def without_text(output: Output) -> Output:
    """Return the output without its token: the engine generates at least one."""
    return Output(without_tokens(output.completion), None, "length")


def without_tokens(done: Completion) -> Completion:
    """Return a completion without its token."""
    stats = replace(done.stats, completion_tokens=0)
    logprobs = None if done.logprobs is None else done.logprobs[:0]
    return replace(done, text="", token_ids=[], finish_reason="length", logprobs=logprobs, stats=stats)
