"""Modules of several functions: long texts that mean something, for benches and tests."""

import ast
import random

from cases.case import Case
from cases.functions import Written, draw

KIND = "modules"
_SUBJECTS = ("numbers", "lists", "texts", "words", "sums", "values", "everyday use", "beginners", "a small library")
_TITLES = ("Functions for {}", "Helpers for {}", "Tools for {}", "Small functions for {}", "A module for {}")


def make(rng: random.Random) -> Case:
    """Return a case whose prompt is a module's docstring, which lists its functions, and whose answer are these."""
    title = rng.choice(_TITLES).format(rng.choice(_SUBJECTS))
    drawn = {written.name: written for written in (draw(rng) for _ in range(rng.randint(3, 9)))}
    first, *others = drawn.values()
    names = ", ".join(drawn)
    prompt = f'"""{title}: {names}."""\n\n\n'
    if rng.random() < 0.5:
        prompt, begun = f"{prompt}{first.head}", f"\n{first.body}"
    else:
        begun = first.source
    answer = begun + "".join(f"\n\n{written.source}" for written in others)
    return Case(
        KIND,
        f"{title} {names}",
        answer,
        lambda text: is_right(prompt + text, list(drawn.values())),
        prompt=prompt,
        functions=tuple(written.head for written in drawn.values()),
    )


def is_right(source: str, functions: list[Written]) -> bool:
    """Return whether a text is Python with a docstring and just these functions, in this order, all of them right."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    names = [each.name if isinstance(each, ast.FunctionDef) else "" for each in body[1:]]
    return names == [each.name for each in functions] and all(each.is_right(source) for each in functions)
