"""Memory of a model and its contexts per device: in use, or planned before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pymtp.context.options import ContextOptions
from pymtp.errors import NativeError
from pymtp.model.model import Model
from pymtp.model.names_elsewhere import OPTION_NAMES_ELSEWHERE
from pymtp.model.options import ModelOptions
from pymtp.native import ffi, last_error, lib
from pymtp.validation import given_options, read_int

MAX_DEVICES = 32  # more devices than llama.cpp splits a model over


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes in use on one device. Vocabulary, metadata and descriptions of graphs are not counted.

    device: the device's name in llama.cpp.
    host: whether the device's memory is the host's memory.
    weights: weights of the model and of a loaded head; of a mapped file, only the weights that the device uses.
    kv: K and V of the trunk's attention layers.
    states: states of the recurrent layers, with the inputs of the tokens that these layers may have to replay.
    compute: buffers of the target's graphs.
    head_kv: K and V of the draft context.
    head_compute: buffers of the draft context's graphs.
    kept_rows: hidden states that the head has yet to read.
    draft_vocab: a copy of some rows of the output layer, for drafts that are chosen from a part of the vocabulary.
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
        """Return the sum of all parts."""
        return sum(getattr(self, name) for name in PARTS)


PARTS = tuple(field.name for field in fields(DeviceMemory) if field.name not in ("device", "host"))


def read_memory(fill: Callable[[Any, int], int]) -> list[DeviceMemory]:
    """Read the memory per device from a native call. Raises NativeError when the call fails.

    fill: a function that writes at most `limit` entries to an array of `struct pymtp_memory`, and returns their
        number, or a negative number on failure.
    """
    rows = ffi.new("struct pymtp_memory[]", MAX_DEVICES)
    n = fill(rows, MAX_DEVICES)
    if n < 0:
        raise NativeError(last_error())
    return [
        DeviceMemory(ffi.string(m.device).decode(), bool(m.host), *(getattr(m, name) for name in PARTS))
        for m in rows[0:n]
    ]


def least_memory(model: Model, params: Any, options: Any) -> int:
    """Return the bytes of host memory, without the weights, that a Context writes to at least.

    params, options: the structs that `ContextOptions.context_params` returned.

    Raises ClosedError for a closed model, NativeError when llama.cpp fails.
    """
    found: int = lib.pymtp_min_host_memory(model.handle, params, options)
    if found < 0:
        raise NativeError(last_error())
    return found


def plan_memory(
    model: Model,
    context: ContextOptions | None = None,
    *,
    placing: ModelOptions | None = None,
    n_gpu_layers: int = -1,
    **keywords: Any,
) -> list[DeviceMemory]:
    """Return the memory that a model and a Context will use once rounds of every depth have run.

    `Context.memory` reports less before such rounds. Nothing is allocated, and only the file's header is read.

    model: a Model opened with vocab_only=True; with mtp=False, the plan is for a model without the head.
    context: None for the fields of ContextOptions in `keywords`.
    placing: the options that the model would be loaded with; None for the defaults. Adapters are not counted.
    n_gpu_layers: the number of layers on the GPU in place of that of `placing`, -1 for all.

    Raises InvalidRequestError as Context does, NativeError when llama.cpp cannot make the contexts.
    """
    n_gpu_layers = read_int("n_gpu_layers", n_gpu_layers, -1)
    loaded, _kept = (placing or ModelOptions()).model_params(mtp=model.mtp, vocab_only=False, layers=n_gpu_layers)
    options = given_options("plan_memory()", ContextOptions, context, keywords, OPTION_NAMES_ELSEWHERE)
    params, pair_options = options.context_params(model)
    name = os.fsencode(model.path)
    return read_memory(lambda rows, limit: lib.pymtp_plan_memory(name, loaded, params, pair_options, rows, limit))
