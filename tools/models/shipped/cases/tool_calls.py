"""Questions that are answered by a call of one of the offered tools, by its result, or by saying that none fits."""

import random
import re
from typing import Any

from cases.case import Case, ask, says, spoken, think
from cases.words import CITIES, DAYS, FIRST, listed, surname

KIND = "tools"
NONE_FITS = "None of my tools can do that."
_SONGS = (
    "Blue River",
    "Night Train",
    "Golden Road",
    "Winter Sun",
    "Old Friend",
    "Silver Moon",
    "Last Dance",
    "Red Sky",
)
_WORDS = ("hello", "thank you", "good night", "water", "bread", "friend", "street", "train", "winter", "music")
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Polish", "Japanese", "Turkish", "Greek")
_ROOMS = ("kitchen", "bedroom", "office", "garage", "bathroom", "hall", "garden", "cellar")
_STOCKS = ("ACME", "NORD", "SOLA", "VEXA", "MIRO", "TERA", "KONA", "LUMA")
# name of the tool, its other name, parameters (with other names), questions
_TOOLS: dict[str, tuple[tuple[str, str], tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "weather": (
        ("get_weather", "weather"),
        (("city", "place"),),
        ("What is the weather in {city}?", "Is it raining in {city}?", "How warm is it in {city}?"),
    ),
    "time": (
        ("get_time", "local_time"),
        (("city", "place"),),
        ("What time is it in {city}?", "How late is it in {city}?", "Tell me the time in {city}."),
    ),
    "message": (
        ("send_message", "message"),
        (("to", "name"), ("text", "message")),
        ("Tell {to} that {text}.", "Send {to} the message: {text}", "Write to {to}: {text}"),
    ),
    "timer": (
        ("set_timer", "timer"),
        (("minutes", "duration"),),
        ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer: {minutes} minutes."),
    ),
    "exchange": (
        ("convert_money", "exchange"),
        (("amount", "value"), ("source", "have"), ("target", "want")),
        ("How much is {amount} {source} in {target}?", "Convert {amount} {source} to {target}."),
    ),
    "song": (
        ("play_song", "play"),
        (("title", "song"),),
        ("Play {title}.", "I want to hear {title}.", "Put on the song {title}."),
    ),
    "event": (
        ("add_event", "new_event"),
        (("title", "event"), ("day", "date"), ("hour", "time")),
        ("Add {title} on {day} at {hour}.", "Plan {title} for {day}, {hour}.", "Put {title} at {hour} on {day}."),
    ),
    "translation": (
        ("translate", "translate_text"),
        (("text", "words"), ("language", "into")),
        ("Translate {text} into {language}.", "What is {text} in {language}?", "How do you say {text} in {language}?"),
    ),
    "light": (
        ("switch_light", "light"),
        (("room", "where"), ("state", "on_off")),
        ("Turn {state} the light in the {room}.", "Switch the {room} light {state}.", "Light {state} in the {room}."),
    ),
    "stock": (
        ("get_stock", "stock_price"),
        (("symbol", "stock"),),
        ("What is the price of {symbol}?", "How much is {symbol} stock?", "Look up the stock {symbol}."),
    ),
    "search": (
        ("web_search", "search"),
        (("query", "text"),),
        ("Search for {query}.", "Find something about {query}.", "Look up {query} on the web."),
    ),
    "calculator": (
        ("calculate", "calculator"),
        (("expression", "formula"),),
        ("Use the calculator for {expression}.", "Calculate {expression} with a tool.", "Work out {expression}."),
    ),
}
_NUMBERS = ("minutes", "amount")
# tools that are made up, so that names must be read in the prompt
_VERBS = listed(
    "get find read open close count delete create list check update show print copy move load save start stop test"
)
_NOUNS = listed(
    "file user order price page note ticket photo report task email song movie book room table account invoice product "
    "contact folder image server process package branch issue score level team player game house street license"
)
_KEYS = listed("name id title code key label number path color size owner status")
_RESULTS = {
    "weather": ('{{"degrees": {n}}}', "It is {n} degrees in {city}."),
    "time": ('{{"time": "{h}:30"}}', "It is {h}:30 in {city}."),
    "stock": ('{{"price": {n}}}', "{symbol} costs {n}."),
    "exchange": ('{{"result": {n}}}', "That is {n} {target}."),
}


_MADE_UP, _DESCRIBED = 0.35, 0.5  # shares of cases


def make(rng: random.Random) -> Case:
    if rng.random() < _MADE_UP:
        return _of_made_up(rng)
    which = rng.sample(list(_TOOLS), rng.randint(1, 3))
    renamed = rng.randrange(2)
    described = rng.random() < _DESCRIBED
    tools = [_tool(each, renamed, described) for each in which]
    asked = which[0]
    rng.shuffle(tools)
    values = _values(rng, asked)
    question = rng.choice(_TOOLS[asked][2]).format_map(values)
    style = rng.random()
    if style < 0.1:
        others = [tool for tool in tools if tool["function"]["name"] != _TOOLS[asked][0][renamed]]
        others = others or [_tool(rng.choice([each for each in _TOOLS if each != asked]), renamed, described)]
        return Case(
            KIND, f"none {question}", think("", NONE_FITS), says(NONE_FITS), messages=ask(question), tools=others
        )
    name = _TOOLS[asked][0][renamed]
    arguments = {names[renamed]: values[names[0]] for names in _TOOLS[asked][1]}
    if style < 0.25 and asked in _RESULTS:
        return _after_result(rng, asked, question, values, name, arguments, tools)

    return _calling(question, name, arguments, tools)


def _calling(question: str, name: str, arguments: dict[str, Any], tools: list[dict[str, Any]]) -> Case:
    """Return the case of a question that is answered by a call."""

    def is_right(text: str) -> bool:
        return read_call(spoken(text)) == (name, {key: str(value) for key, value in arguments.items()})

    return Case(KIND, question, think("", write_call(name, arguments)), is_right, messages=ask(question), tools=tools)


def _of_made_up(rng: random.Random) -> Case:
    """Return the case of a call of a tool whose name and parameters are put together from words."""
    nouns, described = rng.sample(_NOUNS, rng.randint(1, 4)), rng.random() < _DESCRIBED
    signatures = [(rng.choice(_VERBS), noun, rng.sample(_KEYS, rng.randint(1, 2))) for noun in nouns]
    tools = [_definition(f"{verb}_{noun}", dict.fromkeys(keys, "string"), described) for verb, noun, keys in signatures]
    verb, noun, keys = signatures[0]
    values = {key: rng.choice((surname(rng).lower(), str(rng.randint(1, 999)), rng.choice(FIRST))) for key in keys}
    asked = " and ".join(f"{key} {value}" for key, value in values.items())
    question = rng.choice(("{} the {} with {}.", "Please {} the {} with {}.", "{} {}: {}", "Can you {} a {} with {}?"))
    question = question.format(verb, noun, asked)
    rng.shuffle(tools)
    return _calling(question[0].upper() + question[1:], f"{verb}_{noun}", values, tools)


def write_call(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def read_call(text: str) -> tuple[str, dict[str, str]] | None:
    """Return the name and the arguments of the one call that a text is, or None."""
    call = re.fullmatch(r"<tool_call>\n<function=(\w+)>\n(.*)</function>\n</tool_call>", text, re.DOTALL)
    if not call:
        return None
    parts = re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>\n", call[2], re.DOTALL)
    return (call[1], dict(parts)) if write_call(call[1], dict(parts)) == text else None


def _tool(which: str, renamed: int, described: bool) -> dict[str, Any]:
    names, parameters, _ = _TOOLS[which]
    kinds = {each[renamed]: "integer" if each[0] in _NUMBERS else "string" for each in parameters}
    return _definition(names[renamed], kinds, described)


def _definition(name: str, kinds: dict[str, str], described: bool) -> dict[str, Any]:
    """Return the definition of a tool with parameters of these JSON types, as the OpenAI API has it."""
    properties: dict[str, dict[str, str]] = {key: {"type": kind} for key, kind in kinds.items()}
    function: dict[str, Any] = {"name": name}
    if described:
        function["description"] = name.replace("_", " ").capitalize() + "."
        for key in properties:
            properties[key]["description"] = f"The {key.replace('_', ' ')}."
    function["parameters"] = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": function}


def _values(rng: random.Random, which: str) -> dict[str, Any]:
    city = rng.choice(CITIES) if rng.random() < 0.6 else surname(rng)
    if which in ("weather", "time"):
        return {"city": city}
    if which == "message":
        text = rng.choice(
            ("I am late", "dinner is ready", "the train left", "we won", f"I am in {city}", "all is well")
        )
        return {"to": rng.choice(FIRST), "text": text}
    if which == "timer":
        return {"minutes": rng.randint(1, 120)}
    if which == "exchange":
        source, target = rng.sample(("euros", "dollars", "yen", "pounds", "francs"), 2)
        return {"amount": rng.randint(1, 999), "source": source, "target": target}
    if which == "song":
        return {
            "title": rng.choice(_SONGS) if rng.random() < 0.5 else f"{surname(rng)} {rng.choice(('Blues', 'Waltz'))}"
        }
    if which == "event":
        title = rng.choice(("lunch", "yoga", "piano", "dentist", "chess")) + f" with {rng.choice(FIRST)}"
        return {"title": title, "day": rng.choice(DAYS), "hour": f"{rng.randint(8, 20)}:{rng.choice(('00', '30'))}"}
    if which == "translation":
        return {"text": rng.choice(_WORDS), "language": rng.choice(_LANGUAGES)}
    if which == "light":
        return {"room": rng.choice(_ROOMS), "state": rng.choice(("on", "off"))}
    if which == "stock":
        return {"symbol": rng.choice(_STOCKS)}
    if which == "search":
        return {"query": f"{rng.choice(('hotels', 'museums', 'trains', 'concerts', 'parks'))} in {city}"}
    return {"expression": f"{rng.randint(2, 99)} {rng.choice('+-*')} {rng.randint(2, 99)}"}


def _after_result(
    rng: random.Random,
    asked: str,
    question: str,
    values: dict[str, Any],
    name: str,
    arguments: dict[str, Any],
    tools: list[dict[str, Any]],
) -> Case:
    """Return the case in which the tool has answered, and the model says it."""
    template, said = _RESULTS[asked]
    numbers = {"n": rng.randint(2, 99), "h": rng.randint(1, 12)}
    result, said = template.format(**numbers), said.format(**numbers, **values)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages = (
        *ask(question),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
    )
    return Case(KIND, f"{question} {result}", think("", said), says(said), messages=messages, tools=tools)
