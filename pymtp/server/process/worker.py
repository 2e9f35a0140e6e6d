"""The worker process, which the supervisor starts: it loads the model and runs the HTTP server."""

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
from dataclasses import replace
from typing import Any

from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.load import load
from pymtp.model.model import Model
from pymtp.options import LLMOptions
from pymtp.server.memory import fit_options, free_memory, has_gpu
from pymtp.server.metrics import logs
from pymtp.server.process.worker_config import WorkerConfig

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def run_worker(control: socket.socket, message: Mapping[str, Any]) -> None:
    """Serve until SIGTERM, or until loading the model fails.

    control: the socket to the supervisor.
    message: the first message of the supervisor, which has the config of the worker.
    """
    exit_with_supervisor(control)
    faulthandler.enable()
    config = WorkerConfig.from_json(message)
    logs.configure(config.settings.log_format, config.settings.log_level)
    # The HTTP modules are imported while a thread loads the model, because the import takes a third of a second.
    loading = ThreadPoolExecutor(1, "pymtp load").submit(load_model, config)
    from pymtp.server.process.http_server import HttpServer

    server = HttpServer(config.settings, loading.result, control, behind_front=config.behind_front)
    server.serve([socket.socket(fileno=file) for file in message["listeners"]])


def load_model(config: WorkerConfig) -> LLM:
    """Load the model as `pymtp.load.load` does.

    If loading fails, llama.cpp's errors are not logged, because the exception has them.
    """
    with logs.hold_errors(logging.getLogger("pymtp.native")):
        llm = load(
            config.llm,
            config.prefix,
            lambda note: logs.log.warning("%s", note),
            adapt=lambda options: _fitted(options, config.fit),
            warm_up_later=True,
        )
    fields: dict[str, Any] = {
        "n_seq_max": llm.context.n_seq_max,
        "n_ctx": llm.context.n_ctx,
        "n_ctx_train": llm.model.n_ctx_train,
    }
    if config.fit:
        fields["chosen"] = " ".join(config.fit)
    logs.log.info("slots and tokens of each", extra={"fields": fields})
    if llm.template_source is not None:
        try:
            _ = llm.chat_template  # compile the template now, so that the first chat is not delayed
        except InvalidRequestError as error:  # the template of the model file is broken: /v1/completions still works
            logs.log.warning("the server will refuse chats: %s. Use --chat-template-file for another template", error)
    return llm


def _fitted(options: LLMOptions, names: tuple[str, ...]) -> LLMOptions:
    """Return options of a model file in which the options of these names fit into the free memory."""
    if not names or has_gpu(free_memory()) or options.n_gpu_layers == "auto":
        return fit_options(options, names)
    assert not isinstance(options.model, Model)
    model = Model(options.model, mtp=options.takes_head, options=options)  # opened once, for the choice and the LLM
    return replace(fit_options(options, names, model=model), model=model)


def exit_with_supervisor(control: socket.socket) -> None:
    """Make this process exit when the supervisor exits, even if the supervisor is killed or this process is busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait_for_end() -> None:
        with suppress(OSError):  # the supervisor exited before it had read all messages
            while control.recv(1):  # returns no data when the supervisor exits; until then it sends nothing
                pass
        os._exit(1)

    threading.Thread(target=wait_for_end, name="pymtp supervisor", daemon=True).start()
