"""Exit codes of every command; 0 is success."""

FAILED = 1  # while it ran
MISUSED = 2  # the request was wrong
NOT_LOADED = 3  # the model cannot be loaded
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as shells count
