"""How a model's makers want it sampled: `general.sampling.*` of its GGUF file, under llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.sampling import SamplingParams
from pymtp.validation import is_real, is_whole, shown

PREFIX = "general.sampling."
# llama.cpp's names (src/llama-arch.cpp, LLM_KV_GENERAL_SAMPLING_*), and those of SamplingParams
_FIELDS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_last_n",
}
# fields of SamplingParams that a server may have a default for
DEFAULTED = {*_FIELDS.values(), "seed", "presence_penalty", "frequency_penalty"}
_WHOLE = {"top_k", "penalty_last_n"}
# of what there is not here: a sampler, and the keys that say how it works where it is on; it is off at 0
_SWITCHED = {"xtc_threshold": "xtc_probability", "mirostat_tau": "mirostat", "mirostat_eta": "mirostat"}
_LIKELIEST_ALONE = 1e-9  # a top_p
CHAT_TEMPERATURE = 0.7  # where a model's file names none


def model_sampling(metadata: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """Read what a file says of sampling: values by the names of SamplingParams, and a note for each key that is left
    out, because no sampler here is meant or the value cannot be.

    metadata: of Model.
    """
    own = {key.removeprefix(PREFIX): text for key, text in metadata.items() if key.startswith(PREFIX)}
    found: dict[str, float] = {}
    notes = []
    for name in [each for each in _FIELDS if each in own]:
        try:
            found |= _checked(_FIELDS[name], own[name])
        except InvalidRequestError as error:
            notes.append(f"{PREFIX}{name} of the model's file is left out: {error}")
    for name, text in sorted(own.items()):
        if name not in _FIELDS and not _is_off(own.get(_SWITCHED.get(name, name), "0")):
            notes.append(
                f"{PREFIX}{name}={shown(text)} of the model's file is left out: pymtp takes {', '.join(_FIELDS)}"
            )
    return found, notes


def chat_params(defaults: Mapping[str, float]) -> SamplingParams:
    """How a chat is sampled that is given no params. defaults: of `model_sampling`."""
    values: dict[str, Any] = {"max_tokens": None, "temperature": CHAT_TEMPERATURE, **defaults}
    return SamplingParams(**values)


def taken(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as SamplingParams takes them. llama.cpp and clients of servers mean all tokens by a top_k of -1, any
    seed by -1, and the likeliest token alone by a top_p of 0."""
    found = dict(values)
    for name, other in (("top_k", 0), ("seed", None)):
        if is_whole(found.get(name), -1, -1):
            found[name] = other
    if is_real(top_p := found.get("top_p")) and top_p == 0:
        found["top_p"] = _LIKELIEST_ALONE
    return found


def check_defaults(name: str, defaults: object) -> None:
    """Raise InvalidRequestError for what is no mapping of sampling fields of SamplingParams to values that they can
    have. name: what callers call it."""
    if not isinstance(defaults, Mapping) or not set(defaults) <= DEFAULTED:
        raise InvalidRequestError(
            f"{name}={shown(defaults)} must be a mapping of some of {', '.join(sorted(DEFAULTED))}", name
        )
    try:
        SamplingParams(**taken(defaults))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}", name) from error


def _checked(name: str, text: str) -> dict[str, float]:
    """One value. Raises InvalidRequestError for what is no number, and for one that is out of range."""
    try:
        value: float = float(text)
        if name in _WHOLE and value == int(value):  # which may be written as a float
            value = int(value)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{shown(text)} must be a number") from error
    found = taken({name: value})
    SamplingParams(**found)
    return found


def _is_off(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
