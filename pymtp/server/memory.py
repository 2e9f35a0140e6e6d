"""The memory that a server needs for a model, and the context length and number of slots that fit into the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from pymtp.context.gpu_layers import MARGIN, planned_layers
from pymtp.context.host_memory import default_cache_bytes, free_host_memory
from pymtp.context.memory import DeviceMemory, least_memory, plan_memory
from pymtp.context.options import whole_ctx
from pymtp.hub.files import split_paths
from pymtp.hub.from_pretrained import fetch_headers
from pymtp.hub.model_download import warn
from pymtp.hub.names import read_name
from pymtp.model.model import Model
from pymtp.native.build_info import free_gpu_memory
from pymtp.options import LLMOptions
from pymtp.server.metrics.logs import hold_errors
from pymtp.validation import is_hub_name

HOST = "host"  # the name of the host's memory in maps of bytes by device
MAX_CTX = 131_072  # tokens; a longer context has to be asked for
MAX_SLOTS = 4
# The shares of the memory beside the weights that contexts may take by default: the first slot, and all slots. The rest
# is for cached prefixes, for other programs, and for the files that the system caches.
FIRST_SHARE, SHARE = 0.5, 0.25
# Resident bytes of a worker that the plan does not count: Python, libraries, the vocabulary, graphs. A worker of the
# shipped model has 95 MiB of them, and one with 248,320 tokens about 100 MiB more.
WORKER_BYTES = 200 * 2**20

FITTED = ("n_ctx", "n_seq_max")  # the options that can be left to `fit_options`
Plan = Callable[[int, int], Mapping[str, tuple[int, int]]]


@dataclass(frozen=True)
class Fit:
    """A context length and a number of slots that fit. n_ctx: tokens of a slot."""

    n_ctx: int
    n_seq_max: int


def choose_fit(
    plan: Plan, free: Mapping[str, int], trained: int, *, n_ctx: int | None = None, n_seq_max: int | None = None
) -> Fit:
    """Choose the longest context that fits with one slot, and then the number of slots that fit with it.

    The context is at most `trained` and MAX_CTX, and is halved until one slot fits into FIRST_SHARE of the memory.
    There are as many slots as fit into SHARE, at most MAX_SLOTS. If nothing fits, the smallest choice is returned: the
    machine may still manage, and one text needs some context.

    plan: returns the bytes of weights and of everything else, by device, for a context length and a number of slots.
    free: the bytes that may be taken, by device; a device that is not listed has no limit.
    n_ctx, n_seq_max: given values, which stay.
    """

    def fits(ctx: int, slots: int, share: float) -> bool:
        return all(
            rest <= max(0, free[device] - weights) * share
            for device, (weights, rest) in plan(ctx, slots).items()
            if device in free
        )

    shortest = min(trained, LLMOptions.n_ctx)
    ctx = min(trained, MAX_CTX) if n_ctx is None else n_ctx
    while n_ctx is None and ctx // 2 >= shortest and not fits(ctx, n_seq_max or 1, FIRST_SHARE):
        ctx //= 2
    slots = n_seq_max or next((n for n in range(MAX_SLOTS, 1, -1) if fits(ctx, n, SHARE)), 1)
    return Fit(ctx, slots)


def fit_options(
    options: LLMOptions,
    names: tuple[str, ...],
    *,
    free: Mapping[str, int] | None = None,
    model: Model | None = None,
) -> LLMOptions:
    """Return options of a model file in which n_ctx and n_seq_max fit into the free memory; see `choose_fit`.

    names: those of FITTED to be chosen; other options stay.
    free: the bytes that may be taken, by device; None for the free memory of the devices.
    model: the loaded model, if all of it is in the host's memory; None to plan by the header of its file.

    Raises the errors of Model and plan_memory.
    """
    if not names:
        return options
    room = free_memory() if free is None else free
    with open_header(options) if model is None else nullcontext(model) as header:
        given = {name: None if name in names else getattr(options, name) for name in FITTED}
        if given["n_ctx"] == 0:
            given["n_ctx"] = header.n_ctx_train
        plan = _planned(header, options, given["n_ctx"]) if model is None else _estimated(model, options)
        fit = choose_fit(plan, room, header.n_ctx_train, **given)
    return replace(options, **{name: getattr(fit, name) for name in names})


def has_gpu(free: Mapping[str, int]) -> bool:
    """Return whether there is memory other than the host's."""
    return any(name != HOST for name in free)


def _planned(header: Model, options: LLMOptions, n_ctx: int | None) -> Plan:
    """Return a plan that is computed at three points and is linear between them.

    A computed plan reads the file's header and vocabulary, which can take a second.

    n_ctx: the only context length, None for those that can be chosen.
    """
    low = min(header.n_ctx_train, LLMOptions.n_ctx) if n_ctx is None else n_ctx
    high = min(header.n_ctx_train, MAX_CTX) if n_ctx is None else n_ctx

    def point(ctx: int, slots: int) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for device in _plan(header, replace(options, n_ctx=ctx, n_seq_max=slots)):
            name = HOST if device.host else device.device
            weights, rest = found.get(name, (0, 0))
            found[name] = weights + device.weights, rest + device.total - device.weights
        for gpu, nbytes in options.projector_memory().items():
            weights, rest = found.get(gpu or HOST, (0, 0))
            found[gpu or HOST] = weights + nbytes, rest
        return found

    short = point(low, 1)
    long = short if high == low else point(high, 1)
    many = point(high, MAX_SLOTS)

    def plan(ctx: int, slots: int) -> dict[str, tuple[int, int]]:
        by_ctx = (ctx - low) / (high - low) if high > low else 0.0
        by_slots = (slots - 1) / (MAX_SLOTS - 1) * ctx / high
        return {
            name: (
                weights,
                int(
                    rest + by_ctx * (long[name][1] - rest) + by_slots * (many.get(name, long[name])[1] - long[name][1])
                ),
            )
            for name, (weights, rest) in short.items()
        }

    return plan


def _estimated(model: Model, options: LLMOptions) -> Plan:
    """Return a plan of K and V and the states in the host's memory, without compute buffers. It reads no file."""
    files = [model.path, *([] if model.head is None else [Path(model.head)])]
    weights = sum(part.stat().st_size for file in files for part in split_paths(file)) + options.mmproj_bytes()

    def plan(n_ctx: int, n_seq_max: int) -> dict[str, tuple[int, int]]:
        params, pair = replace(options, n_ctx=n_ctx, n_seq_max=n_seq_max).context_params(model)
        return {HOST: (weights, least_memory(model, params, pair))}

    return plan


def free_memory() -> dict[str, int]:
    """Return the free bytes by device, without a margin on GPUs; HOST stands for the host's memory."""
    host = free_host_memory()
    free = {name: n - MARGIN for name, n in free_gpu_memory().items()}
    return free if host is None else {**free, HOST: host}


def plan_bytes(options: LLMOptions) -> dict[str, int]:
    """Return the bytes that a worker of a model file takes, by device; HOST stands for the host's memory.

    The prefix cache counts as full. Raises the errors of Model and plan_memory.
    """
    with open_header(options) as header:
        devices = _plan(header, options)
    cache = default_cache_bytes(devices) if options.cache_bytes is None else options.cache_bytes
    needed = {HOST: WORKER_BYTES + cache + options.adapter_bytes()}
    for gpu, nbytes in options.projector_memory().items():
        needed[gpu or HOST] = needed.get(gpu or HOST, 0) + nbytes
    for device in devices:
        name = HOST if device.host else device.device
        needed[name] = needed.get(name, 0) + device.total
    return needed


@contextmanager
def local_options(options: LLMOptions) -> Iterator[LLMOptions]:
    """Yield options whose files are on this machine; of a model of the hub, only the headers are downloaded.

    Raises the errors of `fetch_headers`.
    """
    if isinstance(options.model, str) and is_hub_name(options.model):
        with fetch_headers(read_name(options.model), options, notify=warn) as local:
            yield local
    else:
        yield options


@contextmanager
def open_header(options: LLMOptions) -> Iterator[Model]:
    """Open the header and the vocabulary of a model file, without its weights. Raises the errors of Model."""
    assert not isinstance(options.model, Model)
    with (
        hold_errors(logging.getLogger("pymtp.native")),
        Model(options.model, vocab_only=True, mtp=options.takes_head, head=options.head) as header,
    ):
        yield header


def _plan(header: Model, options: LLMOptions) -> list[DeviceMemory]:
    n_ctx = whole_ctx(options.n_ctx or header.n_ctx_train)
    planned = replace(options, n_ctx=n_ctx)
    assert not isinstance(options.model, Model)
    layers = (
        planned_layers(options.model, planned, planned, mtp=header.mtp, reserved=options.projector_memory())
        if options.n_gpu_layers == "auto"
        else options.layers
    )
    return plan_memory(header, planned, placing=planned, n_gpu_layers=layers)
