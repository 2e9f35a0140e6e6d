"""Claims about what a Ray Serve application is made with."""

from __future__ import annotations

from typing import Any

import pytest

import pymtp.ray
from pymtp import InvalidRequestError
from pymtp.ray import serve_app
from pymtp.ray.replica import Replica
from pymtp.ray.serve import app
from pymtp.server.settings import Settings


def made(*given: Any, builder: Any = serve_app, **options: Any) -> tuple[Any, Any, list[Any]]:
    """The deployments of doors and of replicas, and what a replica is made with."""
    door = builder(*given, **options)._bound_deployment
    held, settings = door.init_args
    assert held._bound_deployment.init_args[-1] == settings
    return door, held._bound_deployment, list(held._bound_deployment.init_args)


def test_options_are_those_of_an_llm_and_of_the_server() -> None:
    _, held, args = made("m.gguf", n_ctx=512, n_cpu_moe=3, max_queue=9, served_names=["a"], prefix="p", num_cpus=4)
    assert held.func_or_class is Replica
    assert args[:3] == ["m.gguf", "p", {"n_seq_max": 8, "n_ctx": 512, "n_cpu_moe": 3}]
    assert args[3] == Settings(max_queue=9, served_names=("a",), allowed_hosts=("*",))
    assert held.ray_actor_options["num_cpus"] == 4


def test_what_requests_leave_open_may_be_given() -> None:
    assert made(sampling={"temperature": 0.6})[2][3].sampling == {"temperature": 0.6}
    assert made({"sampling": '{"top_k": -1}'}, builder=app)[2][3].sampling == {"top_k": -1}


def test_options_may_be_iterators() -> None:
    assert made(tensor_split=iter([3, 1]))[2][2]["tensor_split"] == (3, 1)


def test_one_replica_takes_more_than_it_writes_and_says_itself_when_it_is_full() -> None:
    _, held, _ = made(n_seq_max=3, max_queue=10)
    assert held.num_replicas == 1
    assert held.max_queued_requests > 13
    assert held.max_ongoing_requests > 13


def test_a_server_without_a_queue_can_start() -> None:
    _, held, _ = made(n_seq_max=1, max_queue=0)
    assert held.max_queued_requests >= 1


@pytest.mark.parametrize("keys", ["", [""], ["right", " "], [3]])
def test_keys_that_are_none_are_refused(keys: Any) -> None:
    with pytest.raises(InvalidRequestError, match="api_keys must "):
        made(api_keys=keys)


@pytest.mark.parametrize(
    "options", [{"api_keys": None}, {"n_seq_max": 0}, {"n_seq_max": "x"}, {"served_names": 3}], ids=str
)
def test_values_of_wrong_types_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        made(**options)


ODD = {
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
    ("name", "value"), [(name, value) for name, values in ODD.items() for value in values], ids=str
)
def test_odd_values_are_refused_with_their_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}.* must be ") as found:
        made(**{name: value})
    assert found.value.param == name


@pytest.mark.parametrize("name", ["hf:", "hf:x"])
def test_a_name_that_is_none_of_the_hub_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no name of a model on the hub"):
        made(name)


@pytest.mark.parametrize("name", ["served_names", "allowed_hosts", "api_keys"])
@pytest.mark.parametrize("word", ["2024", "3.5", 2024])
def test_names_may_be_numbers(name: str, word: Any) -> None:
    assert getattr(made({name: word}, builder=app)[2][3], name) == (str(word),)


def test_json_that_is_too_deep_is_a_word() -> None:
    with pytest.raises(InvalidRequestError, match=r"^n_ctx="):
        app({"n_ctx": "[" * 100_000})


def test_the_most_that_may_wait_at_all_replicas_is_a_number_that_ray_can_send() -> None:
    held = made(replicas=10_000, max_queue=2**31 - 1)[1]
    assert (held.max_queued_requests, held.max_ongoing_requests) == (2**31 - 1, 2**31 - 1)
    assert held._deployment_config.to_proto_bytes()


def test_an_empty_list_of_keys_does_not_open_a_server_that_the_environment_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYMTP_API_KEY", raising=False)
    assert made(api_keys=[])[2][3].api_keys == ()
    monkeypatch.setenv("PYMTP_API_KEY", "secret")
    with pytest.raises(InvalidRequestError, match="api_keys is empty, but PYMTP_API_KEY names keys") as found:
        made(api_keys=[])
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("name", ["split_mode", "rope_scaling"])
def test_none_is_a_word_where_an_option_has_it(name: str) -> None:
    assert made({name: "none"}, builder=app)[2][2][name] == "none"


@pytest.mark.parametrize("keys", [{"sk-secret"}, b"sk-secret", ["sk-secret\n"], {"sk-secret": 1}], ids=type)
def test_keys_that_are_refused_are_not_shown(keys: Any) -> None:
    with pytest.raises(InvalidRequestError, match="api_keys") as found:
        made(api_keys=keys)
    assert "sk-secret" not in str(found.value)


def test_yes_is_no_key() -> None:
    with pytest.raises(InvalidRequestError, match="api_keys"):
        made({"api_keys": True}, builder=app)


@pytest.mark.parametrize("no", ["false", "False", "FALSE"])
def test_no_is_no_on_the_command_line(no: str) -> None:
    settings = made({"page": no, "log_prompts": no, "request_timeout": "None"}, builder=app)[2][3]
    assert (settings.page, settings.log_prompts, settings.request_timeout) == (False, False, None)


@pytest.mark.parametrize(("name", "word"), [("page", "off"), ("log_prompts", "no"), ("max_body_bytes", "1MB")])
def test_words_that_mean_nothing_are_refused_there(name: str, word: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}=.*{word}.* must be "):
        made({name: word}, builder=app)


def test_a_key_may_be_of_digits_on_the_command_line() -> None:
    _, _, args = made({"api_keys": "12345"}, builder=app)
    assert args[3].api_keys == ("12345",)


def test_replicas_follow_the_load_where_there_are_a_least_and_a_most() -> None:
    _, held, _ = made(replicas=(2, 10), n_seq_max=3)
    config = held._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas, config.target_ongoing_requests) == (2, 10, 3)


def test_gpus_and_their_buffers_are_those_of_the_replicas() -> None:
    given = {"override_tensor": "ffn=CUDA7", "main_gpu": 7, "split_mode": "none"}
    assert made(**given)[2][2] == {"n_seq_max": 8, **given, "override_tensor": (("ffn", "CUDA7"),)}
    with pytest.raises(InvalidRequestError, match="is no regular expression"):
        made(override_tensor="(=CUDA7")


def test_doors_take_no_processor_from_replicas() -> None:
    door, _, _ = made(fronts=3)
    assert (door.num_replicas, door.ray_actor_options["num_cpus"]) == (3, 0)


def test_words_of_a_command_line_are_read_as_what_they_are() -> None:
    words = {"model": "m.gguf", "replicas": "[1, 2]", "n_ctx": "512", "use_mmap": "false", "served_names": "a"}
    _, held, args = made(words, builder=app)
    assert args[:3] == ["m.gguf", None, {"n_seq_max": 8, "n_ctx": 512, "use_mmap": False}]
    assert args[3].served_names == ("a",)
    assert held._deployment_config.autoscaling_config.max_replicas == 2


def test_keys_come_from_the_environment_where_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMTP_API_KEY", "one two")
    assert made()[2][3].api_keys == ("one", "two")
    assert made(api_keys=["three"])[2][3].api_keys == ("three",)
    monkeypatch.setenv("PYMTP_API_KEY", " ")
    with pytest.raises(InvalidRequestError, match="PYMTP_API_KEY is empty"):
        serve_app()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_ctxt": 512}, "no option n_ctxt: there are .*n_ctx"),
        ({"port": 80}, "no option port"),
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": (3, 2)}, r"replicas=\(3, 2\)"),
        ({"fronts": 0}, "fronts=0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        serve_app(**options)
    with pytest.raises(InvalidRequestError, match="the least and the most"):
        app({"replicas": [1, 2, 3]})


def test_there_is_nothing_else_in_pymtp_ray() -> None:
    with pytest.raises(AttributeError, match="no attribute 'serv'"):
        _ = pymtp.ray.serv
