"""Inspection of a context: its counters, the computed graph nodes, the times of operations, and the head's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymtp.errors import NativeError
from pymtp.native import Handle, alone, check, ffi, last_error, lib
from pymtp.validation import read_int


class Inspection:
    """The part of a Context that shows what it computed, and that tests use to break it. It changes no sequence."""

    def __init__(self, handle: Handle, n_seq_max: int) -> None:
        self._handle, self._n_seq_max = handle, n_seq_max

    @alone
    def trace(self) -> list[Node]:
        """Return the nodes computed since the last call of `trace`, in order.

        The context must have been made with trace=True.
        """
        return read_trace(ffi.string(lib.pymtp_pair_trace(self._handle.pointer)).decode())

    @alone
    def time_operations(self, on: bool = True) -> None:
        """Start or stop timing the CPU's operations for the method `operations`.

        Timing adds a few clock readings to each node.
        """
        check(lib.pymtp_pair_time_ops(self._handle.pointer, on))

    @alone
    def operations(self) -> list[Operation]:
        """Return the times of the operations computed since the last call of `operations`, while timing was on."""
        return read_operations(lambda rows, limit: lib.pymtp_pair_op_times(self._handle.pointer, rows, limit))

    @alone
    def head_rows(self, seq: int = 0) -> int:
        """Return the number of rows that the head's cache holds for a sequence.

        The head computes one row for each token, from the target's hidden state. In rounds without drafts it falls up
        to 63 rows behind the target; it catches up before the next draft. Raises InvalidRequestError for an unknown
        sequence.
        """
        read_int("seq", seq, 0, self._n_seq_max - 1)
        return int(lib.pymtp_pair_n_head(self._handle.pointer, seq))

    @alone
    def head_state(self, seq: int = 0) -> bytes:
        """Return the head's cache of a sequence as llama.cpp saves it: positions, then rows of K, then rows of V.

        The result is empty if the context makes no drafts.
        """
        read_int("seq", seq, 0, self._n_seq_max - 1)
        needed = ffi.new("size_t *")
        check(lib.pymtp_pair_head_state(self._handle.pointer, seq, ffi.NULL, 0, needed))
        data = ffi.new("uint8_t[]", needed[0])
        check(lib.pymtp_pair_head_state(self._handle.pointer, seq, data, needed[0], needed))
        return bytes(ffi.buffer(data))

    @alone
    def rope_position(self, pos: int, seq: int = 0) -> tuple[int, int, int]:
        """Return the positions of a token for RoPE: those of time, of the row, and of the column."""
        positions = ffi.new("int32_t[3]")
        check(lib.pymtp_pair_rope_position(self._handle.pointer, seq, pos, positions))
        return int(positions[0]), int(positions[1]), int(positions[2])

    @alone
    def break_on_purpose(self, fault: str) -> None:
        """Inject a fault into all later calls, until the fault "none" is injected. For tests.

        fault: a name of enum pymtp_fault, in lower case and without its prefix. Faults of the head do not change greedy
            text; acceptance and the head's logits show them.
        """
        lib.pymtp_pair_inject_fault(self._handle.pointer, getattr(lib, f"PYMTP_FAULT_{fault.upper()}"))

    @alone
    def compute_as_devices(self) -> None:
        """Compute recurrent layers in host memory with the operations for GPUs from now on. For tests."""
        check(lib.pymtp_pair_force_device_ops(self._handle.pointer, True))


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
