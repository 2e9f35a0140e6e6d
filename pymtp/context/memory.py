"""The memory that a model and its contexts take on each device: in use, or planned before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pymtp.context.options import native_options
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.model.options import ModelOptions
from pymtp.native import ffi, last_error, lib
from pymtp.validation import in_range

MAX_DEVICES = 32  # more than llama.cpp splits a model over


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on one device.

    Vocabulary, metadata and descriptions of graphs are not counted.

    weights: the model's, its head included where it is loaded; of a mapped file, only those that are used there. kv: K
    and V of the trunk. states: of its recurrent layers, with the inputs of the last tokens. compute: of the target's
    graphs.
    head_kv, head_compute: of the draft context. kept_rows: hidden rows that the head has yet to take. draft_vocab: the
    rows of the output layer that drafts are made over, where they are not all.
    """

    device: str
    host: bool
    weights: int = 0
    kv: int = 0
    states: int = 0
    compute: int = 0
    head_kv: int = 0
    head_compute: int = 0
    kept_rows: int = 0
    draft_vocab: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, name) for name in PARTS)


PARTS = tuple(field.name for field in fields(DeviceMemory) if field.name not in ("device", "host"))


def read_memory(ask: Callable[[Any, int], int]) -> list[DeviceMemory]:
    """What a native call says that fills at most so many `struct pymtp_memory`. Raises NativeError when it fails."""
    found = ffi.new("struct pymtp_memory[]", MAX_DEVICES)
    n = ask(found, MAX_DEVICES)
    if n < 0:
        raise NativeError(last_error())
    return [
        DeviceMemory(ffi.string(m.device).decode(), bool(m.host), *(getattr(m, name) for name in PARTS))
        for m in found[0:n]
    ]


def least_memory(model: Model, params: Any, options: Any) -> int:
    """Bytes of the host's memory that a Context is sure to write to, beside the weights.

    params, options: of `native_options`. Raises ClosedError for a closed model, NativeError when llama.cpp fails.
    """
    found: int = lib.pymtp_min_host_memory(model.handle, params, options)
    if found < 0:
        raise NativeError(last_error())
    return found


def plan_memory(
    model: Model, *, n_gpu_layers: int = -1, placing: ModelOptions | None = None, **options: Any
) -> list[DeviceMemory]:
    """The memory that a model and a Context of it would take once rounds of every depth have run: more than
    `Context.memory` says before. Nothing is allocated, and of the file only the header is read.

    model: looked at with vocab_only=True; with mtp=False the head is left out.
    placing: how it would be loaded, but for n_gpu_layers. Adapters are not counted.
    options: of Context.

    Raises InvalidRequestError as Context does, NativeError when llama.cpp cannot make the contexts.
    """
    n_gpu_layers = in_range("n_gpu_layers", n_gpu_layers, -1)
    loaded, _kept = (placing or ModelOptions()).native(mtp=model.mtp, vocab_only=False, layers=n_gpu_layers)
    params, given = native_options(model, **options)
    name = os.fsencode(model.path)
    return read_memory(lambda found, most: lib.pymtp_plan_memory(name, loaded, params, given, found, most))
