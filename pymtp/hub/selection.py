"""Select the model that a name means, its head and its projector: by filenames first, then by headers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.hub.filenames import (
    describe_choices,
    has_quantization,
    is_head_name,
    is_model_name,
    matching_models,
    mentions_head,
)
from pymtp.hub.files import HubModel, group_models, join_names
from pymtp.hub.gguf_contents import MODEL, GgufContents, Inspect, inspect_model
from pymtp.hub.heads import find_head, head_by_name
from pymtp.hub.projectors import find_projector
from pymtp.hub.snapshot import Notify, Snapshot

SUPPORTED = ("qwen35", "qwen35moe", "qwen3next")  # architectures

# the order if no quantization is given: about 4.5 bits a weight, then more, then fewer
PREFERRED = (
    *("Q4_K_M", "Q4_K_XL", "Q4_K_L", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0"),
    *("Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "BF16", "F16", "F32"),
)
UNQUANTIZED = ("BF16", "F16", "F32")  # not chosen for their head: they are three times as large as Q4_K_M


class Selection(NamedTuple):
    """The selected model, with its separate head and its projector.

    head: None for a model with its own head, or without any.
    """

    model: HubModel
    head: HubModel | None
    projector: HubModel | None


def select_files(snapshot: Snapshot, with_head: bool, with_projector: bool, notify: Notify) -> Selection:
    """Select a model, its head and its projector before any weights are downloaded.

    with_head, with_projector: whether a head and a projector would be used.
    notify: called with a note if the model has no head.

    Raises ModelLoadError for a file that does not exist or that pymtp cannot run, InvalidRequestError for a name that
    matches several models or heads.
    """
    name, repo = snapshot.name, snapshot.name.repo

    @cache
    def inspect(model: HubModel) -> GgufContents:
        return inspect_model(model, snapshot.reader, repo, snapshot.where)

    candidates = group_models(snapshot.files)
    filename, head_filename = _resolve_plus(candidates, name.filename, name.head_filename)
    model = choose_model(candidates, filename, inspect, snapshot.where)
    contents = inspect(model)
    if contents.architecture not in SUPPORTED:
        supported = f"pymtp runs {', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}"
        raise ModelLoadError(f"{model.name} of {repo}: architecture is {contents.architecture!r:.100}, {supported}")
    projector = find_projector(candidates, model, inspect) if with_projector else None
    if not with_head:
        return Selection(model, None, projector)
    if head_filename is not None:
        head = head_by_name(candidates, model, head_filename, inspect, snapshot.where)
        return Selection(model, head, projector)
    if contents.has_head:
        return Selection(model, None, projector)
    found = find_head(candidates, model, inspect)
    if found is None:
        reason = _missing_head_reason(candidates, contents, inspect)
        notify(f"{model.name} of {repo} {reason}: it is decoded without a head's drafts")
    return Selection(model, found, projector)


def _resolve_plus(
    candidates: Sequence[HubModel], filename: str | None, head_filename: str | None
) -> tuple[str | None, str | None]:
    """Return filename and head_filename; joined to one filename if a file whose name contains that "+" matches."""
    joined = f"{filename or ''}+{head_filename}"
    if head_filename is not None and matching_models(candidates, joined):
        return joined, None
    return filename, head_filename


def _missing_head_reason(candidates: Sequence[HubModel], contents: GgufContents, inspect: Inspect) -> str:
    """Return a phrase that the model has no head, with the reason, or with a head that the user could name."""
    text = "has no multi-token-prediction head"
    if contents.announced:
        text += ": it announces one, whose tensors are not there"
    reduced = [file.name for file in candidates if is_head_name(file.name) and _is_reduced(file, inspect)]
    return text + "".join(f"; add +{name} to the name for a head with part of the vocabulary" for name in reduced[:1])


def _is_reduced(model: HubModel, inspect: Inspect) -> bool:
    try:
        return inspect(model).reduced
    except ModelLoadError:
        return False


def choose_model(candidates: Sequence[HubModel], filename: str | None, inspect: Inspect, where: str) -> HubModel:
    """Choose the model for a filename, or for None the best one in the order of PREFERRED.

    Models with a head come first. Files whose names are those of another kind of file come last, and are only chosen if
    their headers are those of models. A file that cannot be inspected is chosen if nothing else matches.

    candidates: all models of the repository.
    inspect: is called as rarely as possible, because it downloads a header.
    where: the repository or its cache, for messages.

    Raises ModelLoadError if there is no such model, InvalidRequestError if there are several.
    """
    named_models = [model for model in candidates if is_model_name(model.name)]
    named_otherwise = [model for model in candidates if not is_model_name(model.name)]
    for pool in (named_models, named_otherwise):
        if filename is None:
            chosen = _best_quantization(pool, candidates, inspect)
        else:
            matches = [model for model in matching_models(candidates, filename) if model in pool]
            chosen = _only_model(matches, inspect, filename)
        if chosen is not None:
            return chosen
    matches = list(candidates) if filename is None else matching_models(candidates, filename)
    if not matches:
        raise ModelLoadError(
            f"{where} has no GGUF model"
            if filename is None
            else f"{where} has no GGUF file for {filename!r}; there are: {describe_choices(candidates)}"
        )
    kinds = ", ".join(f"{model.name} is {inspect(model).kind}" for model in matches[:3])
    given = f" for {filename!r}" if filename else ""
    raise ModelLoadError(f"{where} has no GGUF model{given}: {kinds}; {_remedy(candidates, matches)}")


def _remedy(candidates: Sequence[HubModel], matches: Sequence[HubModel]) -> str:
    models = [model.name for model in candidates if is_model_name(model.name) and model not in matches]
    if models:
        return f"models by their names: {join_names(models)}"
    return "a head is not a model: give it beside its model, by head= or --head"


def _best_quantization(pool: Sequence[HubModel], candidates: Sequence[HubModel], inspect: Inspect) -> HubModel | None:
    groups = {tag: group for tag in PREFERRED if (group := [model for model in pool if has_quantization(model, tag)])}
    grouped = {model for group in groups.values() for model in group}
    for group in (*groups.values(), [model for model in pool if model not in grouped]):
        chosen = _only_model(group, inspect, None)
        if chosen is None:
            continue
        if len(pool) > 1 and not _can_draft(chosen, candidates, inspect):
            # only models that mention a head in their names: inspecting all could take too long
            for tag, models in groups.items():
                named = [model for model in models if tag not in UNQUANTIZED and mentions_head(model.name)]
                if with_head := [model for model in named if _has_head(model, inspect)]:
                    return _only_model(with_head, inspect, None)
        return chosen
    return None


def _only_model(matches: Sequence[HubModel], inspect: Inspect, filename: str | None) -> HubModel | None:
    """Return the one model among the matches; None if there is no model.

    Raises InvalidRequestError for several models.
    """
    inspected = [(model, _try_inspect(model, inspect)) for model in matches]
    models = [(model, contents) for model, contents in inspected if contents is None or contents.kind == MODEL]
    sound = [model for model, contents in models if contents is not None]
    with_head = [model for model, contents in models if contents is not None and contents.has_head]
    best = with_head or sound or [model for model, _ in models]
    if len(best) > 1:
        given = "without a quantization" if filename is None else f"for {filename!r}"
        names = join_names([model.name for model in best])
        raise InvalidRequestError(f"{given} there are {len(best)} models, name one of them: {names}")
    return best[0] if best else None


def _can_draft(model: HubModel, candidates: Sequence[HubModel], inspect: Inspect) -> bool:
    """Tell whether a model has its own head or a separate one."""
    contents = _try_inspect(model, inspect)
    return contents is not None and (contents.has_head or find_head(candidates, model, inspect) is not None)


def _has_head(model: HubModel, inspect: Inspect) -> bool:
    contents = _try_inspect(model, inspect)
    return contents is not None and contents.kind == MODEL and contents.has_head


def _try_inspect(model: HubModel, inspect: Inspect) -> GgufContents | None:
    """Return the contents; None for a damaged or incomplete file, for which `inspect` raises again if it is chosen."""
    try:
        return inspect(model)
    except ModelLoadError:
        return None
