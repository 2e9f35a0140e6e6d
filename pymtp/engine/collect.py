"""What came of prompts, once their requests have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pymtp.engine.request import Completion, Request
from pymtp.errors import PymtpError


def collected(requests: Sequence[Request]) -> list[Completion]:
    """The completion of each prompt, once all requests have ended. Raises the first error, with what came of each."""
    found: list[Completion | PymtpError] = []
    i = 0
    while i < len(requests):
        group = requests[i : i + requests[i].params.n]
        i += len(group)
        failed = [request.failure() for request in group if request.error is not None]
        first, *others = (request.completion for request in group)
        found.append(failed[0] or first if failed else replace(first, others=tuple(others)) if others else first)
    completions = [one for one in found if isinstance(one, Completion)]
    if len(completions) < len(found):
        raise _with_completions(found)
    return completions


def _with_completions(found: list[Completion | PymtpError]) -> PymtpError:
    """The first error by itself, for one that held itself would be freed late; and what came of each prompt."""
    first = next(one for one in found if isinstance(one, PymtpError))
    raised = type(first)(*first.args)
    raised.completions = tuple(found)
    return raised
