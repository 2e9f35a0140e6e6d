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

from pymtp.context.options import MAX_SEQ
from pymtp.errors import InvalidRequestError
from pymtp.llm import LLM
from pymtp.model.options import MODEL_OPTION_NAMES
from pymtp.model.rope import ROPE_OPTION_NAMES
from pymtp.ray import checked
from pymtp.ray.front import FrontDeployment
from pymtp.ray.replica import Replica
from pymtp.ray.router import PrefixRouter
from pymtp.ray.workers import DEFAULT_SEQUENCES
from pymtp.server.settings import ANY_HOST, ServerSettings, check_names
from pymtp.validation import read_int, shown

KEYS_VARIABLE = "PYMTP_API_KEY"
RAY_MAX_INT = 2**31 - 1  # Ray sends such numbers in 32 bits
MAX_CONNECTIONS = 4096  # per front, as in `pymtp serve`
LIGHT_REQUESTS = 64  # that a replica takes beside its slots and its queue: /health, /tokenize
HEALTH_TIMEOUT = 60.0  # seconds after which an engine counts as hanging, as in `pymtp serve`
ERROR_SECONDS = 2.0  # after the grace period, to send clients the errors of their aborted requests
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
    replicas: their number, or the smallest and the largest number: Ray Serve then scales them so that each has about
        n_seq_max requests.
    num_cpus, num_gpus: of each replica. n_threads is num_cpus where it is not given.
    fronts: replicas of the front, which has no model. They route alike without messages between them.
    prefix: a file of `LLM.save_prefix` that is on every machine.
    options: keywords of LLM (n_seq_max is 8 where it is not given), and fields of pymtp.server.settings.ServerSettings
        except `host` and `port`, which Ray Serve sets. Without api_keys, the keys come from the environment variable
        PYMTP_API_KEY, separated by spaces. An empty list with this variable set is refused.

    Raises InvalidRequestError for unknown options and invalid values. Missing files and GPUs are found only on the
    machine of a replica: then the replica fails, and its log says why.
    """
    min_replicas, max_replicas = checked.replica_range(replicas)
    n_fronts = read_int("fronts", fronts, 1)
    resources = {
        name: checked.resource(name, value) for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus))
    }
    model_and_prefix = (checked.path("model", model), checked.path("prefix", prefix))
    settings, llm = _split_options(options)
    n_seq_max = read_int("n_seq_max", llm["n_seq_max"], 1, MAX_SEQ)
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
        # Ray also counts requests that are being sent to a free replica; each replica enforces max_queue itself
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
        ray_actor_options={"num_cpus": 0},  # 0: a front must fit beside replicas that take whole machines
    )(serve.ingress()(FrontDeployment))
    application: Application = front.bind(replica.bind(*model_and_prefix, llm, settings), settings)
    return application


def app(args: Mapping[str, Any]) -> Application:
    """Build the application from `args` of a Ray Serve config file, or of `serve run pymtp.ray.serve:app n_ctx=8192`.

    Words of the command line are parsed as JSON where they are valid JSON, and False, True and None as in Python.
    """
    parsed = {name: _parse_word(value) if isinstance(value, str) else value for name, value in args.items()}
    # a key or a name may consist of digits
    strings = {"api_keys", "served_names", "allowed_hosts", "model", "prefix"}
    parsed |= {name: str(args[name]) for name in strings & args.keys() if _is_number(parsed[name])}
    if isinstance(replicas := parsed.get("replicas"), list):
        if len(replicas) != 2:
            raise InvalidRequestError(f"replicas={shown(replicas)} must be a number, or the least and the most")
        parsed["replicas"] = tuple(replicas)
    return serve_app(**parsed)


def _parse_word(word: str) -> Any:
    if word == "None":  # "none" is a value of split_mode and rope_scaling
        return None
    try:
        return json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except (ValueError, RecursionError):
        return word


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _split_options(options: Mapping[str, Any]) -> tuple[ServerSettings, dict[str, Any]]:
    """Split the options into the settings of the server and the keywords of LLM. Raises InvalidRequestError."""
    known = {*_SETTINGS, *LLM._parameters(), *MODEL_OPTION_NAMES, *ROPE_OPTION_NAMES}
    if unknown := sorted(options.keys() - known):
        raise InvalidRequestError(f"no option {', '.join(unknown)}: there are {', '.join(sorted(known))}")
    server_options = checked.string_tuples({name: options[name] for name in options.keys() & _SETTINGS})
    settings = ServerSettings(**server_options)
    checked.check_settings(settings)
    if not settings.api_keys and KEYS_VARIABLE in os.environ:
        settings = replace(settings, api_keys=tuple(os.environ[KEYS_VARIABLE].split()))
        check_names(KEYS_VARIABLE, settings.api_keys)
        if not settings.api_keys:  # the variable is a secret that was not set: serving without a key would be wrong
            raise InvalidRequestError(f"{KEYS_VARIABLE} is empty: give it a key, or unset it to serve without")
        if "api_keys" in server_options:  # the variable was set to protect the server
            raise InvalidRequestError(
                f"api_keys is empty, but {KEYS_VARIABLE} names keys: leave api_keys out, or unset {KEYS_VARIABLE}"
            )
    if "allowed_hosts" not in server_options:
        settings = replace(settings, allowed_hosts=(ANY_HOST,))  # the machines of a cluster have many names
    llm = {name: options[name] for name in options.keys() - _SETTINGS}
    return settings, LLM._read({"n_seq_max": DEFAULT_SEQUENCES, **llm}, here=False)
