"""The console on stderr: progress, figures, errors. stdout belongs to the text."""

from rich.console import Console

screen = Console(stderr=True, highlight=False)
