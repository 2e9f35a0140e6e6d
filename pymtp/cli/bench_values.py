"""Parsers and checks of bench options, which run before any measurement.

All of them raise InvalidRequestError, which names the option, for invalid values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pymtp.bench.batch import REAL
from pymtp.bench.decode import AUTO
from pymtp.bench.decode import NONE as DECODE_NONE
from pymtp.bench.library_pairs import LIBRARY, library_pairs
from pymtp.bench.prefill import NONE, format_size
from pymtp.bench.text_pairs import TextPair, kinds_of, read_pairs
from pymtp.cli.options import parse_count
from pymtp.errors import InvalidRequestError
from pymtp.model.model import Model

MAX_DEPTH = 64  # most drafts per round that a context allows


def read_numbers(option: str, text: str, high: int | None = None) -> tuple[int, ...]:
    """Parse a list of whole numbers from 1 to `high`: "8k,1k" → (1024, 8192). Return them sorted, each once."""
    numbers = {parse_count(item) or 0 for item in text.split(",")}
    if min(numbers) < 1 or (high and max(numbers) > high):
        allowed = f'like "2,3", from 1 to {high}' if high else 'like "2,3" or "1k,8k"'
        raise InvalidRequestError(f"{option} {text!r} must be whole numbers {allowed}")
    return tuple(sorted(numbers))


def read_number(option: str, text: str, high: int) -> int:
    """Parse one whole number from 1 to `high`: "4k" → 4096."""
    try:
        (number,) = read_numbers(option, text, high)
    except ValueError as error:
        raise InvalidRequestError(
            f'{option} {text!r} must be a whole number like "4096" or "4k", from 1 to {high}'
        ) from error
    return number


def read_names(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Parse a list of names, which must be in `known`. Return the names in the order of `known`."""
    names = {name.strip() for name in text.split(",")}
    if unknown := names - set(known):
        raise InvalidRequestError(
            f"{option} {', '.join(sorted(unknown))!r} is not known, the names are {', '.join(known)}"
        )
    return tuple(name for name in known if name in names)


def read_reals(option: str, text: str, high: float = math.inf) -> tuple[float, ...]:
    """Parse a list of numbers from 0 to `high`: "0,0.7" → (0.0, 0.7). Return them in the given order."""
    try:
        numbers = tuple(float(item) for item in text.split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(0 <= number <= high and math.isfinite(number) for number in numbers):
        allowed = f"from 0 to {high:g}" if math.isfinite(high) else "0 or more"
        raise InvalidRequestError(f'{option} {text!r} must be numbers {allowed}, like "0,0.7"')
    return numbers


def read_synthetic(text: str) -> tuple[float, ...]:
    """Parse the acceptance rates of the first, second, … draft of a round, none of which may exceed the one before.

    A draft can be accepted only if all drafts before it in its round are accepted.
    """
    rates = read_reals("--synthetic-acceptance", text, 1)
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise InvalidRequestError(
            f"--synthetic-acceptance {text!r}: no rate can be higher than the rate before it, because a draft is "
            "accepted only if the drafts before it are accepted"
        )
    return rates


def read_forced_text(text: str) -> list[TextPair]:
    """Read forced texts from a file, or make LIBRARY's. Raises InvalidRequestError if the file is wrong."""
    return library_pairs() if text == LIBRARY else read_pairs(Path(text))


def read_forced_kinds(kinds: str, pairs: Sequence[TextPair]) -> tuple[str, ...]:
    """Parse a list of kinds of forced texts, in which a kind may be given several times. Return them as given."""
    read_names("--kinds", kinds, kinds_of(pairs))
    return tuple(kind.strip() for kind in kinds.split(","))


def read_acceptance(text: str) -> tuple[str, ...]:
    """Parse a list of REAL and probabilities: "real,0.50" → ("real", "0.5"). Return each once, in the given order."""
    option = "--acceptance"
    items = [item.strip() for item in text.split(",")]
    return tuple(dict.fromkeys(REAL if item == REAL else f"{read_reals(option, item, 1)[0]:g}" for item in items))


def read_text(file: Path) -> str:
    """Read a text file from which prompts are cut. Raises InvalidRequestError if it cannot be read, or is empty."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read prompts from {file}: {error}") from error
    if not text:
        raise InvalidRequestError(f"{file} is empty, there is nothing to cut prompts from")
    return text


def check_head(model: Model, otherwise: str = "") -> None:
    """Raise InvalidRequestError for a model without head.

    otherwise: continues the message with an option that works without a head.
    """
    if not model.has_head:
        raise InvalidRequestError(
            f"{model.path.name} has no multi-token-prediction head{otherwise}; --head FILE gives it one"
        )


def arms_with_drafts(model: Model, arms: tuple[str, ...], *, forced: bool, explicit: bool) -> tuple[str, ...]:
    """Return the arms that the model can be measured with. Raises InvalidRequestError for arms that need a head.

    With forced text, a model without a head can be measured with drafts from text alone: AUTO.

    explicit: whether the user gave the arms; otherwise those that need a head are left out of forced texts' arms.
    """
    without_head = (DECODE_NONE, AUTO) if forced else (DECODE_NONE,)
    if forced and not explicit and not model.has_head:
        arms = without_head
    if not set(arms) <= set(without_head):
        check_head(model, f", it can only be measured with --depths {','.join(without_head)}")
    return arms


def check_modes(model: Model, modes: tuple[str, ...]) -> None:
    """Raise InvalidRequestError for modes that do not work with the model's head, or without a head."""
    if modes != (NONE,):
        check_head(model, f", it can only be measured with --modes {NONE}")
    if "all-outputs" in modes and model.tap != "post_norm":
        possible = ",".join(mode for mode in modes if mode != "all-outputs")
        raise InvalidRequestError(
            f"mode all-outputs gives the head post-norm embeddings, but the head of {model.path.name} needs pre-norm "
            f"ones: use --modes {possible or NONE}"
        )


def sizes_within_context(
    model: Model, sizes: tuple[int, ...], gen: int, *, explicit: bool
) -> tuple[tuple[int, ...], list[str]]:
    """Return the prompt sizes that leave room for `gen` tokens in the model's training context.

    Also returns a list of lines for `left_out` of the report: one line about the sizes that are too large, if any.

    Raises InvalidRequestError if all sizes are too large, or if one is and the user gave the sizes.

    explicit: whether the user gave the sizes.
    """
    too_long = [size for size in sizes if size + gen > model.n_ctx_train]
    reason = (
        f"{', '.join(map(format_size, too_long))}: with {gen} tokens after the prompt, more than the "
        f"{model.n_ctx_train} tokens that {model.path.name} was trained for"
    )
    if too_long and (explicit or len(too_long) == len(sizes)):
        raise InvalidRequestError(f"--sizes {reason}")
    return tuple(size for size in sizes if size not in too_long), [f"prompts of {reason}"] if too_long else []
