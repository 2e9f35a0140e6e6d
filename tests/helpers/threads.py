"""Calls in several threads, and pauses of the thread of an engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pymtp import LLM


def run_in_threads(*calls: Callable[[], object]) -> None:
    """Make each call in its own thread, and wait until all have returned."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for_pause(llm: LLM) -> None:
    """Wait until each stream of the LLM is as far ahead of its reader as it may be."""
    while llm._engine_thread._busy or not llm._engine.idle:
        time.sleep(0.001)
