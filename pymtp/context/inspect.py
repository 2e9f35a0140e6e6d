"""Inspection of a context: counters, memory, computed graph nodes and operation times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pymtp.context.memory import DeviceMemory, read_memory
from pymtp.errors import NativeError
from pymtp.native import check, ffi, last_error, lib
from pymtp.native.locking import Exclusive, alone
from pymtp.validation import read_int


class Inspected(Exclusive):
    """The methods of a Context that read its state and change no sequence."""

    _pair: Any  # the C handle
    n_seq_max: int

    def _check_seq(self, seq: int) -> None:
        read_int("seq", seq, 0, self.n_seq_max - 1)

    @property
    @alone
    def counters(self) -> Counters:
        """Return the work done since the context was made."""
        c = ffi.new("struct pymtp_counters *")
        lib.pymtp_pair_counters(self._pair, c)
        return Counters(**{field.name: getattr(c, field.name) for field in fields(Counters)})

    @alone
    def check(self) -> None:
        """Raise NativeError where an earlier failure left the context unusable: see pymtp_status in pymtp.h."""
        # a rewind to the current length changes nothing, but on an unusable context it fails like every other call
        check(lib.pymtp_pair_rewind(self._pair, 0, lib.pymtp_pair_n_past(self._pair, 0)))

    @alone
    def memory(self) -> list[DeviceMemory]:
        """Return the memory in use on each device. Compute buffers grow with the first round of each depth."""
        return read_memory(lambda rows, limit: lib.pymtp_pair_memory(self._pair, rows, limit))

    @alone
    def trace(self) -> list[Node]:
        """Return the nodes computed since the last call of `trace`, in order.

        The context must have been made with trace=True.
        """
        return read_trace(ffi.string(lib.pymtp_pair_trace(self._pair)).decode())

    @alone
    def time_operations(self, on: bool = True) -> None:
        """Start or stop timing the CPU's operations for the method `operations`.

        Timing adds a few clock readings to each node.
        """
        check(lib.pymtp_pair_time_ops(self._pair, on))

    @alone
    def operations(self) -> list[Operation]:
        """Return the times of the operations computed since the last call of `operations`, while timing was on."""
        return read_operations(lambda rows, limit: lib.pymtp_pair_op_times(self._pair, rows, limit))


@dataclass(frozen=True)
class Counters:
    """Work of a context since it was made: wall seconds per phase, decodes, bytes copied from devices to the host.

    sample_seconds: time to sample tokens; draft_seconds and verify_seconds include it.
    head_sync_seconds: time in which the head computed prompts by itself; 0 if the target's graph includes the head.
    graphs_reused: decodes that reused the graph of the decode before, so that no graph was built.
    hidden_bytes: hidden states copied to the host for the head.
    logits_bytes, embeddings_bytes: logits and embeddings copied to the host because the caller asked for them.
    draw_bytes: bytes copied to the host for sampling: rows of logits or candidates, and tokens that the device sampled.
    output_buffer_bytes: present size of the host buffer that logits and embeddings are copied to; not a sum.
    sequence_bytes: bytes copied between sequences by `copy`, `move` and `copy_cells`.
    saved_bytes, loaded_bytes: bytes of saved sequences copied to the host's memory, and of loaded sequences copied from
        the host's memory.
    """

    prefill_seconds: float
    head_sync_seconds: float
    draft_seconds: float
    verify_seconds: float
    rewind_seconds: float
    sample_seconds: float
    target_decodes: int
    draft_decodes: int
    graphs_reused: int
    hidden_bytes: int
    logits_bytes: int
    embeddings_bytes: int
    draw_bytes: int
    output_buffer_bytes: int
    sequence_bytes: int
    saved_bytes: int
    loaded_bytes: int


@dataclass(frozen=True)
class Node:
    """A computed graph node. `graph` is "target" or "draft"; `shape` has four sizes in ggml's order.

    aligned: whether the node's data begin on a cache line.
    reads: number of elements of the node's largest source.
    """

    graph: str
    name: str
    op: str
    aligned: bool
    reads: int
    shape: tuple[int, ...]


def read_trace(text: str) -> list[Node]:
    """Parse a native trace, one node per line."""
    nodes = []
    for line in text.splitlines():
        graph, rest = line.split(" ", 1)
        name, op, aligned, reads, *shape = rest.rsplit(" ", 7)
        nodes.append(Node(graph, name, op, aligned == "1", int(reads), tuple(int(n) for n in shape)))
    return nodes


_MAX_OPERATIONS = 256


@dataclass(frozen=True)
class Operation:
    """The CPU's time for all nodes of one operation; matrix products are split by the type of the weights.

    op: ggml's name of the operation; for nodes that are computed together, the operation of the first node.
    weights: the type of the weights, "" without weights.
    nodes: number of nodes.
    seconds: wall time until every thread had finished.
    waiting_seconds: the part of `seconds` in which the calling thread waited for the others.
    weight_bytes: bytes of weights that were read; only those experts count that a row was routed to.
    """

    op: str
    weights: str
    nodes: int
    seconds: float
    waiting_seconds: float
    weight_bytes: int


def read_operations(fill: Callable[[Any, int], int]) -> list[Operation]:
    """Read operation times from a native call. Raises NativeError when the call fails.

    fill: a function that writes at most `limit` entries to an array of `struct pymtp_op_time`, and returns their
        number, or a negative number on failure.
    """
    rows = ffi.new("struct pymtp_op_time[]", _MAX_OPERATIONS)
    n = fill(rows, _MAX_OPERATIONS)
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
        for o in rows[0:n]
    ]


def memory_seconds(n_bytes: int, n_threads: int, times: int) -> list[float]:
    """Read n_bytes of memory `times` times with n_threads threads, and return the seconds of each time.

    Each thread reads a part of the buffer. With n_bytes far above the size of the caches, the times show the bandwidth
    of the memory. Raises NativeError if the buffer cannot be allocated.
    """
    read_int("n_bytes", n_bytes, 1024, 2**62)
    read_int("n_threads", n_threads, 1, 512)
    read_int("times", times, 1, 1000)
    seconds = ffi.new("double[]", times)
    check(lib.pymtp_read_memory(n_bytes, n_threads, times, seconds))
    return list(seconds)
