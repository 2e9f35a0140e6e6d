"""How threads are spread over the nodes of a machine: for the whole process."""

from __future__ import annotations

import threading

from pymtp.errors import InvalidRequestError
from pymtp.native import lib

STRATEGIES = ("distribute", "isolate", "numactl")

_taken: str | None = None
_lock = threading.RLock()


def use_numa(strategy: str | None) -> None:
    """Takes one of STRATEGIES, for good; None takes none. Raises InvalidRequestError where another was taken before."""
    global _taken
    if strategy is None:
        return
    with _lock:
        if _taken is not None and _taken != strategy:
            raise InvalidRequestError(
                f'numa="{strategy}" comes too late: numa="{_taken}" was asked for first, and holds for this process',
                "numa",
            )
        if _taken is None:
            lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))
            _taken = strategy
