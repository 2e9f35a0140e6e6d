"""The HTTP server: `pymtp serve`. Needs what `pip install 'pymtp[server]'` brings."""
