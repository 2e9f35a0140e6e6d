"""The command `pymtp serve`: an HTTP server with the APIs of OpenAI and Anthropic, and a chat page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from pymtp.cli.load import InferenceOptions
from pymtp.cli.model_file import model_name, with_projector_beside
from pymtp.cli.model_sampling import ModelSamplingOptions
from pymtp.cli.models_file import FileModel, is_given, read_models
from pymtp.cli.options import (
    COUNT,
    CTX,
    MODEL,
    MODEL_HELP,
    SEQ_MAX,
    SEQ_MAX_HELP,
    Prefix,
    ReasoningBudget,
    ReasoningBudgetMessage,
    expand_options,
    parse_count,
)
from pymtp.cli.shell_values import choice
from pymtp.cli.texts import read_text
from pymtp.errors import InvalidRequestError, ModelLoadError, PymtpError
from pymtp.hub.errors import check_installed
from pymtp.hub.snapshot import file_reader
from pymtp.load import check_prefix
from pymtp.model.options import read_file
from pymtp.options import LLMOptions
from pymtp.server.front.config import FRONT_PROGRAM, FrontConfig
from pymtp.server.front.folder import socket_folder
from pymtp.server.memory import FITTED
from pymtp.server.metrics import logs
from pymtp.server.metrics.logs import LogFormat, LogLevel
from pymtp.server.process.listener import is_local, listen_all, open_standard_streams
from pymtp.server.process.supervisor import supervise
from pymtp.server.process.worker_config import WorkerConfig
from pymtp.server.settings import ANY_HOST, ServerPooling, ServerSettings
from pymtp.validation import absolute_path, is_hub_name, is_whole, shown

# modules that the extra `server` installs, and the names of their packages
REQUIRED = {
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "httpx": "httpx",
    "prometheus_client": "prometheus-client",
}
MIB = 2**20
G = TypeVar("G")


@dataclass(frozen=True)
class ServerOptions:
    """Options for the fields of ServerSettings, with their names."""

    host: Annotated[str, typer.Option(help="Address to listen on, or several with commas; 0.0.0.0: all.")] = (
        ServerSettings.host
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = (
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
    api_key_file: Annotated[Path | None, typer.Option(help="Read API keys from this file, one a line.")] = None
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help='Let web pages of this origin send requests, "*" for all, localhost for those of this machine on any '
            "port. May be given several times.",
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
            "--alias",
            "-a",
            metavar="NAME",
            help="Name of the model for clients. May be repeated.",
            show_default="that of the file",
        ),
    ] = None
    max_queue: Annotated[
        int,
        typer.Option(
            min=0, help="Completions that may wait for a slot; more of a client beyond its share are refused."
        ),
    ] = ServerSettings.max_queue
    max_body_bytes: Annotated[
        int, typer.Option("--max-body", min=1, metavar="MIB", help="Largest body of a request.")
    ] = ServerSettings.max_body_bytes // MIB
    max_bodies_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-bodies",
            min=1,
            metavar="MIB",
            help="Memory for the bodies of all requests together.",
            show_default="twice --max-body",
        ),
    ] = None
    allow_image_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-image-urls",
            metavar="HOST[:PORT]",
            help='Fetch images of http(s) URLs from this host, "*" for any with a public address. May be given several '
            "times.",
            show_default="none",
        ),
    ] = None
    media_path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Read images of file: URLs that are in this folder.", show_default="none"),
    ] = None
    request_timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-to",
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
    page: Annotated[
        bool,
        typer.Option(
            "--page/--no-page", "--ui/--no-ui", "--webui/--no-webui", help="Serve the pages at / and /figures.html."
        ),
    ] = True
    pooling: Annotated[
        str,
        typer.Option(
            **choice(*get_args(ServerPooling)), help="Hidden states that an embedding has; none: those of all tokens."
        ),
    ] = ServerSettings.pooling
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Answer /metrics.")] = ServerSettings.metrics
    slots: Annotated[bool, typer.Option("--slots/--no-slots", help="Answer /slots.")] = ServerSettings.slots
    log_format: Annotated[
        str, typer.Option(**choice(*get_args(LogFormat)), help="Log lines of text, or JSON objects.")
    ] = ServerSettings.log_format
    log_level: Annotated[str, typer.Option(**choice(*get_args(LogLevel)), help="Lowest level that is logged.")] = (
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
        if self.max_bodies_bytes is not None:
            given["max_bodies_bytes"] *= MIB
        if self.media_path is not None:
            given["media_path"] = _folder("--media-path", self.media_path)
        given["reasoning_budget"] = None if self.reasoning_budget < 0 else self.reasoning_budget
        given["effort_budgets"] = parse_effort_budgets("--effort-budgets", self.effort_budgets)
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


def _folder(option: str, path: Path) -> str:
    """Return the absolute path of a folder. Raises InvalidRequestError if there is none."""
    if not path.is_dir():
        raise InvalidRequestError(f"{option} {shown(str(path))} must be a folder")
    return absolute_path(str(path))


def parse_effort_budgets(option: str, text: str) -> dict[str, int]:
    """Parse a list such as `low=1024,high=8192`, and return the thinking budget of each reasoning effort.

    Raises InvalidRequestError if the list has another form.
    """
    budgets: dict[str, int] = {}
    for pair in text.split(",") if text else ():
        effort, _, number = (part.strip() for part in pair.partition("="))
        budget = parse_count(number)
        if not effort or effort in budgets or budget is None or not is_whole(budget, 0, 2**31 - 1):
            raise InvalidRequestError(
                f"{option} {shown(text)} must list reasoning efforts with budgets in tokens, such as low=1024,high=8192"
            )
        budgets[effort] = budget
    return budgets


@dataclass(frozen=True)
class ServedModelOptions(InferenceOptions):
    """Options of a served model. The context length, if it is not given, is chosen by the free memory."""

    n_ctx: Annotated[
        int,
        typer.Option(
            *CTX,
            **COUNT,
            help="Tokens of a request, with its prompt; 0: as trained.",
            show_default="what fits, at most 131072",
        ),
    ] = LLMOptions.n_ctx


@dataclass(frozen=True)
class SeveralOptions:
    """Options of a server of several models, and of one that sleeps."""

    models_file: Annotated[
        Path | None,
        typer.Option("--models", metavar="FILE.toml", help="Serve the models of this file, a table for each."),
    ] = None
    models_max: Annotated[
        int, typer.Option(min=0, help="Most models that are loaded at a time, 0 for as many as fit.")
    ] = 0
    models_memory: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**40,
            metavar="MIB",
            help="Host memory for all loaded models together.",
            show_default="nine tenths of what is free at the start",
        ),
    ] = None
    idle_seconds: Annotated[
        float,
        typer.Option(
            "--idle-seconds",
            "--sleep-idle-seconds",
            min=0,
            metavar="SECONDS",
            help="Unload a model after this time without requests, 0 for never.",
        ),
    ] = 0.0
    autoload: Annotated[
        bool,
        typer.Option(
            "--autoload/--no-autoload",
            "--models-autoload/--no-models-autoload",
            help="Load a model when a request names it.",
        ),
    ] = True


MODEL_PARAMS = frozenset(
    [field.name for group in (ServedModelOptions, ModelSamplingOptions) for field in fields(group)]
    + ["n_seq_max", "prefix", "seed", "served_names", "reasoning_budget", "reasoning_budget_message", "effort_budgets"]
)
ONE_MODEL = ("prefix", "served_names", "head", "mmproj")  # options that cannot hold for several models


@expand_options
def serve(
    *,
    context: typer.Context,
    server_options: ServerOptions,
    several: SeveralOptions,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", **MODEL, help=f"{MODEL_HELP} May be repeated."),
    ] = None,
    n_seq_max: Annotated[
        int,
        typer.Option(
            *SEQ_MAX,
            help=SEQ_MAX_HELP,
            show_default="what fits, at most 4",
        ),
    ] = 1,
    prefix: Prefix = None,
    sampling: ModelSamplingOptions,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="random")] = None,
    load_options: ServedModelOptions,
) -> None:
    """Serve models over HTTP, with OpenAI's and Anthropic's APIs."""
    if not all(map(find_spec, REQUIRED)):
        raise InvalidRequestError(f"pymtp serve needs more packages: pip install {' '.join(REQUIRED.values())}")
    settings = server_options.settings(sampling.given_params(seed=seed))
    # already here, so that invalid options and missing files are found before a worker starts
    config = _launch(context, settings, several, models)
    open_standard_streams()
    listeners = listen_all(settings.hosts, settings.port)
    all_local = all(map(is_local, listeners))
    if not settings.allowed_hosts and (settings.api_keys or not all_local):
        # The check of host names protects a server without a key on loopback from web pages (DNS rebinding). With a key
        # it is not needed, and a server that is open to the network has nothing to protect.
        config = replace(config, settings=replace(config.settings, allowed_hosts=(ANY_HOST,)))
    logs.configure(settings.log_format, settings.log_level)
    if not settings.api_keys and not all_local:
        logs.log.warning(
            "anybody who can reach %s:%d can use the server: set --api-key-file or PYMTP_API_KEY to require a key",
            settings.host,
            settings.port,
        )
    if isinstance(config, FrontConfig):
        with socket_folder() as folder:
            code = supervise(listeners, replace(config, folder=folder), FRONT_PROGRAM)
    else:
        code = supervise(listeners, config)
    if code:
        raise typer.Exit(code)


def _launch(
    context: typer.Context, settings: ServerSettings, several: SeveralOptions, models: list[str] | None
) -> WorkerConfig | FrontConfig:
    """Return the config of the process that serves: a worker, or a front without its folder.

    Raises InvalidRequestError for options that do not go together, and the errors of `_worker_model`.
    """
    given = frozenset(name for name in MODEL_PARAMS if is_given(context, name))
    if several.models_file is None and len(models or ()) < 2:
        model = models[0] if models else None
        config = _worker_config(settings, model, context.params, given)
        if not several.idle_seconds:
            own = {"--models-max": several.models_max, "--models-memory": several.models_memory}
            own |= {"--no-autoload": not several.autoload}
            if wrong := [option for option, value in own.items() if value]:
                raise InvalidRequestError(f"{wrong[0]} is for several models: give --model several times, or --models")
            return config
        configs = [config]
    else:
        if models and several.models_file is not None:
            raise InvalidRequestError("give --model or --models, not both")
        if wrong := [name for name in ONE_MODEL if name in given]:
            spelling = next(p.opts[0] for p in context.command.params if p.name == wrong[0])
            raise InvalidRequestError(f"{spelling} is for one model: give it to a model in the file of --models")
        if several.models_file is None:
            configs = [_named_config(settings, name, context.params, given) for name in models or ()]
        else:
            configs = [
                _table_config(settings, model) for model in read_models(several.models_file, context, MODEL_PARAMS)
            ]
    _check_names_differ(configs)
    memory = None if several.models_memory is None else several.models_memory * MIB
    return FrontConfig(settings, tuple(configs), "", several.models_max, memory, several.idle_seconds, several.autoload)


def _named_config(
    settings: ServerSettings, name: str, params: Mapping[str, Any], given: frozenset[str]
) -> WorkerConfig:
    """Return the config of a model that has the name of its file, or its name on the hub."""
    config = _worker_config(settings, name, params, given)
    names = (name.removeprefix("hf:"), name) if is_hub_name(name) else (Path(name).stem,)
    return replace(config, settings=replace(config.settings, served_names=names))


def _table_config(settings: ServerSettings, model: FileModel) -> WorkerConfig:
    """Return the config of a model of a file."""
    sampling = _build(ModelSamplingOptions, model.params)
    try:
        own = replace(
            settings,
            sampling=sampling.given_params(seed=model.params["seed"]),
            served_names=(model.name, *(model.params["served_names"] or ())),
            reasoning_budget=None if model.params["reasoning_budget"] < 0 else model.params["reasoning_budget"],
            reasoning_budget_message=model.params["reasoning_budget_message"],
            effort_budgets=parse_effort_budgets("effort_budgets", model.params["effort_budgets"]),
        )
        config = _worker_config(own, model.model, model.params, model.given, model.keywords)
    except PymtpError as error:
        error.args = (f"{model.where}: {error}",)
        raise
    return config


def _worker_config(
    settings: ServerSettings,
    model: str | None,
    params: Mapping[str, Any],
    given: frozenset[str],
    keywords: Mapping[str, Any] | None = None,
) -> WorkerConfig:
    """Return the config of a worker.

    params: the values of the command's options. given: the names of those that a user has set.
    keywords: keywords of LLM, which replace those of the options.
    """
    options = _build(ServedModelOptions, params)
    given_keywords = {**options.keywords(), "n_seq_max": params["n_seq_max"], **(keywords or {})}
    llm = LLMOptions(_worker_model(model), **given_keywords)
    _check_file(llm.model)
    llm = with_projector_beside(llm)
    llm.check_machine()
    check_prefix(params["prefix"])
    return WorkerConfig(settings, llm, params["prefix"], tuple(name for name in FITTED if name not in given))


def _build(group: type[G], params: Mapping[str, Any]) -> G:
    return group(**{field.name: params[field.name] for field in fields(group)})  # type: ignore[arg-type]


def _check_names_differ(configs: Sequence[WorkerConfig]) -> None:
    """Raise InvalidRequestError if two models have a name in common."""
    seen: set[str] = set()
    for config in configs:
        for name in config.settings.served_names:
            if name in seen:
                raise InvalidRequestError(
                    f"two models have the name {shown(name)}: give them names in a file, with --models"
                )
            seen.add(name)


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


def _check_file(model: object) -> None:
    """Raise ModelLoadError for a path of no GGUF file: a worker may load it much later."""
    if not isinstance(model, str) or is_hub_name(model):
        return
    if not os.path.exists(model):
        raise ModelLoadError(f"no such file: {model}")
    if read_file("model", model, lambda file: file_reader(file)(0, 4)) != b"GGUF":
        raise ModelLoadError(f"{model} is not a GGUF file")
