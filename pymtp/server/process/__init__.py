"""The processes of `pymtp serve`: a supervisor that holds the socket, and a worker that serves."""
