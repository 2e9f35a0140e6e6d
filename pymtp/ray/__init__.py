"""The same on many machines, with Ray: rows of a Ray Dataset, and a Ray Serve application. Needs the extra `ray`."""

from typing import TYPE_CHECKING, Any

from pymtp.ray.generate import Generate

if TYPE_CHECKING:
    from pymtp.ray.serve import serve_app

__all__ = ["Generate", "serve_app"]


def __getattr__(name: str) -> Any:
    """serve_app comes with modules for HTTP, which workers of a dataset have no use for."""
    if name == "serve_app":
        from pymtp.ray.serve import serve_app

        return serve_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
