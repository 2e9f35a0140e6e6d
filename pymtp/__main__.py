"""Run the command line: `python -m pymtp` is the program `pymtp`."""

from pymtp_command import main

if __name__ == "__main__":
    main()
