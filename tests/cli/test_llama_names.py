"""Tests of llama.cpp's options on the command line, and of options that do not exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.command import parse, run, typer_command

from pymtp.cli import arguments as arguments_module
from pymtp.cli.arguments import read_arguments, spellings
from pymtp.cli.llama_names import IGNORED, REFUSED, TRANSLATED
from pymtp.cli.placing import PlacementOptions
from pymtp.context.options import CACHE_TYPES

# as they are pasted from llama-server's command lines
PASTED = {
    "-c 4096": {"n_ctx": 4096},
    "--ctx-size 4096": {"n_ctx": 4096},
    "-ngl 99": {"n_gpu_layers": "99"},
    "--n-gpu-layers all": {"n_gpu_layers": "all"},
    "-t 2": {"n_threads": 2},
    "-np 4": {"n_seq_max": 4},
    "--parallel 4": {"n_seq_max": 4},
    "--host 0.0.0.0 --port 9000": {"host": "0.0.0.0", "port": 9000},
    "-a name": {"served_names": ["name"]},
    "--alias name": {"served_names": ["name"]},
    "-ctk q8_0 -ctv q4_0": {"type_k": "q8_0", "type_v": "q4_0"},
    "--cache-type-k q8_0 --cache-type-v=q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
    "-fa on": {"flash_attn": "on"},
    "-fa": {"flash_attn": "on"},
    "-fa -c 256": {"flash_attn": "on", "n_ctx": 256},
    "--flash-attn off": {"flash_attn": "off"},
    "-b 1024 -ub 256": {"n_batch": 1024, "n_ubatch": 256},
    "--batch-size 1024 --ubatch-size 256": {"n_batch": 1024, "n_ubatch": 256},
    "--no-mmap --mlock": {"use_mmap": False, "use_mlock": True},
    "-md head.gguf": {"head": "head.gguf"},
    "--model-draft head.gguf": {"head": "head.gguf"},
    "--draft-max 5": {"draft_tokens": "5"},
    "-hf owner/name:Q4_K_M": {"models": ["hf:owner/name:Q4_K_M"]},
    "-cmoe": {"n_cpu_moe": 10000},
    "--cache-ram 512": {"cache_bytes": 512},
    "--no-webui": {"page": False},
    "--sleep-idle-seconds 60": {"idle_seconds": 60.0},
    "--no-models-autoload": {"autoload": False},
    "-to 600": {"request_timeout": 600.0},
    "--jinja --rerank -cb --reasoning-format deepseek --spec-type draft-mtp -c 512": {"n_ctx": 512},
    "--spec-type draft-mtp,ngram-mod --spec-ngram-mod-n-max 64 -c 512": {"n_ctx": 512},
    "-tb 8 -c 512 --metrics --no-slots": {"n_ctx": 512, "slots": False},
    "--api-key --jinja": {"api_keys": ["--jinja"]},  # a value
}


@pytest.mark.parametrize("pasted", PASTED)
def test_options_of_llama_server_do_the_same_here(pasted: str) -> None:
    read = parse("serve", *pasted.split()).params
    assert {name: read[name] for name in PASTED[pasted]} == PASTED[pasted]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("-p text -n 4 -s 7", {"prompt": "text", "max_tokens": 4, "seed": 7}),
        ("-p -x --n-predict 4", {"prompt": "-x", "max_tokens": 4}),
        ("text -jf schema.json -r stop", {"prompt": "text", "stop": ["stop"]}),
        ("-n4 -- -x", {"prompt": "-x", "max_tokens": 4}),
        ("-n 4 -", {"prompt": "-", "max_tokens": 4}),
        ("-p x -no-cnv -n -1 -s -1 -t -1", {"prompt": "x", "max_tokens": None, "seed": None, "n_threads": None}),
    ],
)
def test_options_of_llama_cli_do_the_same_in_generate(arguments: str, given: dict[str, Any]) -> None:
    read = parse("generate", *arguments.split()).params
    assert {name: read[name] for name in given} == given


@pytest.mark.parametrize("arguments", ["-sys text --n-predict 4 -s 7", "--system-prompt=text --predict=4 --seed 7"])
def test_options_of_llama_cli_do_the_same_in_chat(arguments: str) -> None:
    read = parse("chat", *arguments.split()).params
    assert (read["system"], read["max_tokens"], read["seed"]) == ("text", 4, 7)


def test_defaults_of_llama_cpp_may_be_written_out_in_chat() -> None:
    read = parse("chat", "-cnv", "-i", "-mli", "--seed", "-1", "-n", "-1", "--threads", "-1").params
    assert (read["seed"], read["max_tokens"], read["n_threads"]) == (-1, None, None)
    assert parse("serve", "-t", "-1", "--seed", "-1").params["n_threads"] is None


def test_both_caches_have_the_type_of_cache_type_unless_given() -> None:
    keywords = PlacementOptions(cache_type="q8_0", type_v="f16", n_gpu_layers="all", flash_attn="1").keywords()
    assert {name: keywords[name] for name in ("type_k", "type_v", "n_gpu_layers", "flash_attn")} == {
        "type_k": "q8_0",
        "type_v": "f16",
        "n_gpu_layers": -1,
        "flash_attn": "on",
    }


def test_options_of_llama_cpp_reach_the_model() -> None:
    pasted = "generate -p def -n 2 -t 1 -c 256 -ctk q8_0 -b 128 -ub 64 -fa -np 1"
    done = run(*pasted.split())
    assert done.returncode == 0
    assert done.stdout.strip()
    assert done.stderr.count("note: -np has no effect: ") == 1


@pytest.mark.parametrize("option", ["--cache-type", "-ctk", "--cache-type-v"])
def test_unknown_cache_type_is_refused_with_the_types_that_exist(option: str) -> None:
    done = run("generate", "x", option, "q1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'q1' is not known, use one of {', '.join(CACHE_TYPES)}" in done.stderr
    assert "--cache-type" in done.stderr


def test_option_without_an_effect_prints_one_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(arguments_module, "show_note", notes.append)
    for name, option in IGNORED.items():
        value = [(option.values or ("1",))[0]] if option.n_values else []
        options = {} if option.needs is None else {option.needs: None}
        assert read_arguments(["a", name, *value, "b"], options, {}, takes_prompt=False) == ["a", "b"]
        assert notes.pop() == f"{name} has no effect: {option.reason}"
    assert notes == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("generate x --temprature 1", "there is no option '--temprature': the nearest is --temperature"),
        ("generate x -temp 1", "the nearest is --temp"),
        ("generate x --flash=on", "the nearest is --flash-attn"),
        ("generate x --port 1", "it is an option of `pymtp serve`"),
        ("generate x --zzzzzz", "--help lists the options"),
        ("generate x --chat-template chatml", "--chat-template-file FILE sets another template"),
        ("generate x -cnv", "`pymtp chat` talks"),
        ("chat -p x", "`pymtp generate` continues a prompt"),
        ("chat -st", "echo TEXT | pymtp chat"),
        ("bench decode -ctk q8_0", "--cache-type sets both types"),
        (
            "serve --spec-type draft-mtp,draft-eagle3",
            "no option --spec-type 'draft-mtp,draft-eagle3': drafts come from",
        ),
        ("serve -lcs words.bin", "--draft-text drafts from the prompt and earlier outputs"),
        ("serve -n 100", "max_tokens of a request"),
        ("serve --jinja --slot-prompt-similarity", "--slot-prompt-similarity needs a value"),
        ("bench decode --mmproj file.gguf", "within `pymtp chat`, show images"),
        ("serve --mmproj-url https://x", "-m hf:… downloads the projector"),
    ],
)
def test_wrong_option_is_refused_with_the_nearest_one(arguments: str, words: str) -> None:
    done = run(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_hints_name_only_options_that_exist() -> None:
    root = typer_command()
    commands = [*root.commands.values(), *root.commands["bench"].commands.values()]
    known = {name for command in commands for name in spellings(command.params)} | {"-c", "--help"}
    texts = [*REFUSED.values(), *(option.reason + option.otherwise for option in IGNORED.values())]
    texts += [option for option, _ in TRANSLATED.values()]
    for text in texts:
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known, text
    everywhere = {name for name, option in IGNORED.items() if option.needs is None}
    assert not everywhere & set(REFUSED)
    assert {option.needs for option in IGNORED.values()} - {None} <= known
