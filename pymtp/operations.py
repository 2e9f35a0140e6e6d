"""What the operations of a graph take, and how fast memory is read: what a bench looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymtp.errors import NativeError
from pymtp.native import check, ffi, last_error, lib
from pymtp.values import in_range

_MOST = 256  # kinds of operations


@dataclass(frozen=True)
class Operation:
    """All nodes of one operation that the CPU computed; of products with weights, those with one type of weights.

    op: as ggml calls it; of nodes that are computed together, the first. weights: their type, "" without.
    seconds: until every thread was done. waiting_seconds: of these, that the calling thread waited for the others.
    weight_bytes: that were read; of experts, those that a row chose.
    """

    op: str
    weights: str
    nodes: int
    seconds: float
    waiting_seconds: float
    weight_bytes: int


def read_operations(ask: Callable[[Any, int], int]) -> list[Operation]:
    """What a native call says that fills at most so many `struct pymtp_op_time`. Raises NativeError when it fails."""
    found = ffi.new("struct pymtp_op_time[]", _MOST)
    n = ask(found, _MOST)
    if n < 0:
        raise NativeError(last_error())
    return [
        Operation(
            ffi.string(o.op).decode(),
            ffi.string(o.weights).decode(),
            o.nodes,
            o.seconds,
            o.waiting_seconds,
            o.weight_bytes,
        )
        for o in found[0:n]
    ]


def memory_seconds(n_bytes: int, n_threads: int, times: int) -> list[float]:
    """How long it takes to read so many bytes of memory, each thread a part of them: `times` readings. A buffer far
    larger than the caches tells what the memory brings. Raises NativeError where there is not so much memory."""
    in_range("n_bytes", n_bytes, 1024, 2**62)
    in_range("n_threads", n_threads, 1, 512)
    in_range("times", times, 1, 1000)
    seconds = ffi.new("double[]", times)
    check(lib.pymtp_read_memory(n_bytes, n_threads, times, seconds))
    return list(seconds)
