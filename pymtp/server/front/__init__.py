"""The front of a server of several models: one process that passes each request to the worker of its model."""
