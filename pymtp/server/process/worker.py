"""The process that serves: model, application, HTTP. A supervisor starts it."""

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
from pymtp.load import load, note_of_no_head
from pymtp.server.metrics import logs
from pymtp.server.process.launch import Launch

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def work(control: socket.socket, given: Mapping[str, Any]) -> None:
    """Serves until SIGTERM, or until the model turns out not to load."""
    end_with_supervisor(control)
    faulthandler.enable()
    launch = Launch.of_given(given)
    logs.configure(launch.settings.log_format, launch.settings.log_level)
    # the model loads while the modules for HTTP do: these take a third of a second
    loading = ThreadPoolExecutor(1, "pymtp load").submit(load_quietly, launch)
    from pymtp.server.process.http_server import HttpServer

    HttpServer(launch.settings, loading.result, control).serve(socket.socket(fileno=given["listener"]))


def load_quietly(launch: Launch) -> LLM:
    """As loading.load. What llama.cpp says of a failure is in the error that this raises, and not logged as well."""
    with logs.failures_held(logging.getLogger("pymtp.native")):
        llm = load(launch.model, launch.llm, launch.prefix, lambda note: logs.log.warning("%s", note), times_later=True)
    if note := note_of_no_head(llm, launch.model, launch.llm):
        logs.log.warning("%s", note)
    if llm.template_source is not None:
        try:
            _ = llm.chat_template  # the first chat need not wait for it
        except InvalidRequestError as error:  # the file's own: completions can be served
            logs.log.warning("chats will be refused, for %s; --chat-template-file gives another", error)
    return llm


def end_with_supervisor(control: socket.socket) -> None:
    """This process ends when the supervisor does, however that ends, and whatever is done here."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        with suppress(OSError):  # it ended before it read all that it was told
            while control.recv(1):  # it says nothing any more
                pass
        os._exit(1)

    threading.Thread(target=watch, name="pymtp supervisor", daemon=True).start()
