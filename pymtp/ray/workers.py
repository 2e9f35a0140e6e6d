"""What a worker of Ray has, and where it finds its model."""

from __future__ import annotations

import os

from pymtp.cores import MAX_THREADS
from pymtp.hub.names import is_hub_name, read_name
from pymtp.hub.pull import pull

PLACES = 8  # texts that are written at once, where nobody says how many


def given_cores() -> int | None:
    """The CPUs that Ray gave this worker; None for all where it gave none whole, or is not here."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    given = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    return min(given, MAX_THREADS) or None


def found(model: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """The file of a model, which is downloaded where it is one of the hub. Raises what `pull` raises."""
    return pull(read_name(model)) if isinstance(model, str) and is_hub_name(model) else model
