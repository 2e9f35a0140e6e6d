"""The worker process: it loads the model and runs the HTTP server. The supervisor starts it."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.load import load, missing_head_note
from pymtp.server.metrics import logs
from pymtp.server.process.worker_config import WorkerConfig

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def run_worker(control: socket.socket, message: Mapping[str, Any]) -> None:
    """Serve until SIGTERM, or until loading the model fails. message: the first message of the supervisor."""
    exit_with_supervisor(control)
    faulthandler.enable()
    config = WorkerConfig.from_json(message)
    logs.configure(config.settings.log_format, config.settings.log_level)
    # The model loads while the HTTP modules are imported, which takes a third of a second.
    loading = ThreadPoolExecutor(1, "pymtp load").submit(load_model, config)
    from pymtp.server.process.http_server import HttpServer

    HttpServer(config.settings, loading.result, control).serve(socket.socket(fileno=message["listener"]))


def load_model(config: WorkerConfig) -> LLM:
    """Load the model; see pymtp.load.load.

    llama.cpp's errors are in the exception that this raises, so they are not logged as well.
    """
    with logs.hold_errors(logging.getLogger("pymtp.native")):
        llm = load(config.model, config.llm, config.prefix, lambda note: logs.log.warning("%s", note), times_later=True)
    if note := missing_head_note(llm, config.model, config.llm):
        logs.log.warning("%s", note)
    if llm.template_source is not None:
        try:
            _ = llm.chat_template  # compile it now, not at the first chat
        except InvalidRequestError as error:  # the model file's template is broken, but completions work
            logs.log.warning("chats will be refused, for %s; --chat-template-file gives another", error)
    return llm


def exit_with_supervisor(control: socket.socket) -> None:
    """End this process when the supervisor ends, in whatever way, and whatever runs here."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait_for_end() -> None:
        with suppress(OSError):  # the supervisor ended before it read all messages
            while control.recv(1):  # the supervisor sends nothing more
                pass
        os._exit(1)

    threading.Thread(target=wait_for_end, name="pymtp supervisor", daemon=True).start()
