"""The HTTP layer that all APIs share: request ids, limits, errors, event streams."""
