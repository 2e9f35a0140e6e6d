"""Models: loading, weights, vocabulary, and the placement of weights."""

from pymtp.model.model import Model

__all__ = ["Model"]
