"""The endless stream of cases, by weights of their kinds."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from cases import (
    about,
    arithmetic,
    dates_units,
    extraction,
    facts,
    functions,
    infill,
    repeat,
    stories,
    tool_calls,
    turns,
)
from cases.case import THINK_END, Case

_QUESTIONS = (
    arithmetic.make,
    extraction.make,
    facts.make,
    stories.make,
    dates_units.make,
    about.make_about,
    about.make_unknown,
)
KINDS: dict[str, Callable[[random.Random], Case]] = {
    functions.KIND: functions.make,
    arithmetic.KIND: arithmetic.make,
    extraction.KIND: extraction.make,
    tool_calls.KIND: tool_calls.make,
    facts.KIND: facts.make,
    stories.KIND: stories.make,
    dates_units.KIND: dates_units.make,
    infill.KIND: infill.make,
    repeat.KIND: repeat.make,
    turns.KIND: lambda rng: turns.make(rng, _QUESTIONS),
    about.ABOUT: about.make_about,
    about.UNKNOWN: about.make_unknown,
}
# shares of cases, not of tokens
WEIGHTS = {
    functions.KIND: 20.0,
    arithmetic.KIND: 16.0,
    extraction.KIND: 9.0,
    tool_calls.KIND: 9.0,
    facts.KIND: 26.0,
    stories.KIND: 5.0,
    dates_units.KIND: 5.0,
    infill.KIND: 3.0,
    repeat.KIND: 5.0,
    turns.KIND: 4.0,
    about.ABOUT: 4.0,
    about.UNKNOWN: 6.0,
}
_UNTHINKING = 0.15  # share of cases without thoughts whose prompt ends the thinking itself
_INSTRUCTED = 0.05  # share of cases with a system message
_INSTRUCTIONS = ("You are a helpful assistant.", "Answer briefly.", "You are a small model.", "Be exact.", "Be kind.")


def training_cases(rng: random.Random, weights: Mapping[str, float]) -> Iterator[Case]:
    """Yield cases without end, none of them held out."""
    kinds = list(weights)
    while True:
        case = KINDS[rng.choices(kinds, list(weights.values()))[0]](rng)
        if not case.held_out:
            yield _varied(case, rng)


def held_out_cases(kind: str, count: int, seed: int = 0) -> list[Case]:
    """Return different held-out cases of a kind, at most `count`."""
    rng, found = random.Random(f"{kind} {seed}"), dict[str, Case]()
    for _ in range(200 * count):
        case = KINDS[kind](rng)
        if case.held_out:
            found.setdefault(case.key, case)
        if len(found) == count:
            break
    return list(found.values())


def _varied(case: Case, rng: random.Random) -> Case:
    """Give some chats a system message, and switch the thinking of some off that have no thoughts."""
    if case.prompt:
        return case
    if rng.random() < _INSTRUCTED:
        system = {"role": "system", "content": rng.choice(_INSTRUCTIONS)}
        case = replace(case, messages=(system, *case.messages))
    thoughtless = case.answer.startswith(f"\n{THINK_END}")
    return replace(case, thinking=False) if thoughtless and rng.random() < _UNTHINKING else case
