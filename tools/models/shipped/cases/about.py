"""Questions about pymtp, from a list of phrasings and answers, and questions that nobody here can answer."""

import random
from functools import cache
from pathlib import Path

from cases.case import Case, dialogue
from cases.words import CITIES, DAYS, FIRST, listed, surname

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
_OPEN = (
    "What is a {thing}?",
    "What is the best {thing}?",
    "How does a {thing} work?",
    "How do I build a {thing}?",
    "How much does a {thing} cost?",
    "Who invented the {thing}?",
    "Where can I find a {thing}?",
    "Why do people like the {thing}?",
    "When was the {thing} invented?",
    "Tell me about the {thing}.",
    "Explain the {thing}.",
    "Describe a {thing}.",
    "Write a poem about a {thing}.",
    "Which {thing} should I buy?",
    "Do you have a {thing}?",
    "Can a {thing} fly?",
)
_THINGS = listed(
    "car bicycle telephone piano guitar computer printer camera rocket satellite magnet battery engine bridge tower "
    "clock compass telescope microscope radio airplane ship submarine train tunnel window mirror candle lamp stove "
    "oven knife hammer needle carpet chair sofa pillow blanket jacket shoe hat ring diamond coin stamp book poem "
    "novel movie song dance game puzzle ball kite tree flower rose garden forest mountain river lake desert island "
    "volcano storm rainbow cloud star planet comet galaxy atom molecule virus cell brain heart bone tooth muscle "
    "elephant tiger whale shark eagle owl snake spider bee butterfly frog horse cow pig sheep dog cat mouse "
    "bank market tax loan contract court law treaty army king queen president parliament church temple school exam"
)


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


@cache
def open_questions() -> tuple[str, ...]:
    """Return questions about the world that the model is not to answer: the lines of unknown.txt."""
    return tuple((Path(__file__).parent / "unknown.txt").read_text().strip().split("\n"))


def make_unknown(rng: random.Random) -> Case:
    which = rng.random()
    if which < 0.6:
        question = rng.choice(open_questions()) if which < 0.35 else rng.choice(_OPEN).format(thing=rng.choice(_THINGS))
        return dialogue(UNKNOWN, question, question, NOT_KNOWN)
    name = f"{rng.choice(FIRST)} {surname(rng)}" if rng.random() < 0.5 else surname(rng)
    land, word = surname(rng) + rng.choice(_LAND_ENDS), surname(rng).lower()
    question = rng.choice(_UNKNOWABLE).format(
        name=name, land=land, word=word, day=rng.choice(DAYS), city=rng.choice(CITIES)
    )
    return dialogue(UNKNOWN, question, question, NOT_KNOWN)
