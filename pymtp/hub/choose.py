"""Which of a repository's models is meant: by quantization, name or pattern, and those with a head before others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.files import HubModel, listed

# where no quantization is asked for, the first of these that there is: about 4.5 bits a weight, then more, then fewer
PREFERRED = (
    *("Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "BF16", "F16", "F32"),
)
_BESIDE = re.compile(r"(^|/)mmproj|imatrix", re.IGNORECASE)  # GGUF files that are no model of text
_SAYS_HEAD = re.compile(r"mtp|nextn", re.IGNORECASE)

HasHead = Callable[[HubModel], bool]


def choose(found: Sequence[HubModel], wanted: str | None, has_head: HasHead, where: str) -> HubModel:
    """The model that is meant.

    found: all there are. where: what holds them, for messages.
    has_head: looks into a model. It is asked for as few as possible: looking takes time.

    Raises ModelLoadError where there is none, InvalidRequestError where several are meant.
    """
    texts = [model for model in found if not _BESIDE.search(model.name)]
    if wanted is None:
        return _preferred(texts, has_head, where)
    matching = [model for model in texts if _matches(model, wanted)] or [
        model for model in found if model.name.lower() == wanted.lower()
    ]
    if not matching:
        raise ModelLoadError(f"{where} has no GGUF file for {wanted!r}; there are: {_names(found)}")
    return _one(matching, has_head, wanted)


def _preferred(texts: Sequence[HubModel], has_head: HasHead, where: str) -> HubModel:
    if not texts:
        raise ModelLoadError(f"{where} has no GGUF model")
    groups = [group for tag in PREFERRED if (group := [model for model in texts if _has_tag(model, tag)])]
    if not groups:
        return _one(texts, has_head, None)
    first, *others = groups
    if len(texts) > 1 and not any(map(has_head, first)):
        for group in others:  # only what says so of itself: a look at all could take longer than the model
            if with_head := [model for model in group if _SAYS_HEAD.search(model.name) and has_head(model)]:
                return _one(with_head, has_head, None)
    return _one(first, has_head, None)


def _one(matching: Sequence[HubModel], has_head: HasHead, wanted: str | None) -> HubModel:
    if len(matching) > 1:
        matching = [model for model in matching if has_head(model)] or matching
    if len(matching) > 1:
        asked = "without a quantization" if wanted is None else f"for {wanted!r}"
        raise InvalidRequestError(f"{asked} there are {len(matching)} models, name one of them: {_names(matching)}")
    return matching[0]


def _matches(model: HubModel, wanted: str) -> bool:
    if any(sign in wanted for sign in "*?["):
        pattern = wanted.lower()
        return any(
            fnmatchcase(name, pattern) for part in model.parts for name in (part.path.lower(), _base(part.path).lower())
        )
    if wanted.lower().endswith(".gguf"):
        return any(wanted.lower() in (part.path.lower(), _base(part.path).lower()) for part in model.parts)
    return _has_tag(model, wanted)


def _has_tag(model: HubModel, tag: str) -> bool:
    """Whether a quantization stands in the name for itself: Q4_K is not in Q4_K_M, nor Q4_0 in IQ4_0."""
    return re.search(rf"(?<![a-z0-9]){re.escape(tag)}(?![a-z0-9_])", model.name, re.IGNORECASE) is not None


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _names(found: Sequence[HubModel]) -> str:
    return listed([model.name for model in found])
