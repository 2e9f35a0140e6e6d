"""The program `pymtp`. Outside the package, whose import takes a moment: Ctrl-C may come meanwhile."""

import os
import sys


def main() -> None:
    """Runs the command line. Ctrl-C that comes while it is imported ends with exit code 130, and no more."""
    try:
        from pymtp.cli import app_main
    except KeyboardInterrupt:
        os._exit(130)  # what is half imported has nothing to say at its end either
    except ImportError as error:
        if error.name is not None:  # another package's
            raise
        print(f"error: {error}", file=sys.stderr)  # such as PYMTP_CPU with what this pymtp has not
        sys.exit(1)
    app_main()
