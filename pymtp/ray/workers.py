"""Defaults for a model in a Ray actor: sequences at once, and threads."""

from __future__ import annotations

from pymtp.native.cores import MAX_THREADS

DEFAULT_SEQUENCES = 8  # n_seq_max, where it is not given


def assigned_cpus() -> int | None:
    """Return the CPUs that Ray assigned to this actor; None for less than one, and outside of an actor."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    cpus = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    return min(cpus, MAX_THREADS) or None
