"""Which of a repository's models is meant: by quantization, name or pattern, and those with a head before others."""

from __future__ import annotations

from collections.abc import Sequence

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.companion import find_head
from pymtp.hub.contents import MODEL, Contents, Look
from pymtp.hub.files import HubModel, listed
from pymtp.hub.matching import choices, has_type, matching, may_name_head, names_model

# where no quantization is asked for, the first of these that there is: about 4.5 bits a weight, then more, then fewer
PREFERRED = (
    *("Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "BF16", "F16", "F32"),
)
UNQUANTIZED = ("BF16", "F16", "F32")  # three times as large as the first: a head is not worth that


def choose(found: Sequence[HubModel], wanted: str | None, look: Look, where: str) -> HubModel:
    """Choose the model that is meant. Files whose names say that they are no models come after the others, and only
    those are taken whose tensors make them models. A file that cannot be looked into is taken where no other is meant.

    found: all there are. where: what holds them, for messages.
    look: is asked for as few as possible: looking takes time.

    Raises ModelLoadError where there is none, InvalidRequestError where several are meant.
    """
    plain = [model for model in found if names_model(model.name)]
    named_otherwise = [model for model in found if not names_model(model.name)]
    for pool in (plain, named_otherwise):
        if wanted is None:
            chosen = _preferred(pool, found, look)
        else:
            chosen = _one([model for model in matching(found, wanted) if model in pool], look, wanted)
        if chosen is not None:
            return chosen
    asked = found if wanted is None else matching(found, wanted)
    if not asked:
        raise ModelLoadError(
            f"{where} has no GGUF model"
            if wanted is None
            else f"{where} has no GGUF file for {wanted!r}; there are: {choices(found)}"
        )
    what = ", ".join(f"{model.name} is {look(model).kind}" for model in asked[:3])
    meant = f" for {wanted!r}" if wanted else ""
    raise ModelLoadError(f"{where} has no GGUF model{meant}: {what}; {_remedy(found, asked)}")


def _remedy(found: Sequence[HubModel], asked: Sequence[HubModel]) -> str:
    models = [model.name for model in found if names_model(model.name) and model not in asked]
    if models:
        return f"models by their names: {listed(models)}"
    return "a head is given beside its model: head= or --head"


def _preferred(pool: Sequence[HubModel], found: Sequence[HubModel], look: Look) -> HubModel | None:
    groups = {tag: group for tag in PREFERRED if (group := [model for model in pool if has_type(model, tag)])}
    grouped = {model for group in groups.values() for model in group}
    for group in (*groups.values(), [model for model in pool if model not in grouped]):
        chosen = _one(group, look, None)
        if chosen is None:
            continue
        if len(pool) > 1 and not _drafts(chosen, found, look):
            for tag, other in groups.items():  # only what says so of itself: a look at all could take too long
                named = [model for model in other if tag not in UNQUANTIZED and may_name_head(model.name)]
                if said := [model for model in named if _has_head(model, look)]:
                    return _one(said, look, None)
        return chosen
    return None


def _one(asked: Sequence[HubModel], look: Look, wanted: str | None) -> HubModel | None:
    """The one model among those that match, None where they are no models."""
    looked = [(model, _contents(model, look)) for model in asked]
    models = [(model, it) for model, it in looked if it is None or it.kind == MODEL]
    sound = [model for model, it in models if it is not None]
    with_head = [model for model, it in models if it is not None and it.has_head]
    meant = with_head or sound or [model for model, _ in models]
    if len(meant) > 1:
        words = "without a quantization" if wanted is None else f"for {wanted!r}"
        names = listed([model.name for model in meant])
        raise InvalidRequestError(f"{words} there are {len(meant)} models, name one of them: {names}")
    return meant[0] if meant else None


def _drafts(model: HubModel, found: Sequence[HubModel], look: Look) -> bool:
    """Tell whether a model has a head, within it or in a file of its own."""
    it = _contents(model, look)
    return it is not None and (it.has_head or find_head(found, model, look) is not None)


def _has_head(model: HubModel, look: Look) -> bool:
    it = _contents(model, look)
    return it is not None and it.kind == MODEL and it.has_head


def _contents(model: HubModel, look: Look) -> Contents | None:
    """None for a file that is damaged or not all there: where it is the one that is meant, a look tells."""
    try:
        return look(model)
    except ModelLoadError:
        return None
