"""The entry point of the program `pymtp`.

The entry point is outside of the package pymtp, so that it can handle Ctrl-C while pymtp is imported, which takes a
moment.
"""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C always ends the process with exit code 130, without a traceback."""
    try:
        from pymtp.cli import app_main
    except KeyboardInterrupt:
        os._exit(130)  # skip exit handlers: half-imported modules could print errors there
    except ImportError as error:
        if error.name is not None:  # a module is missing: show the traceback
            raise
        print(f"error: {error}", file=sys.stderr)  # raised by pymtp itself, such as for an invalid PYMTP_CPU
        sys.exit(1)
    try:
        app_main()
    except KeyboardInterrupt:  # before or after the command itself, which handles Ctrl-C otherwise
        sys.exit(130)
