"""Models: weights, vocabulary, how they are loaded, and where their parts are placed."""

from pymtp.model.model import Model

__all__ = ["Model"]
