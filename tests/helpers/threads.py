"""Calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*calls: Callable[[], object]) -> None:
    """Calls them in as many threads, and waits for them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
