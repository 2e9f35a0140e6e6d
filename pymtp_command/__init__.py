"""The program `pymtp`. Outside the package, whose import takes a moment: Ctrl-C may come meanwhile."""

import os
import sys


def main() -> None:
    """Runs the command line. Ctrl-C ends it with exit code 130, and no more, whenever it comes."""
    try:
        from pymtp.cli import app_main
    except KeyboardInterrupt:
        os._exit(130)  # what is half imported has nothing to say at its end either
    except ImportError as error:
        if error.name is not None:  # another package's
            raise
        print(f"error: {error}", file=sys.stderr)  # such as PYMTP_CPU with what this pymtp has not
        sys.exit(1)
    try:
        app_main()
    except KeyboardInterrupt:  # before the command began, or as it ended
        sys.exit(130)
