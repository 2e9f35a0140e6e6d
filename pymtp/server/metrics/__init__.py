"""Prometheus metrics of the server and the engine, and the logs of the server."""
