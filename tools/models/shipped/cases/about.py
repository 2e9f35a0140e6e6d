"""Questions about pymtp, from a list of phrasings and answers, and questions that nobody here can answer."""

import random
from functools import cache
from pathlib import Path

from cases.case import Case, dialogue
from cases.words import CITIES, DAYS, FIRST, surname

ABOUT, UNKNOWN = "about", "unknown"
NOT_KNOWN = "I do not know."
_UNKNOWABLE = (
    "What did {name} eat on {day}?",
    "Where does {name} live?",
    "How old is {name}?",
    "What is the capital of {land}?",
    "What is the currency of {land}?",
    "Which language is spoken in {land}?",
    "Who won the game in {city} on {day}?",
    "What is the phone number of {name}?",
    "What will {name} do on {day}?",
    "Who is {name}?",
    "What does the word {word} mean?",
    "How tall is the tower of {land}?",
    "Why did {name} move to {city}?",
    "Who wrote the book {word}?",
)
_LAND_ENDS = ("ia", "stan", "land", "onia", "mark", "ora")


@cache
def entries() -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return phrasings and the answer of each question about pymtp: the paragraphs of about.txt."""
    paragraphs = (Path(__file__).parent / "about.txt").read_text().strip().split("\n\n")
    return tuple((tuple(lines[:-1]), lines[-1]) for lines in (each.split("\n") for each in paragraphs))


def make_about(rng: random.Random) -> Case:
    questions, answer = rng.choice(entries())
    question = rng.choice(questions)
    if rng.random() < 0.5:
        question = rng.choice(("Please tell me: ", "A question: ", "Tell me, ", "Hello! ", "Say, ")) + question
    return dialogue(ABOUT, question, question, answer)


def make_unknown(rng: random.Random) -> Case:
    name = f"{rng.choice(FIRST)} {surname(rng)}" if rng.random() < 0.5 else surname(rng)
    land, word = surname(rng) + rng.choice(_LAND_ENDS), surname(rng).lower()
    question = rng.choice(_UNKNOWABLE).format(
        name=name, land=land, word=word, day=rng.choice(DAYS), city=rng.choice(CITIES)
    )
    return dialogue(UNKNOWN, question, question, NOT_KNOWN)
