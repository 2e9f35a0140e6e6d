"""The Ray Serve application: `pymtp serve` with replicas on many machines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from pymtp.errors import InvalidRequestError
from pymtp.options import OPTION_NAMES, LLMOptions
from pymtp.ray import checked
from pymtp.ray.front import FrontDeployment
from pymtp.ray.replica import Replica
from pymtp.ray.router import PrefixRouter
from pymtp.ray.workers import DEFAULT_SEQUENCES
from pymtp.server.settings import ANY_HOST, ServerSettings, check_names
from pymtp.validation import read_int, shown

KEYS_VARIABLE = "PYMTP_API_KEY"
RAY_MAX_INT = 2**31 - 1  # largest limit of requests: Ray sends these limits in 32 bits
MAX_CONNECTIONS = 4096  # requests that a front handles at the same time, as in `pymtp serve`
LIGHT_REQUESTS = 64  # requests without generation, such as /health, that a replica accepts beside its slots and queue
HEALTH_TIMEOUT = 60.0  # seconds after which Ray replaces a replica whose engine hangs, as in `pymtp serve`
ERROR_SECONDS = 2.0  # time after the grace period to send errors to the clients of aborted requests
_SETTINGS = {field.name for field in fields(ServerSettings)} - {"host", "port", "replica"}  # Ray Serve sets these


def serve_app(
    model: str | os.PathLike[str] | None = None,
    *,
    replicas: int | tuple[int, int] = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    fronts: int = 1,
    prefix: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Application:
    """Build the application, for `serve.run` or as the target of `serve run`.

    model: a GGUF file that is on every machine, or a name of the hub such as "hf:owner/name:Q4_K_M", which each machine
        downloads once; None for the model that ships with pymtp.
    replicas: number of replicas, or the smallest and the largest number; with two numbers, Ray Serve adds and removes
        replicas so that each has about n_seq_max requests.
    num_cpus, num_gpus: CPUs and GPUs of each replica. The default of n_threads is num_cpus.
    fronts: number of processes that receive requests and forward them to replicas. They have no model.
    prefix: a file that `LLM.save_prefix` wrote, and that is on every machine.
    options: keywords of LLM (the default of n_seq_max is 8), and fields of pymtp.server.settings.ServerSettings except
        `host` and `port`, which Ray Serve sets. If api_keys is not given, the keys are read from the environment
        variable PYMTP_API_KEY, where spaces separate them. An empty list is refused if this variable is set.

    Raises InvalidRequestError for unknown options and invalid values. Missing files and GPUs are found only on the
    machine of a replica: then the replica fails, and its log has the reason.
    """
    min_replicas, max_replicas = checked.replica_range(replicas)
    n_fronts = read_int("fronts", fronts, 1)
    resources = {
        name: checked.resource(name, value) for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus))
    }
    settings, llm = _split_options(checked.path("model", model), options)
    n_seq_max = llm.n_seq_max
    count: dict[str, Any] = {"num_replicas": min_replicas}
    if min_replicas < max_replicas:
        scaling = AutoscalingConfig(
            min_replicas=min_replicas, max_replicas=max_replicas, target_ongoing_requests=n_seq_max
        )
        count = {"autoscaling_config": scaling}
    shutdown_timeout = settings.grace + ERROR_SECONDS
    replica = serve.deployment(
        **count,
        max_ongoing_requests=min(n_seq_max + settings.max_queue + LIGHT_REQUESTS, RAY_MAX_INT),
        # Not just max_queue: Ray also counts requests that it is about to send to a replica with a free slot. Each
        # replica enforces max_queue itself.
        max_queued_requests=min((n_seq_max + settings.max_queue + LIGHT_REQUESTS) * max_replicas, RAY_MAX_INT),
        max_constructor_retry_count=3,
        graceful_shutdown_timeout_s=shutdown_timeout,
        health_check_timeout_s=HEALTH_TIMEOUT,
        ray_actor_options=resources,
        request_router_config=RequestRouterConfig(
            request_router_class=f"{PrefixRouter.__module__}.{PrefixRouter.__name__}",  # type: ignore[arg-type] # pydantic accepts a string
            request_router_kwargs={"n_seq_max": n_seq_max},
        ),
    )(Replica)
    front = serve.deployment(
        name="Front",
        num_replicas=n_fronts,
        max_ongoing_requests=MAX_CONNECTIONS,
        graceful_shutdown_timeout_s=shutdown_timeout,
        ray_actor_options={"num_cpus": 0},  # so that a front can start even if replicas reserve all CPUs
    )(serve.ingress()(FrontDeployment))
    application: Application = front.bind(replica.bind(llm, checked.path("prefix", prefix), settings), settings)
    return application


def app(args: Mapping[str, Any]) -> Application:
    """Build the application from `args` of a Ray Serve config file, or of `serve run pymtp.ray.serve:app n_ctx=8192`.

    Values on the command line are strings. A value that is valid JSON is parsed as JSON; True, False and None are
    parsed as in Python; any other value stays a string.
    """
    parsed = {name: _parse_word(value) if isinstance(value, str) else value for name, value in args.items()}
    # keep these strings even if they consist of digits
    strings = {"api_keys", "served_names", "allowed_hosts", "model", "prefix"}
    parsed |= {name: str(args[name]) for name in strings & args.keys() if _is_number(parsed[name])}
    if isinstance(replicas := parsed.get("replicas"), list):
        if len(replicas) != 2:
            raise InvalidRequestError(
                f"replicas={shown(replicas)} must be a number, or the smallest and the largest number"
            )
        parsed["replicas"] = tuple(replicas)
    return serve_app(**parsed)


def _parse_word(word: str) -> Any:
    if word == "None":  # but not "none", which is a value of split_mode and rope_scaling
        return None
    try:
        return json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except (ValueError, RecursionError):
        return word


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _split_options(model: str | None, options: Mapping[str, Any]) -> tuple[ServerSettings, LLMOptions]:
    """Split the options into the settings of the server and the options of its LLM, and check both.

    API keys may be taken from the environment. Raises InvalidRequestError for unknown options and invalid values.
    """
    known = _SETTINGS | OPTION_NAMES
    if unknown := sorted(options.keys() - known):
        raise InvalidRequestError(f"unknown option {', '.join(unknown)}: the options are {', '.join(sorted(known))}")
    server_options = {name: options[name] for name in options.keys() & _SETTINGS}
    settings = ServerSettings(**server_options)
    if not settings.api_keys and KEYS_VARIABLE in os.environ:
        settings = replace(settings, api_keys=tuple(os.environ[KEYS_VARIABLE].split()))
        check_names(KEYS_VARIABLE, settings.api_keys)
        # an empty variable is probably a secret that was meant to be set, so do not serve without a key
        if not settings.api_keys:
            raise InvalidRequestError(f"{KEYS_VARIABLE} is empty: set it to a key, or unset it to serve without a key")
        if "api_keys" in server_options:  # it contradicts the variable: do not guess which of both is meant
            raise InvalidRequestError(
                f"api_keys is empty, but {KEYS_VARIABLE} has keys: leave api_keys out, or unset {KEYS_VARIABLE}"
            )
    if "allowed_hosts" not in server_options:
        settings = replace(settings, allowed_hosts=(ANY_HOST,))  # the machines of a cluster have many names
    llm = {name: options[name] for name in options.keys() - _SETTINGS}
    return settings, LLMOptions(model, **{"n_seq_max": DEFAULT_SEQUENCES, **llm})
