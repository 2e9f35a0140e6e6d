"""The entry point of the program `pymtp`.

It is outside of the package pymtp, so that it can handle Ctrl-C during the import of pymtp, which takes a moment.
"""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C always ends it with exit code 130, without a traceback."""
    try:
        from pymtp.cli import app_main
    except KeyboardInterrupt:
        os._exit(130)  # skip exit handlers: half-imported modules could print errors there
    except ImportError as error:
        if error.name is not None:  # a missing module
            raise
        print(f"error: {error}", file=sys.stderr)  # such as a value of PYMTP_CPU that this build does not have
        sys.exit(1)
    try:
        app_main()
    except KeyboardInterrupt:  # before the command started, or at its end
        sys.exit(130)
