"""The settings of a chat, which /set shows and changes: sampling, and whether the model thinks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pymtp.chat.sampling_defaults import normalize_sampling
from pymtp.cli.options import parse_count
from pymtp.errors import InvalidRequestError
from pymtp.samplers import OTHER_NAMES, SAMPLER_RULES
from pymtp.sampling import SamplingParams

THINKING = "thinking"
NAMES = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", THINKING, "thinking_budget", "thinking_end"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n", "stop", "draft_tokens"),
    *SAMPLER_RULES,
    "samplers",
)
# the names of these settings on the command line
_OPTIONS = {
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_last_n",
    "reasoning_budget": "thinking_budget",
    "reasoning_budget_message": "thinking_end",
    "top_nsigma": "top_n_sigma",
    "dynatemp_exp": "dynatemp_exponent",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "sampler_seq": "samplers",
}
_WORDS: dict[str, Any] = {"none": None, "random": None, "on": True, "off": False}
_NO_LIMIT = ("max_tokens", "thinking_budget")  # settings for which -1 means none, as on the command line
_COUNTS = (*_NO_LIMIT, "penalty_last_n")  # settings that count tokens, and so take 4k, as on the command line


class ChatSettings:
    """The settings of a chat.

    params: the sampling. thinking: whether the template is told to let the model think; None to leave it to the
        template.
    """

    def __init__(self, params: SamplingParams, thinking: bool | None) -> None:
        """params, thinking: the settings at the beginning, which the value "default" restores."""
        self.params, self.thinking = params, thinking
        self._defaults = self._values()

    @property
    def template_kwargs(self) -> dict[str, object]:
        """Return the variables of the chat template."""
        return {} if self.thinking is None else {"enable_thinking": self.thinking}

    def set(self, name: str, text: str) -> str:
        """Change a setting. Return its name and its new value, to be shown.

        Raises InvalidRequestError for an unknown name or an invalid value.

        name: its name in SamplingParams, or that of the option of the command line.
        text: "default", "none", JSON, or a text without quotes. A number of tokens may be 4k or 1M.
        """
        name = name.lstrip("-").replace("-", "_").lower()
        name = _OPTIONS.get(name, OTHER_NAMES.get(name, name))
        if name not in NAMES:
            raise InvalidRequestError(f"there is no setting {name!r:.40}: /set shows all")
        value = self._defaults[name] if text == "default" else _read_value(name, text)
        if name == THINKING:
            if value is not None and not isinstance(value, bool):
                raise InvalidRequestError(f"thinking {text!r:.40} must be on, off or default")
            self.thinking = value
        else:
            value = None if name in _NO_LIMIT and value == -1 else value
            try:
                self.params = replace(self.params, **normalize_sampling({name: value}))
            except InvalidRequestError as error:
                raise InvalidRequestError(str(error).replace("or None", "or none"), name) from error
        return f"{name}: {_shown(name, self._values()[name])}"

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name of each setting, its value, and its default if that is another."""
        values = self._values()
        for name in NAMES:
            value, default = (_shown(name, each[name]) for each in (values, self._defaults))
            yield name, value, "" if value == default else f"default: {default}"

    def _values(self) -> dict[str, Any]:
        return {name: self.thinking if name == THINKING else getattr(self.params, name) for name in NAMES}


def _read_value(name: str, text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if name in _COUNTS and (count := parse_count(text)) is not None:
        return count
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _shown(name: str, value: object) -> str:
    if value is None:
        return {"seed": "random", THINKING: "default", "samplers": "default", "draft_tokens": "default"}.get(
            name, "none"
        )
    if isinstance(value, bool):
        return "on" if value else "off"
    return json.dumps(value, ensure_ascii=False)
