"""The sampling values that a model's GGUF file recommends: `general.sampling.*`, with llama.cpp's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.samplers import SAMPLER_RULES
from pymtp.sampling import SamplingParams
from pymtp.validation import is_real, is_whole, shown

PREFIX = "general.sampling."
# llama.cpp's names (src/llama-arch.cpp, LLM_KV_GENERAL_SAMPLING_*), and for each the name in SamplingParams
_FIELDS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_last_n",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "sequence": "samplers",
}
# fields of SamplingParams that a server may have defaults for
SERVER_DEFAULT_FIELDS = {*_FIELDS.values(), *SAMPLER_RULES, "seed", "presence_penalty", "frequency_penalty"}
_WHOLE = {"top_k", "penalty_last_n"}
# Keys of samplers that pymtp does not have, and the key that switches each sampler on (0: off).
_SWITCHED = {"mirostat_tau": "mirostat", "mirostat_eta": "mirostat"}
# Samplers that clients name in an order although they are off: "infill" for llama.vim, "tfs_z" and "adaptive_p" for
# SillyTavern. The fields that would switch them on are refused or named as ignored.
_ABSENT_SAMPLERS = {"infill", "tfs_z", "adaptive_p"}
_LEAST_P = 1e-9  # a top_p or typical_p that keeps one token only
CHAT_TEMPERATURE = 0.7  # for a model whose file recommends no temperature


def read_sampling_defaults(metadata: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the sampling values that a file recommends, by SamplingParams' names, and notes on ignored keys.

    A key is ignored if pymtp has no such sampler, or if its value is invalid.

    metadata: `Model.metadata` of the file.
    """
    own = {key.removeprefix(PREFIX): text for key, text in metadata.items() if key.startswith(PREFIX)}
    defaults: dict[str, Any] = {}
    notes = []
    for name in [name for name in _FIELDS if name in own]:
        try:
            defaults |= _checked(_FIELDS[name], own[name])
        except InvalidRequestError as error:
            notes.append(f"{PREFIX}{name} of the model's file is ignored: {error}")
    for name, text in sorted(own.items()):
        if name not in _FIELDS and not _is_off(own.get(_SWITCHED.get(name, name), "0")):
            notes.append(
                f"{PREFIX}{name}={shown(text)} of the model's file is ignored: pymtp takes {', '.join(_FIELDS)}"
            )
    return defaults, notes


def default_chat_params(defaults: Mapping[str, Any]) -> SamplingParams:
    """Return the SamplingParams that a chat uses by default. defaults: the values of `read_sampling_defaults`."""
    values: dict[str, Any] = {"max_tokens": None, "temperature": CHAT_TEMPERATURE, **defaults}
    return SamplingParams(**values)


def normalize_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling values of llama.cpp and of server clients in the form that SamplingParams takes.

    There, top_k=-1 means all tokens, seed=-1 a random seed, and a top_p or typical_p of 0 a single token. Negative
    values switch top_n_sigma and dynatemp_range off.
    """
    normalized = dict(values)
    for name, replacement in (("top_k", 0), ("seed", None)):
        if is_whole(normalized.get(name), -1, -1):
            normalized[name] = replacement
    for name in ("top_p", "typical_p"):
        if is_real(p := normalized.get(name)) and p == 0:
            normalized[name] = _LEAST_P
    for name in ("top_n_sigma", "dynatemp_range"):
        if is_real(value := normalized.get(name, 0)) and value < 0:
            normalized[name] = 0.0
    if isinstance(order := normalized.get("samplers"), (list, tuple)):
        absent = [name for name in order if isinstance(name, str) and name in _ABSENT_SAMPLERS]
        normalized["samplers"] = [name for name in order if name not in absent]
    return normalized


def check_sampling_defaults(name: str, defaults: object) -> None:
    """Raise InvalidRequestError unless `defaults` is a mapping of sampling fields of SamplingParams to valid values.

    name: the argument's name, for the message.
    """
    if not isinstance(defaults, Mapping) or not set(defaults) <= SERVER_DEFAULT_FIELDS:
        raise InvalidRequestError(
            f"{name}={shown(defaults)} must be a mapping with keys of {', '.join(sorted(SERVER_DEFAULT_FIELDS))}", name
        )
    try:
        SamplingParams(**normalize_sampling(defaults))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}", name) from error


def _checked(name: str, text: str) -> dict[str, Any]:
    """Read the value of one field. Raises InvalidRequestError if it is not a number, out of range, or no order."""
    if name == "samplers":
        return {name: SamplingParams(samplers=text).samplers}
    try:
        value: float = float(text)
        if name in _WHOLE and value == int(value):  # files may write whole numbers as floats
            value = int(value)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{shown(text)} must be a number") from error
    normalized = normalize_sampling({name: value})
    SamplingParams(**normalized)
    return normalized


def _is_off(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
