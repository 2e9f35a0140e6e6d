"""What all APIs share of HTTP: ids, limits, errors, streams."""
