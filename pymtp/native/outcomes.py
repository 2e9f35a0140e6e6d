"""What came of each sequence of a native call for several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pymtp.errors import PymtpError
from pymtp.native import check, lib

T = TypeVar("T")


def failed(outcomes: Any, k: int) -> PymtpError | None:
    """Why a sequence of a call for several got no token."""
    if outcomes[k].status == lib.PYMTP_OK:
        return None
    try:
        check(lib.pymtp_outcome_error(outcomes + k))
    except PymtpError as error:
        return error
    raise AssertionError("a failed outcome has an error")


def only(found: Mapping[int, T | PymtpError]) -> T:
    """What a call for several sequences brought the only one."""
    (outcome,) = found.values()
    if isinstance(outcome, PymtpError):
        raise outcome
    return outcome
