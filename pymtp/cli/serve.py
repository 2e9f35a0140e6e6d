"""The command `pymtp serve`: an HTTP server with the APIs of OpenAI and Anthropic, and a chat page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from pymtp.cli.load import LoadOptions
from pymtp.cli.model_file import model_name
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, SeqMax, expand_options, option_names
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError
from pymtp.hub.errors import check_installed
from pymtp.load import check_prefix
from pymtp.server.metrics import logs
from pymtp.server.process.listener import is_local, listen, open_standard_streams
from pymtp.server.process.supervisor import supervise
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ANY_HOST, ServerSettings
from pymtp.validation import absolute_path, is_hub_name, is_whole, shown

# modules that the extra `server` installs, and the names of their packages
REQUIRED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus_client": "prometheus-client",
}
MIB = 2**20


@dataclass(frozen=True)
class ServerOptions:
    """Options for the fields of ServerSettings, with their names."""

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 and :: stand for all.")] = ServerSettings.host
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on, 0 for any free port.")] = (
        ServerSettings.port
    )
    api_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="PYMTP_API_KEY",
            help="An API key that clients must send. May be given several times. Other users can see it in the list of "
            "processes; with --api-key-file or the variable they cannot.",
        ),
    ] = None
    api_key_file: Annotated[Path | None, typer.Option(help="Read API keys from this file, one per line.")] = None
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help='Let web pages of this origin send requests, "*" for all. May be given several times.',
        ),
    ] = None
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help='Accept requests whose Host header has this name, "*" for any. May be given several times. IP '
            "addresses and localhost are always accepted.",
            show_default="any; no other on loopback without a key",
        ),
    ] = None
    served_names: Annotated[
        list[str] | None,
        typer.Option(
            "--served-name",
            "-a",
            metavar="NAME",
            help="Name of the model for clients. May be given several times.",
            show_default="the name of the file",
        ),
    ] = None
    max_queue: Annotated[
        int,
        typer.Option(min=0, help="Completions that may wait for a slot. More are refused, unless no request runs."),
    ] = ServerSettings.max_queue
    max_body_bytes: Annotated[
        int, typer.Option("--max-body", min=1, metavar="MIB", help="Largest body of a request.")
    ] = ServerSettings.max_body_bytes // MIB
    request_timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.001,
            metavar="SECONDS",
            help="Longest time of a request, including its wait.",
            show_default="none",
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time for running requests to end after the server gets a signal."),
    ] = ServerSettings.grace
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
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the pages at / and /figures.html.")] = True
    log_format: Annotated[str, typer.Option(metavar="text|json", help="Log lines of text, or JSON objects.")] = (
        ServerSettings.log_format
    )
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Lowest level that is logged.")] = (
        ServerSettings.log_level
    )
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Also log the prompts of clients.")] = False

    def settings(self, sampling: Mapping[str, Any]) -> ServerSettings:
        """Return the settings of the server. Raises InvalidRequestError for invalid values.

        sampling: its field of that name.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        given["api_keys"] = [*(self.api_keys or ()), *self._file_keys(given.pop("api_key_file", None))]
        given["max_body_bytes"] *= MIB
        given["reasoning_budget"] = None if self.reasoning_budget < 0 else self.reasoning_budget
        given["effort_budgets"] = parse_effort_budgets("--effort-budgets", self.effort_budgets)
        with option_names(ServerOptions):
            settings = ServerSettings(**given, sampling=sampling)
        # an empty variable is probably a secret that was meant to be set, so do not serve without a key
        if not settings.api_keys and "PYMTP_API_KEY" in os.environ:
            raise InvalidRequestError("PYMTP_API_KEY is empty: set it to a key, or unset it to serve without a key")
        return settings

    @staticmethod
    def _file_keys(file: Path | None) -> list[str]:
        if file is None:
            return []
        keys = read_text("keys", file).split()
        if not keys:
            raise InvalidRequestError(f"{file} has no key in it")
        return keys


def parse_effort_budgets(option: str, text: str) -> dict[str, int]:
    """Parse a list such as `low=1024,high=8192`, and return the thinking budget of each reasoning effort.

    Raises InvalidRequestError if the list has another form.
    """
    budgets: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, budget = (part.strip() for part in pair.partition("="))
        if not effort or not budget.isdecimal() or effort in budgets or not is_whole(int(budget), 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must list reasoning efforts with budgets in tokens, such as low=1024,high=8192"
            )
        budgets[effort] = int(budget)
    return budgets


@expand_options
def serve(
    *,
    server_options: ServerOptions,
    n_seq_max: SeqMax = 4,
    prefix: Prefix = None,
    sampling: ModelSamplingOptions,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="random")] = None,
    load_options: LoadOptions,
) -> None:
    """Serve a model over HTTP, with OpenAI's and Anthropic's APIs."""
    if not all(map(find_spec, REQUIRED)):
        raise InvalidRequestError(f"pymtp serve needs more packages: pip install {' '.join(REQUIRED.values())}")
    settings = server_options.settings(sampling.given_params(seed=seed))
    # already here, so that invalid options and missing files are found before a worker starts
    options = load_options.options(_worker_model(load_options.model), n_seq_max=n_seq_max)
    with option_names(LoadOptions):
        options.check_machine()
    check_prefix(prefix)
    launch = WorkerConfig(settings, options, prefix)
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
            settings.host,
            settings.port,
        )
    with option_names(LoadOptions):
        code = supervise(listener, launch)
    if code:
        raise typer.Exit(code)


def _worker_model(name: str | None) -> str | None:
    """Return the absolute path of a model file, or a name of the hub unchanged; None stands for the shipped model.

    A model of the hub is not downloaded here but by the worker, so that the server answers requests meanwhile. Raises
    the errors of `model_name`.
    """
    name = model_name(name)
    if name is not None and is_hub_name(name):
        check_installed()
        return name
    return None if name is None else absolute_path(name)
