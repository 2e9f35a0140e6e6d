"""n_gpu_layers="auto": the number of layers that fit on the GPUs, by the plan of `pymtp info --memory`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pymtp.context.memory import DeviceMemory, plan_memory
from pymtp.drafting.depth import MAX_AUTO
from pymtp.model.model import Model
from pymtp.model.options import ModelOptions, read_options
from pymtp.native.build_info import free_gpu_memory

# Bytes left free on each GPU for kernels, their libraries and the display, as with llama.cpp's --fit-target.
MARGIN = 1 << 30

Plan = Callable[[int], Sequence[DeviceMemory]]


def layers_that_fit(plan: Plan, free: Mapping[str, int], n_layers: int) -> int:
    """Return the largest number of layers that fits in the free memory of each GPU; -1 where all n_layers fit.

    plan: returns the memory with a given number of layers on GPUs, -1 for all. It grows with that number.
    free: free bytes by device name. A device that is not listed has none.

    llama.cpp takes the output layer first and then blocks from the last on, so the head and its cache are among the
    first: they run several times a round, and each block of the trunk once.
    """

    def fits(layers: int) -> bool:
        return all(m.host or m.total <= free.get(m.device, 0) for m in plan(layers))

    if fits(-1):
        return -1
    # not all layers fit. The result was checked, even where the plan does not grow steadily
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
    """Choose n_gpu_layers by the GPUs' free memory at this moment. Return 0 without a GPU.

    of_context: keywords of Context. Raises as Model and plan_memory, and ModelLoadError for an adapter that does not
    exist.
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
    """Load a Model for a context with these options.

    keywords: keywords of ModelOptions. of_context: keywords of Context. Raises as Model, and as plan_memory where
    n_gpu_layers is "auto".
    """
    keywords = read_options(keywords)
    options = ModelOptions(**keywords)
    if options.n_gpu_layers == "auto":
        layers = planned_layers(path, options, draft_tokens=draft_tokens, **of_context)
        keywords = {**keywords, "n_gpu_layers": layers}
    return Model(path, mtp=_takes_head(options, draft_tokens), **keywords)


def _takes_head(options: ModelOptions, draft_tokens: int | str) -> bool:
    """Return whether the head is loaded: for drafts, and for adapters, which may have tensors of the head."""
    return draft_tokens != 0 or bool(options.adapters)
