"""The OpenAI API: its bodies as requests, and its answers, for batch files and for the server."""
