"""The process that serves: model, application, HTTP. A supervisor starts it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pymtp.loading import load
from pymtp.server import logs
from pymtp.server.launch import Launch

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def work(control: socket.socket, given: Mapping[str, Any]) -> None:
    """Serves until SIGTERM, or until the model turns out not to load."""
    end_with_supervisor(control)
    faulthandler.enable()
    launch = Launch.of_given(given)
    logs.configure(launch.settings.log_format, launch.settings.log_level)
    # the model loads while the modules for HTTP do: these take a third of a second
    loading = ThreadPoolExecutor(1, "pymtp load").submit(load, launch.model, launch.llm, launch.prefix)
    from pymtp.server.http_server import HttpServer

    HttpServer(launch.settings, loading.result, control).serve(socket.socket(fileno=given["listener"]))


def end_with_supervisor(control: socket.socket) -> None:
    """This process ends when the supervisor does, however that ends, and whatever is done here."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while control.recv(1):  # it says nothing any more
            pass
        os._exit(1)

    threading.Thread(target=watch, name="pymtp supervisor", daemon=True).start()
