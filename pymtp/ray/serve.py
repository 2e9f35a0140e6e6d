"""A Ray Serve application: `pymtp serve` with replicas on many machines."""

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
from pymtp.model.options import NAMES as MODEL_OPTIONS
from pymtp.model.rope import NAMES as ROPE_OPTIONS
from pymtp.ray import checked
from pymtp.ray.front import Front
from pymtp.ray.replica import Replica
from pymtp.ray.router import PrefixRouter
from pymtp.ray.workers import PLACES
from pymtp.server.settings import ANY_HOST, Settings, check_names
from pymtp.validation import in_range, shown

KEYS = "PYMTP_API_KEY"
MOST_OF_RAY = 2**31 - 1  # it sends such numbers in 32 bits
MOST_CONNECTIONS = 4096  # of a door, as of `pymtp serve`
LIGHT = 64  # requests without a text that a replica takes beside those that run and wait: /health, /tokenize
STUCK = 60.0  # seconds after which an engine that answers no more is given up, as by `pymtp serve`
TO_TELL = 2.0  # seconds, on top of the grace, for clients to hear that their requests are ended
_SETTINGS = {field.name for field in fields(Settings)} - {"host", "port", "replica"}  # those are Ray Serve's


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
    """The application, for `serve.run` or as the target of `serve run`.

    model: a GGUF file that is on every machine, or a name of the hub such as "hf:owner/name:Q4_K_M", which each machine
        downloads once; None for the model that ships with pymtp.
    replicas: how many, or the least and the most of them: Ray Serve then starts as many as keep all texts writing.
    num_cpus, num_gpus: of each replica. n_threads is num_cpus where it is not given.
    fronts: doors. They hold no model, and agree where a request goes without a word between them.
    prefix: a file of `LLM.save_prefix` that is on every machine.
    options: of LLM (n_seq_max is 8 where it is not given), and of pymtp.server.settings.Settings but `host` and `port`,
        which are Ray Serve's. Without api_keys, those in the environment variable PYMTP_API_KEY, with spaces between.
        An empty list with this variable set is refused.

    Raises InvalidRequestError for options that are none, and for values that they cannot have. What only a
    replica's machine can tell, such as files and GPUs that are not there, fails in the replicas, and the log says why.
    """
    least, most = checked.least_and_most(replicas)
    doors = in_range("fronts", fronts, 1)
    cores = {name: checked.resource(name, value) for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus))}
    given = (checked.path("model", model), checked.path("prefix", prefix))
    settings, llm = _parted(options)
    places = in_range("n_seq_max", llm["n_seq_max"], 1, MAX_SEQ)
    number: dict[str, Any] = {"num_replicas": least}
    if least < most:
        scaling = AutoscalingConfig(min_replicas=least, max_replicas=most, target_ongoing_requests=places)
        number = {"autoscaling_config": scaling}
    ends = settings.grace + TO_TELL
    held = serve.deployment(
        **number,
        max_ongoing_requests=min(places + settings.max_queue + LIGHT, MOST_OF_RAY),
        # Ray counts those that are on their way to a free replica as well; each replica holds to max_queue itself
        max_queued_requests=min((places + settings.max_queue + LIGHT) * most, MOST_OF_RAY),
        max_constructor_retry_count=3,
        graceful_shutdown_timeout_s=ends,
        health_check_timeout_s=STUCK,
        ray_actor_options=cores,
        request_router_config=RequestRouterConfig(
            request_router_class=f"{PrefixRouter.__module__}.{PrefixRouter.__name__}",  # type: ignore[arg-type] # of pydantic
            request_router_kwargs={"places": places},
        ),
    )(Replica)
    door = serve.deployment(
        num_replicas=doors,
        max_ongoing_requests=MOST_CONNECTIONS,
        graceful_shutdown_timeout_s=ends,
        ray_actor_options={"num_cpus": 0},  # so that there is room for it beside replicas that take whole machines
    )(serve.ingress()(Front))
    bound: Application = door.bind(held.bind(*given, llm, settings), settings)
    return bound


def app(args: Mapping[str, Any]) -> Application:
    """`serve_app` for `serve run pymtp.ray.serve:app model=… n_ctx=8192` and for files of Ray Serve, whose `args` are
    its arguments. Words of the command line are read as JSON where they are such, and False, True and None as in
    Python."""
    read = {name: _read(value) if isinstance(value, str) else value for name, value in args.items()}
    # a key may be of digits, and so may a name
    texts = {"api_keys", "served_names", "allowed_hosts", "model", "prefix"}
    read |= {name: str(args[name]) for name in texts & args.keys() if _is_number(read[name])}
    if isinstance(several := read.get("replicas"), list):
        if len(several) != 2:
            raise InvalidRequestError(f"replicas={shown(several)} must be a number, or the least and the most")
        read["replicas"] = tuple(several)
    return serve_app(**read)


def _read(word: str) -> Any:
    if word == "None":  # "none" is a value of split_mode and rope_scaling
        return None
    try:
        return json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except (ValueError, RecursionError):
        return word


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parted(options: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Options of the server, and those of the LLM."""
    known = {*_SETTINGS, *LLM._parameters(), *MODEL_OPTIONS, *ROPE_OPTIONS}
    if unknown := sorted(options.keys() - known):
        raise InvalidRequestError(f"no option {', '.join(unknown)}: there are {', '.join(sorted(known))}")
    own = checked.texts({name: options[name] for name in options.keys() & _SETTINGS})
    settings = Settings(**own)
    checked.check(settings)
    if not settings.api_keys and KEYS in os.environ:
        settings = replace(settings, api_keys=tuple(os.environ[KEYS].split()))
        check_names(KEYS, settings.api_keys)
        if not settings.api_keys:  # of a secret that was not set: to serve anybody would be wrong
            raise InvalidRequestError(f"{KEYS} is empty: give it a key, or unset it to serve without")
        if "api_keys" in own:  # whoever set the variable counts on it
            raise InvalidRequestError(f"api_keys is empty, but {KEYS} names keys: leave api_keys out, or unset {KEYS}")
    if "allowed_hosts" not in own:
        settings = replace(settings, allowed_hosts=(ANY_HOST,))  # machines of a cluster have many names
    llm = {name: options[name] for name in options.keys() - _SETTINGS}
    return settings, LLM._read({"n_seq_max": PLACES, **llm}, here=False)
