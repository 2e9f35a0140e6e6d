"""Sentences about people, orders, meetings and books, from which fields are extracted as JSON."""

import json
import random

from cases.case import Case, ask, spoken, think
from cases.words import CITIES, DAYS, full_name, listed

KIND = "extraction"
_JOBS = listed("nurse teacher baker driver lawyer farmer singer painter doctor pilot cook judge")
_GOODS = listed("lamps chairs tables books pens shirts shoes bottles plates phones clocks bags")
_TOPICS = listed("budget travel hiring design safety training sales music garden research")
_TITLES = ("River", "Garden", "Winter", "Island", "Mirror", "Harbor", "Forest", "Letter", "Silent", "Golden")
Value = str | int
_TEXTS = {
    "person": (
        "{name}, aged {age}, lives in {city} and works as a {job}.",
        "{name} is a {job} from {city} who is {age} years old.",
        "The {job} {name} ({age}) comes from {city}.",
        "In {city} we met {name}, a {job} of {age} years.",
    ),
    "order": (
        "{name} ordered {quantity} {item} for {price} euros.",
        "An order of {quantity} {item} at {price} euros came from {name}.",
        "{name} pays {price} euros for {quantity} {item}.",
        "Please send {quantity} {item} to {name}, who paid {price} euros.",
    ),
    "meeting": (
        "The {topic} meeting with {name} is on {day} at {hour} in {city}.",
        "On {day} at {hour}, {name} leads the {topic} meeting in {city}.",
        "{name} invites you to a {topic} meeting in {city}, {day}, {hour}.",
        "Meet {name} in {city} on {day} at {hour} about {topic}.",
    ),
    "book": (
        '"{title}" was written by {name} in {year}.',
        'In {year} {name} published "{title}".',
        '{name} is the author of "{title}" ({year}).',
        'The book "{title}" by {name} came out in {year}.',
    ),
}


def make(rng: random.Random) -> Case:
    about = rng.choice(list(_TEXTS))
    values = _values(rng, about)
    text = rng.choice(_TEXTS[about]).format_map(values)
    fields = rng.sample(list(values), rng.randint(2, len(values)))
    wanted = {field: values[field] for field in fields}
    request = rng.choice(("Extract {} as JSON: {}", "Give {} as JSON: {}", "Return {} in JSON. Text: {}"))
    answer = json.dumps(wanted, ensure_ascii=False)

    def is_right(written: str) -> bool:
        try:
            found = json.loads(spoken(written))
        except ValueError:
            return False
        return bool(found == wanted)

    key = f"{fields} {text}"
    return Case(KIND, key, think("", answer), is_right, messages=ask(request.format(", ".join(fields), text)))


def _values(rng: random.Random, about: str) -> dict[str, Value]:
    name = full_name(rng)
    if about == "person":
        return {"name": name, "age": rng.randint(18, 99), "city": rng.choice(CITIES), "job": rng.choice(_JOBS)}
    if about == "order":
        return {"name": name, "quantity": rng.randint(2, 99), "item": rng.choice(_GOODS), "price": rng.randint(10, 999)}
    if about == "meeting":
        hour = f"{rng.randint(8, 19)}:{rng.choice(('00', '15', '30', '45'))}"
        day, city = rng.choice(DAYS), rng.choice(CITIES)
        return {"name": name, "topic": rng.choice(_TOPICS), "day": day, "hour": hour, "city": city}
    title = f"The {' '.join(rng.sample(_TITLES, rng.randint(1, 2)))}"
    return {"title": title, "name": name, "year": rng.randint(1900, 2025)}
