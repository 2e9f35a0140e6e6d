"""What a context has done: its counters, and the operations of its graphs."""

from __future__ import annotations

from dataclasses import dataclass


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
