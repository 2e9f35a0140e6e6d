"""What a context tells of its work and its memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pymtp.counters import Counters, Node, read_trace
from pymtp.exclusive import Exclusive, alone
from pymtp.memory import DeviceMemory, read_memory
from pymtp.native import check, ffi, lib
from pymtp.operations import Operation, read_operations
from pymtp.values import in_range


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
