"""The command line `pymtp`: one file a command, assembled in app.py. Text on stdout, progress and figures on stderr."""

from pymtp.cli.app import app_main

__all__ = ["app_main"]
