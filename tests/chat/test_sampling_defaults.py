"""Tests of general.sampling in a model's file: the values that are read, and the requests that use them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.tuned import TUNED, write_tuned

from pymtp import LLM, AsyncLLM, InvalidRequestError, Model, SamplingParams
from pymtp.chat.sampling_defaults import check_sampling_defaults, read_sampling_defaults

MESSAGES = [{"role": "user", "content": "Tell a story about the fox Ada and Tom in Rome."}]


def read(**keys: str) -> tuple[dict[str, float], list[str]]:
    return read_sampling_defaults(
        {f"general.sampling.{name}": text for name, text in keys.items()} | {"general.name": "m"}
    )


def test_sampling_defaults_have_the_names_of_params(tuned: Path, new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(tuned, n_ctx=256)
    assert llm.sampling_defaults == TUNED
    assert llm.get_default_sampling_params() == SamplingParams(None, **TUNED)


def test_file_without_sampling_keys_has_no_defaults(tmp_path: Path, new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(write_tuned(tmp_path / "bare.gguf"), n_ctx=256)
    assert llm.sampling_defaults == {}
    assert llm.get_default_sampling_params() == SamplingParams(None, 0.7)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"top_k": "20.000000"}, {"top_k": 20}),
        ({"temp": "1"}, {"temperature": 1.0}),
        ({"temp": "0.000000"}, {"temperature": 0.0}),
        ({"top_k": "-1"}, {"top_k": 0}),
        ({"top_p": "0.000000"}, {"top_p": 1e-9}),
        ({"penalty_last_n": "-1"}, {"penalty_last_n": -1}),
        ({"xtc_probability": "0.5", "xtc_threshold": "0.2"}, {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
        ({"sequence": "top_k;xtc;temperature"}, {"samplers": ("top_k", "xtc", "temperature")}),
        ({"sequence": "kmt"}, {"samplers": ("top_k", "min_p", "temperature")}),
    ],
)
def test_sampling_values_are_read_as_llama_cpp_does(keys: dict[str, str], found: dict[str, float]) -> None:
    assert read(**keys) == (found, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("temp", text) for text in ("-0.100000", "nan", "inf", "hot", "true", "")),
        *(("top_k", text) for text in ("-2", "2.500000", "nan", "inf", "[1]", "many")),
        *(("top_p", text) for text in ("1.500000", "-0.500000", "nan")),
        *(("min_p", text) for text in ("1.000001", "-0.100000")),
        *(("penalty_repeat", text) for text in ("0.000000", "-1.000000", "inf")),
        *(("penalty_last_n", text) for text in ("-2", "0.500000")),
        *(("xtc_probability", text) for text in ("-0.100000", "1.500000", "often")),
        *(("sequence", text) for text in ("top_k;mirostat", "kq", "top_k;")),
    ],
)
def test_invalid_sampling_value_is_ignored_with_a_note(name: str, text: str) -> None:
    found, notes = read(**{"temp": "0.5", "top_k": "3"} | {name: text})
    left = {"temp": {"top_k": 3}, "top_k": {"temperature": 0.5}}.get(name, {"temperature": 0.5, "top_k": 3})
    assert found == left
    (note,) = notes
    assert note.startswith(f"general.sampling.{name} of the model's file is ignored: ")
    assert "must be" in note


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"mirostat": "0", "mirostat_tau": "5.0", "mirostat_eta": "0.1"}, []),
        ({"mirostat": "2", "mirostat_tau": "5.0"}, ["mirostat", "mirostat_tau"]),
        ({"of_tomorrow": "1"}, ["of_tomorrow"]),
    ],
)
def test_sampler_that_pymtp_lacks_causes_a_note_if_it_is_switched_on(keys: dict[str, str], named: list[str]) -> None:
    found, notes = read(temp="0.5", **keys)
    assert found == {"temperature": 0.5}
    assert [note.split("=")[0] for note in notes] == [f"general.sampling.{name}" for name in named]


@pytest.mark.parametrize("odd", ["hot", True, [0.5, 0.7], -3.0, float("nan")], ids=str)
def test_file_with_odd_sampling_values_loads_with_a_warning(
    tmp_path: Path, new_llm: Callable[..., LLM], caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    with caplog.at_level(logging.WARNING, "pymtp"):
        llm = new_llm(write_tuned(tmp_path / "odd.gguf", temp=odd, top_k=5, mirostat=1), n_ctx=256, draft_tokens=0)
    assert llm.sampling_defaults == {"top_k": 5}
    warned = [record.getMessage().split()[0] for record in caplog.records if record.levelname == "WARNING"]
    kept_apart = isinstance(odd, list)  # llama.cpp's metadata does not contain lists
    assert warned == ["general.sampling.temp"] * (not kept_apart) + ["general.sampling.mirostat='1'"]
    assert llm.chat(MESSAGES, SamplingParams(4)).token_ids


def test_chat_without_params_uses_the_files_values(tuned: Path, new_llm: Callable[..., LLM]) -> None:
    llm = new_llm(tuned, n_ctx=128)
    done = llm.chat(MESSAGES)
    wanted = llm.chat(MESSAGES, SamplingParams(None, **TUNED))
    assert (done.text, done.seed) == (wanted.text, wanted.seed)
    with llm.stream_chat(MESSAGES) as stream:
        assert "".join(piece.text for piece in stream) == wanted.text

    async def main() -> tuple[str, str, SamplingParams]:
        async with AsyncLLM(llm) as made:
            pieces = [piece.text async for piece in made.stream_chat(MESSAGES)]
            return (await made.chat(MESSAGES)).text, "".join(pieces), made.get_default_sampling_params()

    assert asyncio.run(main()) == (wanted.text, wanted.text, llm.get_default_sampling_params())
    others = [SamplingParams(None, **(TUNED | {name: value})) for name, value in OTHERS.items()]
    assert all(
        llm.chat(MESSAGES, other).text != wanted.text for other in others
    )  # each value of the file changes the text


OTHERS = {
    "temperature": 0.0,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.9,
    "repetition_penalty": 3.0,
}


def test_chat_without_params_runs_to_the_end_of_the_context(
    new_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = new_llm(n_ctx=512)
    monkeypatch.setattr(Model, "ends_generation", lambda self, token: False)
    done = llm.chat(MESSAGES)
    assert (done.finish_reason, len(done.prompt_token_ids) + len(done.token_ids)) == ("length", 512 + 1)
    assert len(llm.generate("def f(").token_ids) == 256


def test_given_params_are_used_unchanged(tuned: Path, llm: LLM, new_llm: Callable[..., LLM]) -> None:
    other = new_llm(tuned, n_ctx=512)
    for params in (SamplingParams(24), SamplingParams(24, 0.9, seed=3)):
        assert other.chat(MESSAGES, params).text == llm.chat(MESSAGES, params).text


def test_generate_without_params_stays_greedy_and_short(tuned: Path, llm: LLM, new_llm: Callable[..., LLM]) -> None:
    other = new_llm(tuned, n_ctx=512)
    done = other.generate("def fibonacci(n):")
    assert done.text == llm.generate("def fibonacci(n):", SamplingParams(256, 0.0)).text
    assert len(done.token_ids) <= 256
    with other.stream("def fibonacci(n):") as stream:
        assert "".join(piece.text for piece in stream) == done.text


@pytest.mark.parametrize(
    "odd", [None, 3, "x", {"stop": "x"}, {"max_tokens": 3}, {1: 2}, {"temperature": -1}, {"top_k": 1.5}, {"top_p": 2}]
)
def test_invalid_server_defaults_are_refused_by_name(odd: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^sampling.* must be ") as found:
        check_sampling_defaults("sampling", odd)
    assert found.value.param == "sampling"
