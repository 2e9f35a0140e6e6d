"""Days of the week, lengths of months, days between dates of a month, and conversions of units."""

import calendar
import random

from cases.case import Case, dialogue
from cases.words import DAYS, MONTHS

KIND = "dates_units"
# unit, smaller unit, how many of these
_UNITS = (
    ("kilometers", "meters", 1000),
    ("meters", "centimeters", 100),
    ("centimeters", "millimeters", 10),
    ("kilograms", "grams", 1000),
    ("liters", "milliliters", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
)


def make(rng: random.Random) -> Case:
    return rng.choice((_weekday, _month, _between, _unit, _unit))(rng)


def _weekday(rng: random.Random) -> Case:
    at, steps = rng.randrange(7), rng.randint(1, 6)
    forward = rng.random() < 0.5
    question = f"What day is {steps} days {'after' if forward else 'before'} {DAYS[at]}?"
    passed = [DAYS[(at + i if forward else at - i) % 7] for i in range(1, steps + 1)]
    return dialogue(KIND, question, question, passed[-1], "\n".join(f"{i} {day}" for i, day in enumerate(passed, 1)))


def _month(rng: random.Random) -> Case:
    month, year = rng.randint(1, 12), rng.randint(1950, 2050)
    question = f"How many days does {MONTHS[month - 1]} {year} have?"
    days = calendar.monthrange(year, month)[1]
    leap = "leap year" if calendar.isleap(year) else "no leap year"
    return dialogue(KIND, question, question, f"{days} days", leap if month == 2 else "")


def _between(rng: random.Random) -> Case:
    month = rng.randrange(12)
    first, last = sorted(rng.sample(range(1, 29), 2))
    question = f"How many days are there from {MONTHS[month]} {first} to {MONTHS[month]} {last}?"
    return dialogue(KIND, question, question, f"{last - first} days", f"{last}-{first}={last - first}")


def _unit(rng: random.Random) -> Case:
    unit, smaller, factor = rng.choice(_UNITS)
    n = rng.randint(2, 99 if factor in (10, 100, 1000) else 20)
    phrase = rng.choice(
        ("Convert {n} {unit} to {smaller}.", "How many {smaller} are {n} {unit}?", "{n} {unit} in {smaller}?")
    )
    question = phrase.format(n=n, unit=unit, smaller=smaller)
    return dialogue(KIND, question, question, f"{n * factor} {smaller}", f"{n}*{factor}={n * factor}")
