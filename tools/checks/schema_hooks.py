"""Hooks of http_schema.py for Schemathesis: a check, and counts of responses by status."""

from __future__ import annotations

import atexit
from collections import Counter

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, HookContext, Response

OF_TYPES = {"invalid_type", "invalid_json", "invalid_content_type"}
_outcomes: Counter[tuple[str, int]] = Counter()


@schemathesis.check  # type: ignore[untyped-decorator]
def refused_for_its_meaning(ctx: CheckContext, response: Response, case: Case) -> None:
    """Check that a body that the schema allows is not refused for its types."""
    if response.status_code != 400 or case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    error = response.json()["error"]
    assert error.get("code") not in OF_TYPES, f"the schema allows what the server refuses: {error['message']}"


@schemathesis.hook  # type: ignore[untyped-decorator]
def after_call(context: HookContext, case: Case, response: Response) -> None:
    _outcomes[case.operation.label, response.status_code] += 1


@atexit.register
def _tell() -> None:
    for (label, status), times in sorted(_outcomes.items()):
        print(f"{label}: {status} {times} times")
