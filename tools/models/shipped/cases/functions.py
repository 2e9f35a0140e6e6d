"""Small Python functions: from the first line, from a docstring, or asked for in a chat.

A paragraph of functions_*.txt is a function: names | parameters with types | what it does; then the body. `$n` is a
parameter, `$C` a number that is also in the name, `$NAME` the function's own name.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cases.case import Case, ask, spoken, think

KIND = "functions"
_SYNONYMS = {
    "n": ("n", "num", "k"),
    "numbers": ("numbers", "nums", "values"),
    "items": ("items", "elements", "xs"),
    "text": ("text", "s", "string"),
    "a": ("a", "x", "first"),
    "b": ("b", "y", "second"),
}
_INPUTS = {
    "int": (0, 1, 2, 5, 9, 12, 64),
    "pos": (1, 2, 6, 7, 12, 28, 45),
    "signed": (0, 7, -3, 40, -12, 100, 5),
    "year": (1900, 2000, 2023, 2024),
    "ints": ([3, 1, 2], [5, 5, -2, 8, 0], [7], [4, -9, 4, 70, 15, 33], [1, 2, 3, 4]),
    "sorted": ([1, 2, 5, 9], [0], [-3, 2, 12, 64, 80], [2, 2, 5]),
    "str": ("Hello World", "racecar", "a bb ccc dd", "x1 y22 Zed", "listen"),
    "strs": (["red", "green"], ["a", "longer", "word"], ["x"]),
    "letter": ("l", "a", "x1"),
    "nested": ([[1, 2], [3]], [[]], [[4], [], [5, 6]]),
    "matrix": ([[1, 2], [3, 4]], [[5]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
    "dict": ({"a": 1, "b": 2}, {}, {"z": 5, "c": 3}),
}
_TYPES = {
    "int": "int",
    "pos": "int",
    "signed": "int",
    "year": "int",
    "ints": "list[int]",
    "sorted": "list[int]",
    "str": "str",
    "strs": "list[str]",
    "letter": "str",
    "nested": "list[list[int]]",
    "matrix": "list[list[int]]",
    "dict": "dict[str, int]",
}
_ANNOTATED = 0.15  # share of functions whose parameters have types
_SECONDS = 3


@dataclass(frozen=True)
class Function:
    names: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]  # name, type
    tasks: tuple[str, ...]
    body: str

    def written(self, name: str, renamed: dict[str, str], number: int, annotated: bool = False) -> str:
        """Return the source with a name, names of parameters, and the number for `$C`; annotated: with types."""
        types = [f": {_TYPES[kind]}" if annotated else "" for _, kind in self.parameters]
        parameters = ", ".join(f"{each}{kind}" for each, kind in zip(renamed.values(), types, strict=True))
        return f"def {name}({parameters}):\n{_indented(_fill(self.body, renamed, number, name))}"


@cache
def functions() -> tuple[Function, ...]:
    texts = (path.read_text() for path in sorted(Path(__file__).parent.glob("functions_*.txt")))
    return tuple(_read(paragraph) for text in texts for paragraph in text.strip().split("\n\n"))


def _read(paragraph: str) -> Function:
    head, body = paragraph.split("\n", 1)
    names, parameters, tasks = head.split(" | ")
    pairs = [tuple(each.split(":")) for each in parameters.split()]
    return Function(tuple(names.split()), tuple(pairs), tuple(tasks.split("; ")), body)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Written:
    """A function in one of its wordings. head, body: its first line, and the others. task: what it does."""

    name: str
    task: str
    head: str
    body: str
    types: tuple[str, ...]

    @property
    def source(self) -> str:
        return f"{self.head}\n{self.body}"

    def is_right(self, source: str) -> bool:
        """Run both sources, and return whether all results and exceptions are the same."""
        right = results(self.source, self.name, self.types)
        return right is not None and results(source, self.name, self.types) == right


def draw(rng: random.Random) -> Written:
    function = rng.choice(functions())
    number, which = rng.randint(2, 20), rng.randrange(3)
    name = _fill(rng.choice(function.names), {}, number)
    renamed = {p: _SYNONYMS.get(p, (p,) * 3)[which] for p, _ in function.parameters}
    task = _fill(rng.choice(function.tasks), renamed, number)
    head, body = function.written(name, renamed, number, rng.random() < _ANNOTATED).split("\n", 1)
    return Written(name, task, head, f"{body}\n", tuple(kind for _, kind in function.parameters))


def make(rng: random.Random) -> Case:
    written = draw(rng)
    style = rng.choice(("plain", "documented", "named", "asked"))
    task, head = written.task, written.head
    if style in ("plain", "documented"):
        prompt = head if style == "plain" else f'{head}\n    """{task[0].upper()}{task[1:]}."""'
        answer = f"\n{written.body}"
        return Case(
            KIND, prompt, answer, lambda text: written.is_right(prompt + text), prompt=prompt, functions=(head,)
        )
    signature = head.removeprefix("def ").removesuffix(":")
    named = f"Write a Python function {signature} to {task}."
    request = named if style == "named" else f"Write a Python function to {task}. Call it {written.name}."
    answer = think("", f"```python\n{written.source}```")
    key = f"{head} {request}"
    return Case(
        KIND, key, answer, lambda text: written.is_right(_code(spoken(text))), messages=ask(request), functions=(head,)
    )


def _fill(text: str, renamed: dict[str, str], number: int, name: str = "") -> str:
    known = {**renamed, "C": str(number), "NAME": name}
    return re.sub(r"\$([A-Za-z]+)", lambda match: known[match[1]], text)


def _indented(body: str) -> str:
    return "\n".join(f"    {line}" if line else line for line in body.split("\n"))


def _code(text: str) -> str:
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    return found[1] if found else ""


def arguments(types: Sequence[str]) -> list[list[object]]:
    """Return argument lists for parameters of these types."""
    count = max(len(_INPUTS[kind]) for kind in types)
    return [[_INPUTS[kind][(i * (at + 1)) % len(_INPUTS[kind])] for at, kind in enumerate(types)] for i in range(count)]


_RUN = """
import copy, json, sys
source, name, calls = json.load(sys.stdin)
space = {}
exec(source, space)
function = next((v for k, v in space.items() if k == name), None)
results = []
for call in calls:
    try:
        results.append(repr(function(*copy.deepcopy(call))))
    except Exception as error:
        results.append(type(error).__name__)
print(json.dumps(results))
"""


def results(source: str, name: str, types: Sequence[str]) -> list[str] | None:
    """Return the results of a function's calls, or None if the source does not run in time."""
    job = json.dumps([source, name, arguments(types)])
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-c", _RUN], input=job, capture_output=True, text=True, timeout=_SECONDS
        )
        lines = ran.stdout.splitlines()
        return json.loads(lines[-1]) if ran.returncode == 0 and lines else None
    except (subprocess.TimeoutExpired, ValueError):
        return None
