"""The end of a chat by a signal: the terminal gets its settings back first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pymtp.cli.chat.reader import is_interactive

_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT")
_LEFT = b"\x1b[?2004l\x1b[?25h\x1b[0m\r\n"  # pasted text is not marked, the cursor is shown, colours are off


@contextmanager
def restored_terminal() -> Iterator[None]:
    """Give the terminal its settings back before a signal ends the program while the block runs.

    The program still ends by the signal. Does nothing where the input is no terminal, and for ignored signals.
    """
    if sys.platform == "win32" or not is_interactive():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)

    def end(number: int, _: object) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            if os.tcgetpgrp(terminal) == os.getpgrp():  # in the background, the terminal is another program's
                termios.tcsetattr(terminal, termios.TCSANOW, settings)
                if "prompt_toolkit" in sys.modules:  # only it changes more than the settings
                    os.write(terminal, _LEFT)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before: dict[int, Any] = {}
    for name in _SIGNALS:
        number = getattr(signal, name)
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
