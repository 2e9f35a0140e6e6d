"""Contexts: a target and a draft context of one model, which prefill, draft, verify and rewind."""

from pymtp.context.context import Context

__all__ = ["Context"]
