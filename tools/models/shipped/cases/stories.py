"""Short stories by a grammar. The names and places of the request must be those of the story, and no others."""

import random
import re

from cases.case import Case, ask, spoken, think
from cases.words import CITIES, FIRST, listed

KIND = "stories"
_ANIMALS = listed("fox bear cat dog wolf mouse horse rabbit hen goat")
_THINGS = listed("key map ring lamp drum kite boat coin letter book")
_WHERE = ("under a tree", "behind a wall", "near the river", "in the garden", "on a bridge", "by the well")
_FEELINGS = ("happy", "proud", "glad", "calm", "merry")
_TROUBLES = (
    ("lost a {thing}", "found the {thing} {where}"),
    ("wanted to fly", "built a kite {where}"),
    ("was very hungry", "shared some bread {where}"),
    ("could not sleep", "sang a song {where}"),
    ("was afraid of the dark", "lit a lamp {where}"),
    ("had no friends", "played {where}"),
)


def make(rng: random.Random) -> Case:
    first, second = rng.sample(FIRST, 2)
    city, animal = rng.choice(CITIES), rng.choice(_ANIMALS)
    trouble, help_ = rng.choice(_TROUBLES)
    thing, where, feeling = rng.choice(_THINGS), rng.choice(_WHERE), rng.choice(_FEELINGS)
    filled = {"thing": thing, "where": where}
    start = f"Once upon a time, a {animal} named {first} lived in {city}."
    rest = (
        f" One day {first} {trouble.format_map(filled)}. {first} asked {second} for help. "
        f"{second} came to {city}, and together they {help_.format_map(filled)}. "
        f"In the end {first} was {feeling} and thanked {second}."
    )
    told = {first, second, city}
    key = f"{first} {second} {city} {animal}"

    if rng.random() < 0.3:
        return Case(KIND, f"{key} raw", rest, lambda text: agrees(start + text, animal, {first, city}, 1), prompt=start)
    request = rng.choice(
        (
            "Tell a story about the {animal} {first} and {second} in {city}.",
            "Write a story: a {animal} named {first}, a friend named {second}, in {city}.",
            "Please tell me of {first}, a {animal} in {city}, and of {second}.",
        )
    ).format(animal=animal, first=first, second=second, city=city)
    return Case(
        KIND, key, think("", start + rest), lambda text: agrees(spoken(text), animal, told, 0), messages=ask(request)
    )


def agrees(story: str, animal: str, told: set[str], more: int) -> bool:
    """Return whether a story is whole, of this animal alone, with all names and places told, at most `more` others."""
    animals = {*re.findall(r"[a-z]+", story)} & {*_ANIMALS}
    words = set(re.findall(r"[A-Z][a-z]+", story))
    known = words & {*FIRST, *CITIES}
    sentences = story.strip().count(".")
    return (
        story.strip().endswith(".")
        and 4 <= sentences <= 9
        and animals == {animal}
        and told <= known
        and len(known - told) <= more
    )
