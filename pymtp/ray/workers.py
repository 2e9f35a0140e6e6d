"""Defaults of n_seq_max and n_threads for a model in a Ray actor."""

from __future__ import annotations

from pymtp.native.cores import MAX_THREADS

DEFAULT_SEQUENCES = 8  # default of n_seq_max


def assigned_cpus() -> int | None:
    """Return the number of CPUs that Ray assigned to this actor; None for less than one, and outside of an actor."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    cpus = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    return min(cpus, MAX_THREADS) or None
