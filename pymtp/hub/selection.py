"""The model of a repository that a name means, and the head that goes with it, by headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as remembered
from typing import NamedTuple

from pymtp.errors import ModelLoadError
from pymtp.hub.companion import find_head, named_head
from pymtp.hub.contents import Contents, Look, look_into
from pymtp.hub.files import HubModel, models
from pymtp.hub.matching import matching, names_head
from pymtp.hub.select import choose
from pymtp.hub.source import Say, Source

RUNS = ("qwen35", "qwen35moe", "qwen3next")  # architectures


class Selection(NamedTuple):
    """head: a file of its own; None where the model has one within it, and where there is none or none is wanted."""

    model: HubModel
    head: HubModel | None


def select(source: Source, with_head: bool, say: Say) -> Selection:
    """Choose a model and its head, before any of their weights come. with_head: whether a head is of use. say: gets a
    note where the model has none.

    Raises ModelLoadError for what is not there or is no model that pymtp runs, InvalidRequestError for names that mean
    several models or heads.
    """
    name, repo = source.name, source.name.repo

    @remembered
    def look(model: HubModel) -> Contents:
        return look_into(model, source.reader, repo, source.where)

    found = models(source.files)
    wanted, wanted_head = _wanted(found, name.wanted, name.head)
    model = choose(found, wanted, look, source.where)
    about = look(model)
    if about.architecture not in RUNS:
        runs = f"pymtp runs {', '.join(RUNS[:-1])} and {RUNS[-1]}"
        raise ModelLoadError(f"{model.name} of {repo}: architecture is {about.architecture!r:.100}, {runs}")
    if not with_head:
        return Selection(model, None)
    if wanted_head is not None:
        return Selection(model, named_head(found, model, wanted_head, look, source.where))
    if about.has_head:
        return Selection(model, None)
    head = find_head(found, model, look)
    if head is None:
        say(f"{model.name} of {repo} {_without(found, about, look)}: it is decoded without drafts")
    return Selection(model, head)


def _wanted(found: Sequence[HubModel], wanted: str | None, head: str | None) -> tuple[str | None, str | None]:
    """What is meant by MODEL+HEAD: the model alone where a file's name has the "+"."""
    whole = f"{wanted or ''}+{head}"
    return (whole, None) if head is not None and matching(found, whole) else (wanted, head)


def _without(found: Sequence[HubModel], about: Contents, look: Look) -> str:
    """Say that a model has no head, and why not or which could be asked for."""
    text = "has no multi-token-prediction head"
    if about.announced:
        text += ": it announces one, whose tensors are not there"
    reduced = [other.name for other in found if names_head(other.name) and _is_reduced(other, look)]
    return text + "".join(f"; one for part of the vocabulary is asked for by +{name}" for name in reduced[:1])


def _is_reduced(model: HubModel, look: Look) -> bool:
    try:
        return look(model).reduced
    except ModelLoadError:
        return False
