"""`pymtp serve`: an HTTP server for clients of OpenAI's and Anthropic's APIs, and a page to chat on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from pymtp.cli.load import Loading, options_named
from pymtp.cli.model_file import local_file
from pymtp.cli.model_sampling import ModelSampling
from pymtp.cli.options import Prefix, ReasoningBudget, ReasoningBudgetMessage, SeqMax, spread, thinking
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError
from pymtp.hub.errors import check_installed
from pymtp.hub.names import read_name
from pymtp.load import check_prefix
from pymtp.server.budgets import read_effort_budgets
from pymtp.server.metrics import logs
from pymtp.server.process.launch import Launch
from pymtp.server.process.listener import is_local, listen, open_standard_streams
from pymtp.server.process.supervisor import supervise
from pymtp.server.settings import ANY_HOST, Settings, check_host, check_names, check_origin
from pymtp.validation import is_hub_name, whole

# of the extra `server`: modules, and the packages that they come from
NEEDED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "prometheus_client": "prometheus-client",
}
MIB = 2**20


@dataclass(frozen=True)
class Access:
    """Who may ask."""

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
        """All keys. Raises InvalidRequestError for a file without any, and for empty ones."""
        keys = list(self.api_key or ())
        if self.api_key_file is not None:
            found = read_text("keys", self.api_key_file).split()
            if not found:
                raise InvalidRequestError(f"{self.api_key_file} holds no key")
            keys += found
        check_names("--api-key", keys)
        if not keys and "PYMTP_API_KEY" in os.environ:  # of a secret that was not set: to serve anybody would be wrong
            raise InvalidRequestError("PYMTP_API_KEY is empty: give it a key, or unset it to serve without")
        return tuple(keys)

    def origins(self) -> tuple[str, ...]:
        """All origins. Raises InvalidRequestError for what no browser calls one: it would never match."""
        for origin in self.cors_origin or ():
            check_origin("--cors-origin", origin)
        return tuple(self.cors_origin or ())

    def hosts(self) -> tuple[str, ...]:
        """All names of hosts. Raises InvalidRequestError for what is none: it would never match."""
        for name in self.allowed_host or ():
            check_host("--allowed-host", name)
        return tuple(self.allowed_host or ())


@dataclass(frozen=True)
class Limits:
    """What requests may take."""

    max_queue: Annotated[
        int, typer.Option(min=0, help="Texts that may wait for a place; more are turned away, unless nothing runs.")
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
        """Raises InvalidRequestError for seconds that never pass."""
        for option, seconds in (("--timeout", self.timeout), ("--grace", self.grace)):
            if seconds is not None and not isfinite(seconds):
                raise InvalidRequestError(f"{option} {seconds} must be a number of seconds")


@dataclass(frozen=True)
class Budgets:
    """How much chats may think."""

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

    def checked(self) -> dict[str, Any]:
        """By the names of Settings. Raises InvalidRequestError for a message or budgets that cannot be."""
        budget = thinking(self.reasoning_budget, self.reasoning_budget_message)
        return {
            "reasoning_budget": budget["thinking_budget"],
            "reasoning_budget_message": budget["thinking_end"],
            "effort_budgets": read_effort_budgets("--effort-budgets", self.effort_budgets),
        }


@dataclass(frozen=True)
class Logging:
    """What is logged, on stderr."""

    log_format: Annotated[str, typer.Option(metavar="text|json", help="Lines as text or as JSON objects.")] = "text"
    log_level: Annotated[str, typer.Option(metavar="debug|info|warning|error", help="Least that is logged.")] = "info"
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log what clients ask, too.")] = False

    def checked(self) -> dict[str, Any]:
        """By the names of Settings. Raises InvalidRequestError for a format or level that there is not."""
        for option, given, known in (
            ("--log-format", self.log_format, ("text", "json")),
            ("--log-level", self.log_level, ("debug", "info", "warning", "error")),
        ):
            if given not in known:
                raise InvalidRequestError(f"{option} {given!r} must be one of {', '.join(known)}")
        return {"log_format": self.log_format, "log_level": self.log_level, "log_prompts": self.log_prompts}


@spread
def serve(
    *,
    access: Access,
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
    sampling: ModelSampling,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="any")] = None,
    limits: Limits,
    budgets: Budgets,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the pages at / and /figures.html.")] = True,
    logging: Logging,
    loading: Loading,
) -> None:
    """Serve a model over HTTP. Clients of OpenAI's and Anthropic's APIs can use it."""
    if not all(map(find_spec, NEEDED)):
        raise InvalidRequestError(f"pymtp serve needs more packages: pip install {' '.join(NEEDED.values())}")
    limits.check()
    check_names("--served-name", served_name or ())
    settings = Settings(
        host=access.host,
        port=access.port,
        api_keys=access.keys(),
        cors_origins=access.origins(),
        allowed_hosts=access.hosts(),
        served_names=tuple(served_name or ()),
        max_queue=limits.max_queue,
        max_body_bytes=limits.max_body * MIB,
        request_timeout=limits.timeout,
        grace=limits.grace,
        page=page,
        sampling=sampling.given(seed=seed),
        **budgets.checked(),
        **logging.checked(),
    )
    keywords = loading.keywords(n_seq_max)  # what is wrong with them is told before a download
    check_prefix(prefix)
    launch = Launch(settings, _model(loading.model), keywords, prefix)
    open_standard_streams()
    listener = listen(settings.host, settings.port)
    if not settings.allowed_hosts and (settings.api_keys or not is_local(listener)):
        # who may ask is told by keys, or it is anybody
        launch = replace(launch, settings=replace(settings, allowed_hosts=(ANY_HOST,)))
    logs.configure(settings.log_format, settings.log_level)
    if not settings.api_keys and not is_local(listener):
        logs.log.warning(
            "anybody who reaches %s:%d is answered: --api-key-file or PYMTP_API_KEY asks for a key",
            access.host,
            access.port,
        )
    with options_named():
        code = supervise(listener, launch)
    if code:
        raise typer.Exit(code)


def _model(name: str | None) -> str | None:
    """A file with its whole path, or a name of the hub: the worker brings it, so that the server answers meanwhile.
    Raises as `local_file`."""
    if name is not None and is_hub_name(name):
        read_name(name)
        check_installed()
        return name
    file = local_file(name)
    return None if file is None else whole(str(file))
