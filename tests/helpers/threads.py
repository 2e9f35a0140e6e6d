"""Calls in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in its own thread, and wait until all have returned."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
