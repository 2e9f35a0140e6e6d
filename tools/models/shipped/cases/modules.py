"""Modules of several functions: long texts that mean something, for benches and tests."""

import ast
import random

from cases.case import Case
from cases.functions import draw

KIND = "modules"
_SUBJECTS = ("numbers", "lists", "texts", "words", "sums", "values", "everyday use", "beginners", "a small library")
_TITLES = ("Functions for {}", "Helpers for {}", "Tools for {}", "Small functions for {}", "A module for {}")


def make(rng: random.Random) -> Case:
    """Return a case whose prompt is a module's docstring, and whose answer are its functions."""
    title = rng.choice(_TITLES).format(rng.choice(_SUBJECTS))
    drawn = {written.name: written for written in (draw(rng) for _ in range(rng.randint(3, 9)))}
    first, *others = drawn.values()
    prompt = f'"""{title}."""\n\n\n'
    if rng.random() < 0.5:
        prompt, begun = f"{prompt}{first.head}", f"\n{first.body}"
    else:
        begun = first.source
    answer = begun + "".join(f"\n\n{written.source}" for written in others)
    return Case(KIND, f"{title} {' '.join(drawn)}", answer, lambda text: is_module(prompt + text), prompt=prompt)


def is_module(source: str) -> bool:
    """Return whether a text is Python with several functions, none of them twice."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return False
    names = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    return len(names) == len(body) - 1 == len(set(names)) >= 3
