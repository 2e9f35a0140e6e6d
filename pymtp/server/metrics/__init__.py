"""Prometheus metrics of the server and its engine, and the logs."""
