"""What a worker of Ray has."""

from __future__ import annotations

from pymtp.native.cores import MAX_THREADS

PLACES = 8  # texts that are written at once, where nobody says how many


def given_cores() -> int | None:
    """The CPUs that Ray gave this worker; None for all where it gave none whole, or is not here."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    given = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    return min(given, MAX_THREADS) or None
