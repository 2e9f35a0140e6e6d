"""Orders of samplers: lists of names, or llama.cpp's strings of names or letters."""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.errors import InvalidRequestError
from pymtp.samplers.values import listed
from pymtp.validation import shown

# llama.cpp's names and letters (common/sampling.cpp), in its default order. The number of a sampler in
# enum pymtp_sampler_kind is its index here.
_LETTERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
}
SAMPLERS = tuple(_LETTERS)
_NAMES = {name.replace("_", ""): name for name in SAMPLERS} | {
    "temp": "temperature",
    "typ": "typ_p",
    "typicalp": "typ_p",
    "typical": "typ_p",
    "nucleus": "top_p",
}
_MAX_NAMES = 64  # names in an order


def read_order(order: object) -> tuple[str, ...]:
    """Return the names of the samplers in an order, each once.

    order: a list of names, names separated by semicolons ("top_k;temperature"), or llama.cpp's letters ("kt"). A name
        may be written as in llama.cpp: "top-k", "topk" and "Top_K" mean "top_k". A sampler that is named twice has the
        first place.

    Raises InvalidRequestError for a name or a letter of no sampler, such as "mirostat", and for anything else.
    """
    names = _split(order) if isinstance(order, str) else listed(order)
    if len(names) > _MAX_NAMES:
        raise InvalidRequestError(f"samplers must be at most {_MAX_NAMES} names", "samplers")
    return tuple(dict.fromkeys(_read_name(name) for name in names))


def _split(text: str) -> Sequence[object]:
    by_letter = {letter: name for name, letter in _LETTERS.items()}
    if set(text) <= set(by_letter):
        return [by_letter[letter] for letter in text]
    return text.split(";")


def _read_name(name: object) -> str:
    written = name.strip().lower().replace("_", "").replace("-", "") if isinstance(name, str) else ""
    if written not in _NAMES:
        raise InvalidRequestError(
            f"samplers must be names of {', '.join(SAMPLERS)}, or the letters {''.join(_LETTERS.values())}, "
            f"not {shown(name)}",
            "samplers",
        )
    return _NAMES[written]
