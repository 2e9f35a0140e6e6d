"""The facts that a server tells of its model: known when the model is loaded, and, of a model file, before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymtp.model.model import Model


@dataclass(frozen=True)
class ModelFacts:
    """What a server tells of its model.

    model: the loaded model, or one that was opened with vocab_only.
    names: all names by which requests may ask for the model; the first is the name in answers.
    template: the source of the chat template, None for none.
    n_ctx: the tokens of a slot. n_seq_max: the number of slots.
    sampling: the default sampling parameters, by the names of SamplingParams.
    sees_images: whether chats may have images: the model has a projector.
    whole_file: whether `model` has its whole file, and not only the header of a file on the hub.
    """

    model: Model
    names: tuple[str, ...]
    template: str | None
    n_ctx: int
    n_seq_max: int
    sampling: Mapping[str, Any]
    sees_images: bool
    whole_file: bool = True
