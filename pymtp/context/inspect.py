"""What a context tells of its work and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pymtp.context.memory import DeviceMemory, read_memory
from pymtp.errors import NativeError
from pymtp.native import check, ffi, last_error, lib
from pymtp.native.locking import Exclusive, alone
from pymtp.validation import in_range


class Inspected(Exclusive):
    """The part of a Context that looks at it and changes nothing of its texts."""

    _pair: Any  # the C handle
    n_seq_max: int

    def _check_seq(self, seq: int) -> None:
        in_range("seq", seq, 0, self.n_seq_max - 1)

    @property
    @alone
    def counters(self) -> Counters:
        """The work done so far."""
        c = ffi.new("struct pymtp_counters *")
        lib.pymtp_pair_counters(self._pair, c)
        return Counters(**{field.name: getattr(c, field.name) for field in fields(Counters)})

    @alone
    def check(self) -> None:
        """Raises NativeError where an earlier failure left what cannot go on: see pymtp_status in pymtp.h."""
        # to go back to where it is changes nothing, and is refused as every call is then
        check(lib.pymtp_pair_rewind(self._pair, 0, lib.pymtp_pair_n_past(self._pair, 0)))

    @alone
    def memory(self) -> list[DeviceMemory]:
        """The memory in use, a line a device. Compute buffers grow with the first round of each depth."""
        return read_memory(lambda found, most: lib.pymtp_pair_memory(self._pair, found, most))

    @alone
    def trace(self) -> list[Node]:
        """What was computed since the last call, in order, where the context was made with trace=True."""
        return read_trace(ffi.string(lib.pymtp_pair_trace(self._pair)).decode())

    @alone
    def time_operations(self, on: bool = True) -> None:
        """Times what the CPU computes by operation, see `operations`. Adds a few looks at a clock to each node."""
        check(lib.pymtp_pair_time_ops(self._pair, on))

    @alone
    def operations(self) -> list[Operation]:
        """What was computed since the last call, while it was timed."""
        return read_operations(lambda found, most: lib.pymtp_pair_op_times(self._pair, found, most))


@dataclass(frozen=True)
class Counters:
    """Work of a context since it was made: wall seconds of each phase, launches, bytes copied from devices to the host.

    sample_seconds: sampling tokens, part of draft_seconds and verify_seconds.
    head_sync_seconds: the prompt passing through the head, where the target's graph does not do it.
    graphs_reused: launches, of the decodes', whose graph was that of the launch before: nothing was built for them.
    hidden_bytes: hidden states, on their way to the head.
    draw_bytes: what tokens were drawn from on the host, rows of logits or candidates, and tokens that the device drew.
    output_buffer_bytes: not a sum, the host memory that all of these are copied to.
    sequence_bytes: copied from one sequence to another, by `copy`, `move` and `copy_cells`.
    saved_bytes, loaded_bytes: of sequences, to the host's memory and from there.
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
    """One operation that was computed: `graph` is "target" or "draft", `shape` four sizes, as ggml orders them.
    aligned: its data begin on a cache line. reads: elements of its largest source."""

    graph: str
    name: str
    op: str
    aligned: bool
    reads: int
    shape: tuple[int, ...]


def read_trace(text: str) -> list[Node]:
    """The operations that a native trace tells of, one a line."""
    nodes = []
    for line in text.splitlines():
        graph, rest = line.split(" ", 1)
        name, op, aligned, reads, *shape = rest.rsplit(" ", 7)
        nodes.append(Node(graph, name, op, aligned == "1", int(reads), tuple(int(n) for n in shape)))
    return nodes


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
