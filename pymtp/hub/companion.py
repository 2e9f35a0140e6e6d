"""Which of a repository's heads belongs to a model without one, as llama.cpp's -hf finds it (common/download.cpp,
find_best_sibling): the nearest folder, then the same type of weights, then the nearest number of bits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.contents import HEAD, Contents, Look
from pymtp.hub.files import HubModel, listed
from pymtp.hub.matching import matching, may_name_head, names_head, weight_type, without_type


def find_head(found: Sequence[HubModel], model: HubModel, look: Look) -> HubModel | None:
    """Find the head for a model: the first by `_rank` that fits it. Heads over part of the vocabulary are left to those
    who name them, as llama.cpp leaves them. Files are looked into whose names say that they may be heads; of those that
    llama.cpp would not find, only what is smaller than the model and not named as its other quantizations.
    """
    named = [other for other in found if names_head(other.name)]
    others = [
        other
        for other in found
        if other not in named
        and may_name_head(other.name)
        and _size(other) < _size(model)
        and without_type(other.name) != without_type(model.name)
    ]
    of_model = look(model)
    for group in (named, others):
        for head in sorted(group, key=lambda other: _rank(model, other)):
            with suppress(ModelLoadError):  # a damaged head is none; where it is asked for, it is told
                if head != model and not _unfit(of_model, it := look(head)) and it.has_head and not it.reduced:
                    return head
    return None


def named_head(found: Sequence[HubModel], model: HubModel, wanted: str, look: Look, where: str) -> HubModel:
    """Find the head that is asked for by a quantization, a file or a pattern.

    Raises ModelLoadError where there is none, or one that does not fit the model; InvalidRequestError for several.
    """
    asked = [other for other in matching(found, wanted) if other != model]
    heads = [other for other in asked if names_head(other.name) and look(other).kind == HEAD]
    heads = heads or [other for other in asked if look(other).kind == HEAD]
    if not heads:
        what = f"; {asked[0].name} is {look(asked[0]).kind}" if len(asked) == 1 else ""
        there = [other.name for other in found if names_head(other.name)]
        raise ModelLoadError(f"{where} has no head for {wanted!r}{what}; heads by their names: {listed(there)}")
    if len(heads) > 1:
        several = listed([head.name for head in heads])
        raise InvalidRequestError(f"for {wanted!r} there are {len(heads)} heads, name one of them: {several}")
    if unfit := _unfit(look(model), look(heads[0])):
        raise ModelLoadError(f"the head {heads[0].name} of {where} does not fit {model.name}: {unfit}")
    return heads[0]


def _unfit(model: Contents, head: Contents) -> str:
    """Say why a file is no head of a model; "" where it may be one."""
    if head.kind != HEAD:
        return f"it is {head.kind}"
    if head.architecture != model.architecture:
        return f"its architecture is {head.architecture!r}, the model's {model.architecture!r}"
    if head.width and model.width and head.width != model.width:
        return f"its rows have {head.width} values, the model's {model.width}"
    return ""


def _rank(model: HubModel, head: HubModel) -> tuple[bool, int, bool, int, str]:
    """Order heads, the best first. llama.cpp looks into the model's folder and those that this is in; what is beside
    them, as unsloth's MTP/, comes after."""
    of_model, of_head = (path.split("/")[:-1] for path in (model.name, head.name))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(of_model, of_head, strict=False)))
    (kind, bits), (own_kind, own_bits) = weight_type(model.name), weight_type(head.name)
    return shared < len(of_head), -shared, own_kind != kind, abs(own_bits - bits), head.name


def _size(model: HubModel) -> int:
    return sum(part.size for part in model.parts)
