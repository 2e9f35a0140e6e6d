"""The same on many machines, with Ray: rows of a Ray Dataset. Needs the extra `ray`."""

from pymtp.ray.generate import Generate

__all__ = ["Generate"]
