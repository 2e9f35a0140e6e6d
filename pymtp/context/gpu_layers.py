"""How many layers fit on the GPUs: n_gpu_layers="auto", by the plan that `pymtp info --memory` shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pymtp.context.memory import DeviceMemory, plan_memory
from pymtp.drafting.depth import MAX_AUTO
from pymtp.model.model import Model
from pymtp.model.options import ModelOptions, read_options
from pymtp.native.build_info import free_gpu_memory

# Left free on each GPU, as llama.cpp's --fit-target: kernels, their libraries and what else draws on the screen.
MARGIN = 1 << 30

Plan = Callable[[int], Sequence[DeviceMemory]]


def layers_that_fit(plan: Plan, free: Mapping[str, int], n_layers: int) -> int:
    """The most layers whose plan fits: on each GPU no more than the bytes that are free there. 0 where not even one
    does, and -1 where all of n_layers do.

    plan: the memory with so many layers on GPUs, -1 for all; it grows with them. free: by the device's name. A device
    that is not named has none.

    llama.cpp takes the output layer first and then blocks from the last on, so the head and its cache are among the
    first: they run several times a round, and each block of the trunk once.
    """

    def fits(layers: int) -> bool:
        return all(m.host or m.total <= free.get(m.device, 0) for m in plan(layers))

    if fits(-1):
        return -1
    # all layers do not fit; whatever the plan is like, what is returned was seen to fit
    fit, not_fit = 0, n_layers
    while not_fit - fit > 1:
        middle = (fit + not_fit) // 2
        if fits(middle):
            fit = middle
        else:
            not_fit = middle
    return fit


def planned_layers(
    path: str | os.PathLike[str] | None, options: ModelOptions, *, draft_tokens: int | str, **of_context: Any
) -> int:
    """n_gpu_layers for an LLM of the file with these options, by the GPUs' free memory now. 0 without a GPU, where
    nothing is planned.

    of_context: options of Context. Raises as Model and plan_memory, and ModelLoadError for an adapter that is not
    there.
    """
    free = free_gpu_memory()
    if not free:
        return 0
    room = {device: n - MARGIN - options.adapter_bytes() for device, n in free.items()}
    with Model(path, vocab_only=True, mtp=_takes_head(options, draft_tokens), head=options.head) as looked_at:
        most = draft_tokens
        if most == "auto":
            rows = [int(of_context[name]) - 1 for name in ("n_batch", "n_ubatch") if name in of_context]
            most = max(0, min([MAX_AUTO, *rows])) if looked_at.mtp else 0

        def plan(layers: int) -> Sequence[DeviceMemory]:
            return plan_memory(looked_at, n_gpu_layers=layers, placing=options, draft_tokens=most, **of_context)

        # blocks, those of the head among them, and the output layer
        return layers_that_fit(plan, room, looked_at.n_layer + 2)


def fitting_model(
    path: str | os.PathLike[str] | None, keywords: Mapping[str, Any], *, draft_tokens: int | str, **of_context: Any
) -> Model:
    """A Model for a context with these options. keywords: of ModelOptions. Raises as Model, and, where
    n_gpu_layers is "auto", as plan_memory."""
    keywords = read_options(keywords)
    options = ModelOptions(**keywords)
    if options.n_gpu_layers == "auto":
        layers = planned_layers(path, options, draft_tokens=draft_tokens, **of_context)
        keywords = {**keywords, "n_gpu_layers": layers}
    return Model(path, mtp=_takes_head(options, draft_tokens), **keywords)


def _takes_head(options: ModelOptions, draft_tokens: int | str) -> bool:
    """Whether the head is loaded: for drafts, and for an adapter, which may have tensors of the head."""
    return draft_tokens != 0 or bool(options.adapters)
