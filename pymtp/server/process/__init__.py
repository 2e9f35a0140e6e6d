"""The two processes of `pymtp serve`: a supervisor that owns the listening socket, and a worker that serves."""
