"""Pairs of a prompt and the text after it, for benches with forced text: their files, and how much texts repeat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

LOOK_UP = 8  # number of tokens that predicted_share looks up
_FIELDS = ("kind", "prompt", "text")


@dataclass(frozen=True)
class TextPair:
    """A prompt, and the text that a model is taken to generate after it.

    kind: the kind of the text; texts of one kind repeat their prompts in a similar way.
    """

    kind: str
    prompt: str
    text: str


@dataclass(frozen=True)
class TokenPair:
    """The tokens of a TextPair."""

    kind: str
    prompt: tuple[int, ...]
    text: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, pair: TextPair) -> TokenPair:
        """Tokenize a pair. Raises InvalidRequestError for a text of fewer than two tokens: it needs no decoding."""
        text = tuple(model.tokenize(pair.text, add_special=False))
        if len(text) < 2:
            raise InvalidRequestError(f"the text {pair.text!r} of kind {pair.kind!r} must have at least 2 tokens")
        return cls(pair.kind, tuple(model.tokenize(pair.prompt)), text)

    def cut(self, n_tokens: int) -> TokenPair:
        """Return the pair with at most the first n_tokens tokens of its text."""
        return replace(self, text=self.text[:n_tokens])


def read_pairs(file: Path) -> list[TextPair]:
    """Read pairs from a file of JSON lines, each an object with the strings "kind", "prompt" and "text".

    Raises InvalidRequestError if the file cannot be read or has no lines, and for a wrong line, with its number.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequestError(f"cannot read texts from {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"cannot read texts from {file}: it is not text in UTF-8") from error
    found: dict[str, TextPair] = {}  # by prompt
    for number, line in enumerate(lines, 1):
        if line.strip():
            pair = _read_line(line, f"{file}, line {number}")
            if found.setdefault(pair.prompt, pair) is not pair:
                raise InvalidRequestError(f"{file}, line {number}: an earlier line has the same prompt")
    if not found:
        raise InvalidRequestError(f'{file} has no lines like {{"kind": "…", "prompt": "…", "text": "…"}}')
    return list(found.values())


def _read_line(line: str, place: str) -> TextPair:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{place}: it is not JSON: {error}") from error
    if not isinstance(found, dict) or sorted(found) != sorted(_FIELDS):
        names = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise InvalidRequestError(f"{place}: it must be an object with {', '.join(_FIELDS)}, not {names}")
    for name in _FIELDS:
        if not isinstance(found[name], str) or not found[name].strip():
            raise InvalidRequestError(f"{place}: {name} must be a string that is not empty")
    return TextPair(**found)


def kinds_of(pairs: Sequence[TextPair]) -> tuple[str, ...]:
    """Return the kinds of pairs, in the order in which they first occur."""
    return tuple(dict.fromkeys(pair.kind for pair in pairs))


def predicted_share(prompt: Sequence[int], text: Sequence[int], n: int = LOOK_UP) -> float:
    """Return the share of a text's tokens that a look-up of the n tokens before them predicts.

    The look-up finds the last earlier occurrence of the n tokens, in the prompt or in the text, and predicts the token
    that followed there.
    """
    tokens = [*prompt, *text]
    following: dict[tuple[int, ...], int] = {}
    n_right = 0
    for i in range(n, len(tokens)):
        before = tuple(tokens[i - n : i])
        n_right += i >= len(prompt) and following.get(before) == tokens[i]
        following[before] = tokens[i]
    return n_right / len(text)


def predicted_shares(pairs: Iterable[TokenPair]) -> dict[str, float]:
    """Return, by kind, the mean predicted_share of pairs."""
    shares: dict[str, list[float]] = {}
    for pair in pairs:
        shares.setdefault(pair.kind, []).append(predicted_share(pair.prompt, pair.text))
    return {kind: mean(found) for kind, found in shares.items()}
