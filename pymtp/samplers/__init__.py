"""The samplers that change a distribution beside top-k, top-p and min-p: their names and order, and valid values."""

from pymtp.samplers.names_elsewhere import SAMPLING_NAMES_ELSEWHERE
from pymtp.samplers.order import SAMPLERS, read_order
from pymtp.samplers.processor import LogitsProcessor, RowProcessor, read_processors
from pymtp.samplers.values import DEFAULT_BREAKERS, OTHER_NAMES, SAMPLER_RULES, Rule, read_breakers

__all__ = [
    "DEFAULT_BREAKERS",
    "OTHER_NAMES",
    "SAMPLERS",
    "SAMPLER_RULES",
    "SAMPLING_NAMES_ELSEWHERE",
    "LogitsProcessor",
    "RowProcessor",
    "Rule",
    "read_breakers",
    "read_order",
    "read_processors",
]
