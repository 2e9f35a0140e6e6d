"""Exit codes of all commands; 0 is success."""

FAILED = 1  # the command failed while it ran
MISUSED = 2  # an argument or a request is invalid
NOT_LOADED = 3  # the model cannot be loaded
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as shells count
