"""Inference on many machines with Ray: an actor for Ray Data, and a Ray Serve application. Needs the extra `ray`."""

from typing import TYPE_CHECKING, Any

from pymtp.ray.generate import Generate

if TYPE_CHECKING:
    from pymtp.ray.serve import serve_app

__all__ = ["Generate", "serve_app"]


def __getattr__(name: str) -> Any:
    """Import serve_app when it is first used, so that actors of a dataset do not import HTTP modules."""
    if name == "serve_app":
        from pymtp.ray.serve import serve_app

        return serve_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
