"""The HTTP server: `pymtp serve`. Needs the packages of the extra `server`."""
