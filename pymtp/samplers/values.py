"""Valid values of the samplers' parameters, with llama.cpp's names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pymtp.samplers.names_elsewhere import SAMPLING_NAMES_ELSEWHERE
from pymtp.validation import is_real, is_text, is_whole

DEFAULT_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's, where DRY ends repetitions
MAX_BREAKERS = 32  # each is searched for in all tokens of a vocabulary
MAX_BREAKER = 100  # characters
_MAX_VALUE = 1e30
# other clients' names of fields: llama.cpp's command line, Kobold, Aphrodite, TabbyAPI
OTHER_NAMES = {name: SAMPLING_NAMES_ELSEWHERE[name] for name in ("typ_p", "typical", "nsigma", "dry_range")}


class Rule(NamedTuple):
    """A rule for the values of a field, and its words for an error message."""

    holds: Callable[[Any], bool]
    wanted: str


def _real(low: float, high: float, wanted: str) -> Rule:
    return Rule(lambda value: is_real(value) and low <= value <= high, wanted)


_POSITIVE = _real(0, _MAX_VALUE, "from 0 to 1e30")
_PROBABILITY = _real(0, 1, "from 0 to 1")

SAMPLER_RULES = {
    "dry_multiplier": _POSITIVE,
    "dry_base": _real(1, _MAX_VALUE, "from 1 to 1e30"),
    "dry_allowed_length": Rule(lambda value: is_whole(value, 0, 2**31 - 1), "a whole number, 0 or more"),
    "dry_penalty_last_n": Rule(lambda value: is_whole(value, -1), "a whole number, -1 or more"),
    "dry_sequence_breakers": Rule(
        lambda value: len(value) <= MAX_BREAKERS and all(each and is_text(each, MAX_BREAKER) for each in value),
        f"at most {MAX_BREAKERS} strings of 1 to {MAX_BREAKER} characters",
    ),
    "top_n_sigma": _POSITIVE,
    "typical_p": Rule(lambda value: is_real(value) and 0 < value <= 1, "above 0 and at most 1"),
    "xtc_probability": _PROBABILITY,
    "xtc_threshold": _PROBABILITY,
    "dynatemp_range": _POSITIVE,
    "dynatemp_exponent": _POSITIVE,
}


def read_breakers(value: object) -> object:
    """Return DRY's breakers as a tuple.

    value: a list, one breaker, or the text of a list as text-generation-webui has it: JSON, with or without brackets.
        Anything else is returned as the only entry of a tuple.
    """
    if isinstance(value, str) and value[:1] in ('"', "["):
        try:
            value = json.loads(value if value.startswith("[") else f"[{value}]")
        except (ValueError, RecursionError):
            return (value,)
    return listed(value)


def listed(value: object) -> tuple[object, ...]:
    """Return the entries of a list or another iterable; anything else, text included, as the only entry."""
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        return (value,)
    try:
        return tuple(value)
    except TypeError:  # a NumPy array without dimensions
        return (value,)
