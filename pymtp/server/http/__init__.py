"""The HTTP code that all APIs share: request ids, limits, errors, event streams."""
