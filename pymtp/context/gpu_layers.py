"""n_gpu_layers="auto": the number of layers that fit on the GPUs, by the plan of `pymtp info --memory`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pymtp.context.memory import DeviceMemory, plan_memory
from pymtp.context.options import ContextOptions
from pymtp.model.model import Model
from pymtp.model.options import ModelOptions
from pymtp.native.build_info import free_gpu_memory

# Bytes left free on each GPU for kernels, their libraries and the display, as with llama.cpp's --fit-target.
MARGIN = 1 << 30

Plan = Callable[[int], Sequence[DeviceMemory]]


def layers_that_fit(plan: Plan, free: Mapping[str, int], n_layers: int) -> int:
    """Return the largest number of layers that fits in the free memory of each GPU; -1 where all n_layers fit.

    plan: a function that returns the planned memory of each device for a number of layers on GPUs, -1 for all. More
        layers need more memory.
    free: free bytes by device name. A device that is not listed has no free memory.

    llama.cpp places the output layer on GPUs first, and then the blocks from the last to the first. The head is the
    last block: it is on a GPU before any block of the trunk, which is right, because it runs several times a round.
    """

    def fits(layers: int) -> bool:
        return all(m.host or m.total <= free.get(m.device, 0) for m in plan(layers))

    if fits(-1):
        return -1
    # each new value of `fit` has been checked, so the result fits even if the plan does not grow with each layer
    fit, not_fit = 0, n_layers
    while not_fit - fit > 1:
        middle = (fit + not_fit) // 2
        if fits(middle):
            fit = middle
        else:
            not_fit = middle
    return fit


def projector_device(*, offload: bool) -> str | None:
    """Return the name of the GPU that runs a projector, the first one; None for the CPU."""
    return next(iter(free_gpu_memory()), None) if offload else None


def planned_layers(
    path: str | os.PathLike[str] | None,
    placing: ModelOptions,
    context: ContextOptions,
    *,
    mtp: bool,
    reserved: Mapping[str | None, int] = MappingProxyType({}),
) -> int:
    """Choose n_gpu_layers by the GPUs' free memory at this moment. Return 0 without a GPU.

    mtp: whether the head will be loaded, if the model has one.
    reserved: bytes by device that the model must leave free, for a projector.

    Raises the errors of Model and plan_memory, and ModelLoadError for an adapter that does not exist.
    """
    free = free_gpu_memory()
    if not free:
        return 0
    room = {device: n - MARGIN - placing.adapter_bytes() - reserved.get(device, 0) for device, n in free.items()}
    with Model(path, vocab_only=True, mtp=mtp, head=placing.head) as header:

        def plan(layers: int) -> Sequence[DeviceMemory]:
            return plan_memory(header, context, placing=placing, n_gpu_layers=layers)

        # the trunk's blocks, the head's block and the output layer
        return layers_that_fit(plan, room, header.n_layer + 2)
