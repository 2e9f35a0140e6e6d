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
from pymtp.server.settings import ANY_HOST, ServerSettings, check_host, check_names, check_origin, parse_effort_budgets
from pymtp.validation import absolute_path, is_hub_name

# modules that the extra `server` installs, and the names of their packages
REQUIRED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus_client": "prometheus-client",
}
MIB = 2**20


@dataclass(frozen=True)
class AccessOptions:
    """Options for the address of the server, and for the clients that may send requests."""

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 and :: stand for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on, 0 for any free port.")] = 8080
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="PYMTP_API_KEY",
            help="An API key that clients must send. May be given several times. Other users can see it in the list of "
            "processes; with --api-key-file or the variable they cannot.",
        ),
    ] = None
    api_key_file: Annotated[Path | None, typer.Option(help="Read API keys from this file, one per line.")] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help='Let web pages of this origin send requests, "*" for all. May be given several times.',
        ),
    ] = None

    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help='Accept requests whose Host header has this name, "*" for any. May be given several times. IP '
            "addresses and localhost are always accepted.",
            show_default="any; no other on loopback without a key",
        ),
    ] = None

    def keys(self) -> tuple[str, ...]:
        """Return all API keys. Raises InvalidRequestError for a file without keys, and for an invalid or empty key."""
        keys = list(self.api_key or ())
        if self.api_key_file is not None:
            file_keys = read_text("keys", self.api_key_file).split()
            if not file_keys:
                raise InvalidRequestError(f"{self.api_key_file} has no key in it")
            keys += file_keys
        check_names("--api-key", keys)
        # an empty variable is probably a secret that was meant to be set, so do not serve without a key
        if not keys and "PYMTP_API_KEY" in os.environ:
            raise InvalidRequestError("PYMTP_API_KEY is empty: set it to a key, or unset it to serve without a key")
        return tuple(keys)

    def origins(self) -> tuple[str, ...]:
        """Return all CORS origins. Raises InvalidRequestError for an origin that no browser would send."""
        for origin in self.cors_origin or ():
            check_origin("--cors-origin", origin)
        return tuple(self.cors_origin or ())

    def hosts(self) -> tuple[str, ...]:
        """Return all allowed host names. Raises InvalidRequestError for a name that could match no request."""
        for name in self.allowed_host or ():
            check_host("--allowed-host", name)
        return tuple(self.allowed_host or ())


@dataclass(frozen=True)
class LimitOptions:
    """Options for the limits of requests: the queue, the size of bodies, and the time."""

    max_queue: Annotated[
        int,
        typer.Option(min=0, help="Completions that may wait for a slot. More are refused, unless no request runs."),
    ] = 256
    max_body: Annotated[int, typer.Option(min=1, metavar="MIB", help="Largest body of a request.")] = 16
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="SECONDS", help="Longest time of a request, including its wait.", show_default="none"
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time for running requests to end after the server gets a signal."),
    ] = 30.0

    def check(self) -> None:
        """Raise InvalidRequestError if --timeout or --grace is not a finite number."""
        for option, seconds in (("--timeout", self.timeout), ("--grace", self.grace)):
            if seconds is not None and not isfinite(seconds):
                raise InvalidRequestError(f"{option} {seconds} must be a number of seconds")


@dataclass(frozen=True)
class ThinkingOptions:
    """Options that limit the thinking in chats."""

    reasoning_budget: ReasoningBudget = -1
    reasoning_budget_message: ReasoningBudgetMessage = ""
    effort_budgets: Annotated[
        str,
        typer.Option(
            metavar="EFFORT=N,…",
            help="Limit of thinking tokens for each effort that a client can ask for, such as low=1024,high=8192.",
            show_default="none",
        ),
    ] = ""

    def settings(self) -> dict[str, Any]:
        """Return the options by their names in ServerSettings.

        Raises InvalidRequestError for an invalid message or budget.
        """
        params = thinking_params(self.reasoning_budget, self.reasoning_budget_message)
        return {
            "reasoning_budget": params["thinking_budget"],
            "reasoning_budget_message": params["thinking_end"],
            "effort_budgets": parse_effort_budgets("--effort-budgets", self.effort_budgets),
        }


@dataclass(frozen=True)
class LogOptions:
    """Options of the log on stderr."""

    log_format: Annotated[str, typer.Option(metavar="text|json", help="Log lines of text, or JSON objects.")] = "text"
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Lowest level that is logged.")] = (
        "info"
    )
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Also log the prompts of clients.")] = False

    def settings(self) -> dict[str, Any]:
        """Return the options by their names in ServerSettings.

        Raises InvalidRequestError for an unknown format or level.
        """
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
            show_default="the name of the file",
        ),
    ] = None,
    prefix: Prefix = None,
    sampling: ModelSamplingOptions,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="random")] = None,
    limit_options: LimitOptions,
    thinking_options: ThinkingOptions,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the pages at / and /figures.html.")] = True,
    log_options: LogOptions,
    load_options: LoadOptions,
) -> None:
    """Serve a model over HTTP, with OpenAI's and Anthropic's APIs."""
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
    keywords = load_options.keywords(n_seq_max)  # already here, so that invalid options are found before a download
    check_prefix(prefix)
    launch = WorkerConfig(settings, _resolve_model(load_options.model), keywords, prefix)
    open_standard_streams()
    listener = listen(settings.host, settings.port)
    if not settings.allowed_hosts and (settings.api_keys or not is_local(listener)):
        # The check of host names protects a server without a key on loopback from web pages (DNS rebinding). With a key
        # it is not needed, and a server that is open to the network has nothing to protect.
        launch = replace(launch, settings=replace(settings, allowed_hosts=(ANY_HOST,)))
    logs.configure(settings.log_format, settings.log_level)
    if not settings.api_keys and not is_local(listener):
        logs.log.warning(
            "anybody who can reach %s:%d can use the server: set --api-key-file or PYMTP_API_KEY to require a key",
            access_options.host,
            access_options.port,
        )
    with option_names():
        code = supervise(listener, launch)
    if code:
        raise typer.Exit(code)


def _resolve_model(name: str | None) -> str | None:
    """Return the absolute path of a model file, or a name of the hub unchanged; None stands for the shipped model.

    A model of the hub is not downloaded here but by the worker, so that the server answers requests meanwhile. Raises
    the errors of `local_file`, and InvalidRequestError for an invalid name of the hub.
    """
    if name is not None and is_hub_name(name):
        read_name(name)
        check_installed()
        return name
    file = local_file(name)
    return None if file is None else absolute_path(str(file))
