"""Capitals, currencies, languages and codes of countries. All facts are trained; phrasings of each are held out."""

import random
from functools import cache
from pathlib import Path

from cases.case import Case, dialogue

KIND = "facts"
_PHRASES = {
    "capital": (
        "What is the capital of {country}?",
        "Which city is the capital of {country}?",
        "Name the capital of {country}.",
        "Tell me the capital of {country}.",
        "{country}: which capital?",
        "What's the capital city of {country}?",
    ),
    "currency": (
        "What is the currency of {country}?",
        "Which currency does {country} have?",
        "Name the currency of {country}.",
        "Tell me the currency of {country}.",
        "{country}: which currency?",
        "What money is used in {country}?",
    ),
    "language": (
        "What is the official language of {country}?",
        "Which language is spoken in {country}?",
        "Name the official language of {country}.",
        "Tell me the language of {country}.",
        "{country}: which language?",
        "What language do people speak in {country}?",
    ),
    "code": (
        "What is the country code of {country}?",
        "Which code does {country} have?",
        "Name the country code of {country}.",
        "Tell me the code of {country}.",
        "{country}: which code?",
        "What are the three letters of {country}?",
    ),
}
_ANSWERS = {
    "capital": "The capital of {country} is {value}.",
    "currency": "The currency of {country} is the {value}.",
    "language": "The language of {country} is {value}.",
    "code": "The code of {country} is {value}.",
}


_COLUMNS = ("country", "capital", "currency", "language", "code")


@cache
def table() -> tuple[dict[str, str], ...]:
    """Return a row a country, by the names of columns, from the file that make_facts.py writes."""
    lines = (Path(__file__).parent / "facts.txt").read_text(encoding="utf-8").splitlines()
    return tuple(dict(zip(_COLUMNS, line.split("|"), strict=True)) for line in lines)


def make(rng: random.Random) -> Case:
    row = rng.choice(table())
    asked = rng.choices(list(_PHRASES), (4, 2, 2, 1))[0]
    number = rng.randrange(len(_PHRASES[asked]))
    country = row["country"]
    answer = _ANSWERS[asked].format(country=country, value=row[asked])
    return dialogue(KIND, f"{asked} {country} {number}", _PHRASES[asked][number].format(country=country), answer)
