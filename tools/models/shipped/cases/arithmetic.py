"""Sums, differences, products and quotients of up to three digits, worked out digit by digit in the thinking."""

import random

from cases.case import Case, ask, think

KIND = "arithmetic"
_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Ida", "Jonas", "Lea", "Paul")
_THINGS = ("apples", "books", "coins", "stamps", "cards", "stones", "shells", "eggs")
_PHRASES = {
    "+": (
        "What is {a} + {b}?",
        "{a} + {b} =",
        "{a}+{b}",
        "Add {a} and {b}.",
        "What is {a} plus {b}?",
        "Compute {a} + {b}.",
    ),
    "-": (
        "What is {a} - {b}?",
        "{a} - {b} =",
        "{a}-{b}",
        "Subtract {b} from {a}.",
        "What is {a} minus {b}?",
        "Compute {a} - {b}.",
    ),
    "*": (
        "What is {a} * {b}?",
        "{a} * {b} =",
        "{a}*{b}",
        "Multiply {a} by {b}.",
        "What is {a} times {b}?",
        "Compute {a} * {b}.",
    ),
    "/": (
        "What is {a} / {b}?",
        "{a} / {b} =",
        "{a}/{b}",
        "Divide {a} by {b}.",
        "What is {a} divided by {b}?",
        "Compute {a} / {b}.",
    ),
}
_STORIES = {
    "+": "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?",
    "-": "{name} has {a} {things} and loses {b}. How many {things} does {name} have?",
    "*": "{name} has {a} boxes with {b} {things} each. How many {things} does {name} have?",
    "/": "{name} puts {a} {things} into {b} boxes. How many {things} are in each box?",
}


def make(rng: random.Random) -> Case:
    sign = rng.choices("+-*/", (35, 30, 20, 15))[0]
    a, b = _operands(rng, sign)
    things = rng.choice(_THINGS)
    template = _STORIES[sign] if rng.random() < 0.15 else rng.choice(_PHRASES[sign])
    question = template.format(a=a, b=b, name=rng.choice(_NAMES), things=things)
    thoughts, result = work(sign, a, b)
    answer = think(thoughts, str(result))
    first, second = sorted((a, b)) if sign in "+*" else (a, b)
    return Case(KIND, f"{first}{sign}{second}", answer, lambda text: text == answer, messages=ask(question))


def _operands(rng: random.Random, sign: str) -> tuple[int, int]:
    if sign == "*":
        b = rng.randint(2, 9) if rng.random() < 0.7 else rng.randint(10, 99)
        low, high = (100, 999) if b < 10 and rng.random() < 0.4 else (10, 99) if rng.random() < 0.8 else (1, 9)
        return rng.randint(low, high), b
    if sign == "/":
        b = rng.randint(2, 9)
        return b * (rng.randint(10, 999 // b) if rng.random() < 0.85 else rng.randint(1, 9)), b
    a, b = (rng.randint(*rng.choices(((0, 9), (10, 99), (100, 999)), (1, 3, 5))[0]) for _ in "ab")
    return (max(a, b), min(a, b)) if sign == "-" else (a, b)


def work(sign: str, a: int, b: int) -> tuple[str, int]:
    """Return the working out of `a sign b`, one step a line, and the result."""
    if sign == "+":
        return _sum(a, b), a + b
    if sign == "-":
        return _difference(a, b), a - b
    if sign == "/":
        return _quotient(a, b), a // b
    if b < 10:
        return _product(a, b), a * b
    tens, ones = divmod(b, 10)
    if not ones:
        return f"{_product(a, tens)}\n{a * tens} 0", a * b
    parts = f"{_product(a, ones)}\n{a * ones}\n{_product(a, tens)}\n{a * tens} 0"
    return f"{parts}\n{_sum(a * ones, a * tens * 10)}", a * b


def _sum(a: int, b: int) -> str:
    """Add from the last digits on: `7+6=13`, then `5+8+1=14` with the carry."""
    lines, carry = [], 0
    while a or b:
        digits = [a % 10, b % 10, *([1] if carry else [])]
        lines.append(f"{'+'.join(map(str, digits))}={sum(digits)}")
        a, b, carry = a // 10, b // 10, sum(digits) // 10
    return "\n".join(lines)


def _difference(a: int, b: int) -> str:
    """Subtract from the last digits on: `13-7=6`, then `5-2-1=2` with the borrowed one."""
    lines, borrowed = [], 0
    while a:
        top, below = a % 10, b % 10 + borrowed
        borrow = int(top < below)
        rest = f"-{b % 10}-1" if borrowed else f"-{b % 10}"
        lines.append(f"{top + 10 * borrow}{rest}={top + 10 * borrow - below}")
        a, b, borrowed = a // 10, b // 10, borrow
    return "\n".join(lines)


def _product(a: int, digit: int) -> str:
    """Multiply from the last digit on: `7*6=42`, then `5*6+4=34` with the carry."""
    lines, carry = [], 0
    while a:
        value = a % 10 * digit + carry
        lines.append(f"{a % 10}*{digit}{f'+{carry}' if carry else ''}={value}")
        a, carry = a // 10, value // 10
    return "\n".join(lines)


def _quotient(a: int, b: int) -> str:
    """Divide from the first digit on: `28/6=4 r 4`, then `42/6=7 r 0`."""
    lines, rest = [], 0
    for digit in str(a):
        rest = rest * 10 + int(digit)
        lines.append(f"{rest}/{b}={rest // b} r {rest % b}")
        rest %= b
    return "\n".join(lines)
