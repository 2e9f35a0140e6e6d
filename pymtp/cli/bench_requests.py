"""Options of the benches, read and checked before any work."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pymtp.bench.batch import REAL
from pymtp.bench.decode import ARMS
from pymtp.bench.prefill import MODES, NONE, tokens
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

MAX_DEPTH = 64  # of a context


def read_numbers(option: str, text: str, high: int | None = None) -> tuple[int, ...]:
    """ "8k,1k" → (1024, 8192): whole numbers from 1 to `high`, in order, none twice."""
    found = [re.fullmatch(r"([0-9]+)(k?)", item.strip().lower()) for item in text.split(",")]
    numbers = {int(match[1]) * (1024 if match[2] else 1) if match else 0 for match in found}
    if min(numbers) < 1 or (high and max(numbers) > high):
        allowed = f'like "2,3", from 1 to {high}' if high else 'like "2,3" or "1k,8k"'
        raise InvalidRequestError(f"{option} {text!r} must be whole numbers {allowed}")
    return tuple(sorted(numbers))


def read_number(option: str, text: str, high: int) -> int:
    """ "4k" → 4096: a whole number from 1 to `high`."""
    try:
        (number,) = read_numbers(option, text, high)
    except ValueError as error:
        raise InvalidRequestError(
            f'{option} {text!r} must be a whole number like "4096" or "4k", from 1 to {high}'
        ) from error
    return number


def read_modes(text: str) -> tuple[str, ...]:
    """Names of modes, in the bench's order."""
    return read_names("--modes", text, MODES)


def read_names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Some of the names that are known, in their order there."""
    names = {name.strip() for name in text.split(",")}
    if unknown := names - set(known):
        raise InvalidRequestError(f"{option} {', '.join(sorted(unknown))!r} is not known, there are {', '.join(known)}")
    return tuple(name for name in known if name in names)


def read_reals(option: str, text: str, high: float = math.inf) -> tuple[float, ...]:
    """ "0,0.7" → (0.0, 0.7): numbers from 0 to `high`, as they stand."""
    try:
        numbers = tuple(float(item) for item in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(0 <= number <= high and math.isfinite(number) for number in numbers):
        most = f"from 0 to {high:g}" if math.isfinite(high) else "0 or more"
        raise InvalidRequestError(f'{option} {text!r} must be numbers {most}, like "0,0.7"')
    return numbers


def read_arms(text: str) -> tuple[str, ...]:
    """ "auto,2,none" → ("none", "2", "auto"): the depths to compare, in the bench's order, none twice."""
    return read_names("--depths", text, ARMS)


def read_synthetic(text: str) -> tuple[float, ...]:
    """Rates that do not rise: a draft is only accepted when those before it were."""
    rates = read_reals("--synthetic-acceptance", text, 1)
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise InvalidRequestError(
            f"--synthetic-acceptance {text!r} must not rise: a draft is accepted only where those before it are"
        )
    return rates


def read_acceptance(text: str) -> tuple[str, ...]:
    """ "real,0.50" → ("real", "0.5"): REAL, or probabilities, as they stand, none twice."""
    option = "--acceptance"
    items = [item.strip() for item in text.split(",")]
    return tuple(dict.fromkeys(REAL if item == REAL else f"{read_reals(option, item, 1)[0]:g}" for item in items))


def read_text(file: Path) -> str:
    """A prompt file, which must hold some text."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read prompts from {file}: {error}") from error
    if not text:
        raise InvalidRequestError(f"{file} is empty, there is nothing to cut prompts from")
    return text


def check_head(model: Model, otherwise: str = "") -> None:
    """Raises InvalidRequestError for a model without head. otherwise: what can be done with it all the same."""
    if not model.has_head:
        raise InvalidRequestError(
            f"{model.path.name} has no multi-token-prediction head{otherwise}; --head FILE gives it one"
        )


def check_modes(model: Model, modes: tuple[str, ...]) -> None:
    """Raises InvalidRequestError for modes that the model's head, or its absence, does not allow."""
    if modes != (NONE,):
        check_head(model, f", it can only be measured with --modes {NONE}")
    if "all-outputs" in modes and model.tap != "post_norm":
        others = ",".join(mode for mode in modes if mode != "all-outputs")
        raise InvalidRequestError(
            f"all-outputs hands over post-norm embeddings, the head of {model.path.name} takes pre-norm ones: "
            f"--modes {others or NONE}"
        )


def fitting(model: Model, sizes: tuple[int, ...], gen: int, *, asked: bool) -> tuple[tuple[int, ...], list[str]]:
    """The sizes that leave room for `gen` tokens in the context that the model was trained for, and a line on the rest.

    Raises InvalidRequestError when none does, or when one does not that was asked for.
    """
    long = [size for size in sizes if size + gen > model.n_ctx_train]
    why = (
        f"{', '.join(map(tokens, long))}: with {gen} tokens after the prompt, more than the {model.n_ctx_train} tokens "
        f"that {model.path.name} was trained for"
    )
    if long and (asked or len(long) == len(sizes)):
        raise InvalidRequestError(f"--sizes {why}")
    return tuple(size for size in sizes if size not in long), [f"prompts of {why}"] if long else []
