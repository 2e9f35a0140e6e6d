"""Tests of serve_app: options of the deployments, and refusals of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.late import ray_replica, ray_serve

import pymtp.ray
from pymtp import InvalidRequestError
from pymtp.options import LLMOptions
from pymtp.server.settings import ServerSettings


def built(*given: Any, builder: Any = None, **options: Any) -> tuple[Any, Any, list[Any]]:
    """Build an application. Return the deployment of fronts, that of replicas, and the arguments of a replica.

    The arguments are the options of the LLM, the path of a prefix, and the settings of the server.
    """
    front = (builder or pymtp.ray.serve_app)(*given, **options)._bound_deployment
    replica, settings = front.init_args
    assert replica._bound_deployment.init_args[-1] == settings
    return front, replica._bound_deployment, list(replica._bound_deployment.init_args)


def test_options_go_to_the_llm_and_to_the_server_settings() -> None:
    _, replica, args = built("m.gguf", n_ctx=512, n_cpu_moe=3, max_queue=9, served_names=["a"], prefix="p", num_cpus=4)
    assert replica.func_or_class is ray_replica.Replica
    assert args[:2] == [LLMOptions("m.gguf", n_seq_max=8, n_ctx=512, n_cpu_moe=3), "p"]
    assert args[2] == ServerSettings(max_queue=9, served_names=("a",), allowed_hosts=("*",))
    assert replica.ray_actor_options["num_cpus"] == 4


def test_serve_app_accepts_sampling_defaults() -> None:
    assert built(sampling={"temperature": 0.6})[2][2].sampling == {"temperature": 0.6}
    assert built({"sampling": '{"top_k": -1}'}, builder=ray_serve.app)[2][2].sampling == {"top_k": -1}


def test_option_of_serve_app_can_be_an_iterator() -> None:
    assert built(tensor_split=iter([3, 1]))[2][0].tensor_split == (3, 1)


def test_replica_accepts_more_requests_than_its_slots_and_queue() -> None:
    _, replica, _ = built(n_seq_max=3, max_queue=10)
    assert replica.num_replicas == 1
    assert replica.max_queued_requests > 13
    assert replica.max_ongoing_requests > 13


def test_application_without_a_queue_can_start() -> None:
    _, replica, _ = built(n_seq_max=1, max_queue=0)
    assert replica.max_queued_requests >= 1


@pytest.mark.parametrize("keys", ["", [""], ["right", " "], [3]])
def test_invalid_api_keys_are_refused(keys: Any) -> None:
    with pytest.raises(InvalidRequestError, match="api_keys must "):
        built(api_keys=keys)


@pytest.mark.parametrize(
    "options", [{"api_keys": None}, {"n_seq_max": 0}, {"n_seq_max": "x"}, {"served_names": 3}], ids=str
)
def test_values_of_wrong_types_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        built(**options)


INVALID = {
    "replicas": [None, 1.5, (1, 2, 3), "x", True, (1, "x"), 10**29],
    "fronts": ["a", None, 1.5],
    "num_cpus": [-1, "x", None, float("nan")],
    "num_gpus": [-1, 1.5],
    "grace": [None, -1, "x", float("inf")],
    "chunk_interval": [None, -1],
    "request_timeout": [0, "x"],
    "max_queue": ["x", -1, None, 1.5],
    "max_body_bytes": ["16MB", 0],
    "model": [123, "", b"m.gguf", "\0"],
    "prefix": [123, "", "\ud800"],
    "served_names": [[3], [""], ["\ud800"]],
    "api_keys": [["\ud800"]],
    "cache_prompt": ["off"],
    "page": ["no", None],
    "log_level": ["loud", []],
    "n_cpu_moe": [-1],
    "n_ctx": [-1, None, "x"],
    "n_threads": [0],
    "n_ubatch": [4],  # less than n_seq_max, which is 8
    "draft_tokens": [-1, "x"],
    "cache_bytes": [-1],
    "yarn_ext_factor": [-1],
    "allowed_hosts": [["https://api.example"]],
    "cors_origins": [["a.example/"]],
    "sampling": [None, "hot", {"top": 1}, {"temperature": -1}, {"top_p": "x"}],
    "reasoning_budget": [-1, "x", 1.5],
    "reasoning_budget_message": [None, "</think>"],
    "effort_budgets": [None, 5, {"low": -1}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in INVALID.items() for value in values], ids=str
)
def test_invalid_values_are_refused_with_the_option_s_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}.* must (not )?be ") as found:
        built(**{name: value})
    assert found.value.param == name


@pytest.mark.parametrize("name", ["hf:", "hf:x"])
def test_invalid_name_of_the_hub_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not the name of a model on the hub"):
        built(name)


@pytest.mark.parametrize("name", ["served_names", "allowed_hosts", "api_keys"])
@pytest.mark.parametrize("word", ["2024", "3.5", 2024])
def test_names_on_the_command_line_can_consist_of_digits(name: str, word: Any) -> None:
    assert getattr(built({name: word}, builder=ray_serve.app)[2][2], name) == (str(word),)


def test_json_that_is_nested_too_deeply_stays_a_string() -> None:
    with pytest.raises(InvalidRequestError, match=r"^n_ctx="):
        ray_serve.app({"n_ctx": "[" * 100_000})


def test_queue_limits_fit_into_32_bits() -> None:
    replica = built(replicas=10_000, max_queue=2**31 - 1)[1]
    assert (replica.max_queued_requests, replica.max_ongoing_requests) == (2**31 - 1, 2**31 - 1)
    assert replica._deployment_config.to_proto_bytes()


def test_empty_api_keys_are_refused_if_the_environment_has_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYMTP_API_KEY", raising=False)
    assert built(api_keys=[])[2][2].api_keys == ()
    monkeypatch.setenv("PYMTP_API_KEY", "secret")
    with pytest.raises(InvalidRequestError, match="api_keys is empty, but PYMTP_API_KEY has keys") as found:
        built(api_keys=[])
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("name", ["split_mode", "rope_scaling"])
def test_lowercase_none_on_the_command_line_stays_a_string(name: str) -> None:
    assert getattr(built({name: "none"}, builder=ray_serve.app)[2][0], name) == "none"


@pytest.mark.parametrize("keys", [{"sk-secret"}, b"sk-secret", ["sk-secret\n"], {"sk-secret": 1}], ids=type)
def test_error_does_not_show_refused_api_keys(keys: Any) -> None:
    with pytest.raises(InvalidRequestError, match="api_keys") as found:
        built(api_keys=keys)
    assert "sk-secret" not in str(found.value)


def test_true_is_refused_as_an_api_key() -> None:
    with pytest.raises(InvalidRequestError, match="api_keys"):
        built({"api_keys": True}, builder=ray_serve.app)


@pytest.mark.parametrize("no", ["false", "False", "FALSE"])
def test_false_and_none_on_the_command_line_are_parsed_as_in_python(no: str) -> None:
    settings = built({"page": no, "log_prompts": no, "request_timeout": "None"}, builder=ray_serve.app)[2][2]
    assert (settings.page, settings.log_prompts, settings.request_timeout) == (False, False, None)


@pytest.mark.parametrize(("name", "word"), [("page", "off"), ("log_prompts", "no"), ("max_body_bytes", "1MB")])
def test_unknown_log_levels_and_formats_on_the_command_line_are_refused(name: str, word: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}=.*{word}.* must be "):
        built({name: word}, builder=ray_serve.app)


def test_api_key_on_the_command_line_can_consist_of_digits() -> None:
    _, _, args = built({"api_keys": "12345"}, builder=ray_serve.app)
    assert args[2].api_keys == ("12345",)


def test_range_of_replicas_enables_autoscaling() -> None:
    _, replica, _ = built(replicas=(2, 10), n_seq_max=3)
    config = replica._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas, config.target_ongoing_requests) == (2, 10, 3)


def test_gpu_options_are_not_checked_on_the_machine_that_builds_the_application() -> None:
    given = {"override_tensor": "ffn=CUDA7", "main_gpu": 7, "split_mode": "none"}
    options = built(**given)[2][0]
    assert options.override_tensor == (("ffn", "CUDA7"),)
    assert (options.main_gpu, options.split_mode) == (7, "none")
    with pytest.raises(InvalidRequestError, match="is no regular expression"):
        built(override_tensor="(=CUDA7")


def test_fronts_need_no_cpu() -> None:
    front, _, _ = built(fronts=3)
    assert (front.num_replicas, front.ray_actor_options["num_cpus"]) == (3, 0)


def test_values_on_the_command_line_are_parsed_as_json() -> None:
    arguments = {"model": "m.gguf", "replicas": "[1, 2]", "n_ctx": "512", "use_mmap": "false", "served_names": "a"}
    _, replica, args = built(arguments, builder=ray_serve.app)
    assert args[:2] == [LLMOptions("m.gguf", n_seq_max=8, n_ctx=512, use_mmap=False), None]
    assert args[2].served_names == ("a",)
    assert replica._deployment_config.autoscaling_config.max_replicas == 2


def test_api_keys_come_from_the_environment_if_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMTP_API_KEY", "one two")
    assert built()[2][2].api_keys == ("one", "two")
    assert built(api_keys=["three"])[2][2].api_keys == ("three",)
    monkeypatch.setenv("PYMTP_API_KEY", " ")
    with pytest.raises(InvalidRequestError, match="PYMTP_API_KEY is empty"):
        pymtp.ray.serve_app()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_ctxt": 512}, "unknown option n_ctxt: the options are .*n_ctx"),
        ({"port": 80}, "unknown option port"),
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": (3, 2)}, r"replicas=\(3, 2\)"),
        ({"fronts": 0}, "fronts=0"),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        pymtp.ray.serve_app(**options)
    with pytest.raises(InvalidRequestError, match="the smallest and the largest"):
        ray_serve.app({"replicas": [1, 2, 3]})


def test_pymtp_ray_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'serv'"):
        _ = pymtp.ray.serv
