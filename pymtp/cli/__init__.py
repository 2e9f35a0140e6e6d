"""The command line `pymtp`: each command has a file, and app.py joins them.

Generated text goes to stdout, progress and figures go to stderr.
"""

from pymtp.cli.app import app_main

__all__ = ["app_main"]
