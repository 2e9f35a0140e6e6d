"""The completions of several prompts, collected from their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pymtp.engine.request import Completion, Request
from pymtp.errors import PymtpError


def collect_completions(requests: Sequence[Request]) -> list[Completion]:
    """Return the completion of each prompt, once all requests have ended.

    Raises a copy of the first error, with the results of all prompts in its `completions`.
    """
    results: list[Completion | PymtpError] = []
    i = 0
    while i < len(requests):
        group = requests[i : i + requests[i].params.n]
        i += len(group)
        errors = [request.error_copy() for request in group if request.error is not None]
        first, *others = (request.completion for request in group)
        results.append(errors[0] or first if errors else replace(first, others=tuple(others)) if others else first)
    completions = [result for result in results if isinstance(result, Completion)]
    if len(completions) < len(results):
        raise _with_completions(results)
    return completions


def _with_completions(results: list[Completion | PymtpError]) -> PymtpError:
    """Return a copy of the first error, with the results of all prompts.

    The results contain the first error itself: without a copy, it would be a reference cycle, which is freed late.
    """
    first = next(result for result in results if isinstance(result, PymtpError))
    raised = type(first)(*first.args)
    raised.completions = tuple(results)
    return raised
