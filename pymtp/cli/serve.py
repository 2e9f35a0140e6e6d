"""The command `pymtp serve`: an HTTP server with the APIs of OpenAI and Anthropic, and a chat page."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from pymtp.cli.load import LoadOptions, option_names
from pymtp.cli.model_file import local_file
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, SeqMax, expand_options, thinking_params
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError
from pymtp.hub.errors import check_installed
from pymtp.hub.names import read_name
from pymtp.load import check_prefix
from pymtp.server.metrics import logs
from pymtp.server.process.listener import is_local, listen, open_standard_streams
from pymtp.server.process.supervisor import supervise
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ANY_HOST, ServerSettings, check_host, check_names, check_origin
from pymtp.server.thinking_budget import parse_effort_budgets
from pymtp.validation import absolute_path, is_hub_name

# modules of the extra `server`, and the packages that install them
REQUIRED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus_client": "prometheus-client",
}
MIB = 2**20


@dataclass(frozen=True)
class AccessOptions:
    """Options for the address, and for the clients that may send requests."""

    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 and :: stand for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at, 0 for one that is free.")] = 8080
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="PYMTP_API_KEY",
            help="A key that requests must have. May be given several times. The list of processes shows it: "
            "a file or the variable does not.",
        ),
    ] = None
    api_key_file: Annotated[Path | None, typer.Option(help="Read keys from this file, one a line.")] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help='Let pages of this origin ask, "*" for all. May be given several times.'),
    ] = None

    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help='Take requests for this host, "*" for any. May be given several times. Addresses and localhost are '
            "always right.",
            show_default="any; none on loopback without a key",
        ),
    ] = None

    def keys(self) -> tuple[str, ...]:
        """Return all API keys. Raises InvalidRequestError for a file without keys, and for empty keys."""
        keys = list(self.api_key or ())
        if self.api_key_file is not None:
            file_keys = read_text("keys", self.api_key_file).split()
            if not file_keys:
                raise InvalidRequestError(f"{self.api_key_file} holds no key")
            keys += file_keys
        check_names("--api-key", keys)
        # an empty variable is a secret that was not set: serving without a key would be wrong
        if not keys and "PYMTP_API_KEY" in os.environ:
            raise InvalidRequestError("PYMTP_API_KEY is empty: give it a key, or unset it to serve without")
        return tuple(keys)

    def origins(self) -> tuple[str, ...]:
        """Return all CORS origins. Raises InvalidRequestError for one that no browser sends."""
        for origin in self.cors_origin or ():
            check_origin("--cors-origin", origin)
        return tuple(self.cors_origin or ())

    def hosts(self) -> tuple[str, ...]:
        """Return all host names. Raises InvalidRequestError for invalid ones, which would match no request."""
        for name in self.allowed_host or ():
            check_host("--allowed-host", name)
        return tuple(self.allowed_host or ())


@dataclass(frozen=True)
class LimitOptions:
    """Limits of requests: queue, body and time."""

    max_queue: Annotated[
        int, typer.Option(min=0, help="Texts that may wait for a slot; more are refused, unless nothing runs.")
    ] = 256
    max_body: Annotated[int, typer.Option(min=1, metavar="MIB", help="Largest body of a request.")] = 16
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="For a request, the waiting included.", show_default="none"),
    ] = None
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For requests that run when the server is to end.")
    ] = 30.0

    def check(self) -> None:
        """Raise InvalidRequestError for seconds that are no finite number."""
        for option, seconds in (("--timeout", self.timeout), ("--grace", self.grace)):
            if seconds is not None and not isfinite(seconds):
                raise InvalidRequestError(f"{option} {seconds} must be a number of seconds")


@dataclass(frozen=True)
class ThinkingOptions:
    """Limits on the thinking of chats."""

    reasoning_budget: ReasoningBudget = -1
    reasoning_budget_message: ReasoningBudgetMessage = ""
    effort_budgets: Annotated[
        str,
        typer.Option(
            metavar="EFFORT=N,…",
            help="Tokens of thinking by the effort that a client asks for, such as low=1024,high=8192.",
            show_default="none",
        ),
    ] = ""

    def settings(self) -> dict[str, Any]:
        """Return the options, named as in Settings. Raises InvalidRequestError for an invalid message or budget."""
        params = thinking_params(self.reasoning_budget, self.reasoning_budget_message)
        return {
            "reasoning_budget": params["thinking_budget"],
            "reasoning_budget_message": params["thinking_end"],
            "effort_budgets": parse_effort_budgets("--effort-budgets", self.effort_budgets),
        }


@dataclass(frozen=True)
class LogOptions:
    """Options of the log on stderr."""

    log_format: Annotated[str, typer.Option(metavar="text|json", help="Lines as text or as JSON objects.")] = "text"
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Lowest level that is logged.")] = (
        "info"
    )
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log the prompts of clients, too.")] = False

    def settings(self) -> dict[str, Any]:
        """Return the options by their names in Settings. Raises InvalidRequestError for an unknown format or level."""
        for option, value, known in (
            ("--log-format", self.log_format, ("text", "json")),
            ("--log-level", self.log_level, ("debug", "info", "warning", "error")),
        ):
            if value not in known:
                raise InvalidRequestError(f"{option} {value!r} must be one of {', '.join(known)}")
        return {"log_format": self.log_format, "log_level": self.log_level, "log_prompts": self.log_prompts}


@expand_options
def serve(
    *,
    access_options: AccessOptions,
    n_seq_max: SeqMax = 4,
    served_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-name",
            "-a",
            metavar="NAME",
            help="Name of the model for clients. May be given several times.",
            show_default="the file's",
        ),
    ] = None,
    prefix: Prefix = None,
    sampling: ModelSamplingOptions,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="any")] = None,
    limit_options: LimitOptions,
    thinking_options: ThinkingOptions,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the pages at / and /figures.html.")] = True,
    log_options: LogOptions,
    load_options: LoadOptions,
) -> None:
    """Serve a model over HTTP. Clients of OpenAI's and Anthropic's APIs can use it."""
    if not all(map(find_spec, REQUIRED)):
        raise InvalidRequestError(f"pymtp serve needs more packages: pip install {' '.join(REQUIRED.values())}")
    limit_options.check()
    check_names("--served-name", served_name or ())
    settings = ServerSettings(
        host=access_options.host,
        port=access_options.port,
        api_keys=access_options.keys(),
        cors_origins=access_options.origins(),
        allowed_hosts=access_options.hosts(),
        served_names=tuple(served_name or ()),
        max_queue=limit_options.max_queue,
        max_body_bytes=limit_options.max_body * MIB,
        request_timeout=limit_options.timeout,
        grace=limit_options.grace,
        page=page,
        sampling=sampling.given_params(seed=seed),
        **thinking_options.settings(),
        **log_options.settings(),
    )
    keywords = load_options.keywords(n_seq_max)  # finds invalid options before a download
    check_prefix(prefix)
    launch = WorkerConfig(settings, _resolve_model(load_options.model), keywords, prefix)
    open_standard_streams()
    listener = listen(settings.host, settings.port)
    if not settings.allowed_hosts and (settings.api_keys or not is_local(listener)):
        # a key protects the server, or it is open to all on the network: either way, host names need no check
        launch = replace(launch, settings=replace(settings, allowed_hosts=(ANY_HOST,)))
    logs.configure(settings.log_format, settings.log_level)
    if not settings.api_keys and not is_local(listener):
        logs.log.warning(
            "anybody who reaches %s:%d is answered: --api-key-file or PYMTP_API_KEY asks for a key",
            access_options.host,
            access_options.port,
        )
    with option_names():
        code = supervise(listener, launch)
    if code:
        raise typer.Exit(code)


def _resolve_model(name: str | None) -> str | None:
    """Return the absolute path of a file, or a name of the hub as it is.

    The worker downloads a model of the hub, so that the server answers meanwhile. Raises the errors of `local_file`.
    """
    if name is not None and is_hub_name(name):
        read_name(name)
        check_installed()
        return name
    file = local_file(name)
    return None if file is None else absolute_path(str(file))
