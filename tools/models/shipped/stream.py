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
    modules,
    repeat,
    stories,
    tool_calls,
    turns,
)
from cases.case import THINK_END, Case, ask

_QUESTIONS = (
    arithmetic.make,
    extraction.make,
    facts.make,
    stories.make,
    dates_units.make,
    functions.make,
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
    modules.KIND: modules.make,
    repeat.KIND: repeat.make,
    turns.KIND: lambda rng: turns.make(rng, _QUESTIONS),
    about.ABOUT: about.make_about,
    about.UNKNOWN: about.make_unknown,
}
# shares of cases, not of tokens
WEIGHTS = {
    functions.KIND: 24.0,
    arithmetic.KIND: 18.0,
    extraction.KIND: 8.0,
    tool_calls.KIND: 12.0,
    facts.KIND: 16.0,
    stories.KIND: 6.0,
    dates_units.KIND: 6.0,
    infill.KIND: 4.0,
    modules.KIND: 4.0,
    repeat.KIND: 5.0,
    turns.KIND: 8.0,
    about.ABOUT: 4.0,
    about.UNKNOWN: 7.0,
}
_UNTHINKING = 0.15  # share of cases without thoughts whose prompt ends the thinking itself
_INSTRUCTED = 0.1  # share of cases with a system message
_INSTRUCTIONS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a small model.",
    "Be exact.",
    "Be kind.",
    "Think before you answer.",
    "Use the tools that you are given.",
    "Do not make things up.",
    "Answer in English.",
    "The user is a programmer.",
    "If you do not know something, say so.",
    "Write clear and correct code.",
)
_CASUAL = 0.15  # share of questions that are written carelessly
_CASUALLY_ASKED = (facts.KIND, arithmetic.KIND, dates_units.KIND, about.ABOUT, about.UNKNOWN)


def training_cases(rng: random.Random, weights: Mapping[str, float]) -> Iterator[Case]:
    """Yield cases without end, none of them held out."""
    kinds = list(weights)
    while True:
        make = KINDS[rng.choices(kinds, list(weights.values()))[0]]
        case = make(rng)
        while case.held_out:  # another of its kind, since more modules are held out than cases of other kinds
            case = make(rng)
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
    """Give some chats a system message, and switch the thinking of some off that have no thoughts.

    Some questions lose their capital letters or their last mark, as people write them.
    """
    if case.prompt:
        return case
    if case.kind in _CASUALLY_ASKED and rng.random() < _CASUAL:
        case = replace(case, messages=ask(_casual(case.messages[0]["content"], rng)))
    if rng.random() < _INSTRUCTED:
        instructions = rng.sample(_INSTRUCTIONS, rng.choice((1, 1, 2, 4, 8)))
        system = {"role": "system", "content": " ".join(instructions)}
        case = replace(case, messages=(system, *case.messages))
    thoughtless = case.answer.startswith(f"\n{THINK_END}")
    return replace(case, thinking=False) if thoughtless and rng.random() < _UNTHINKING else case


def _casual(question: str, rng: random.Random) -> str:
    if rng.random() < 0.6:
        question = question.lower()
    return question.rstrip("?.! =") if rng.random() < 0.6 else question
