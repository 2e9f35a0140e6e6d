"""Tests of the command line: text on stdout, all else on stderr, and exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, make_llm
from helpers.command import PYMTP, generate, parse, run, typer_command
from helpers.tuned import TUNED
from rich.console import ColorSystem

import pymtp
from pymtp import LLM, SamplingParams
from pymtp.cli.completion import format_figures
from pymtp.cli.placing import PlacementOptions
from pymtp.cli.screen import screen
from pymtp.cli.serve import parse_effort_budgets

PROMPT = "def fibonacci(n):"
SUM = "What is 457 + 86?"  # the model thinks for some 20 tokens


@pytest.fixture(scope="module")
def expected(llm: LLM) -> str:
    return llm.generate(PROMPT, SamplingParams(max_tokens=16)).text


def test_generate_prints_text_on_stdout_and_figures_on_stderr(expected: str) -> None:
    done = generate(PROMPT, "-d", "3")
    assert (done.returncode, done.stdout) == (0, expected + "\n")
    for figure in ("prompt tokens at", "16 tokens at", " drafts accepted, ", "tokens per round"):
        assert figure in done.stderr


def test_figures_tell_drafts_from_text_apart_if_there_are_any(llm: LLM) -> None:
    stats = llm.generate(PROMPT, SamplingParams(max_tokens=16)).stats
    both = replace(stats, drafted=331, accepted=247, drafted_by_text=277, accepted_by_text=203)
    assert ", 247 of 331 drafts accepted (203 of 277 from text), " in format_figures(both)
    assert ", 247 of 331 drafts accepted, " in format_figures(replace(both, drafted_by_text=0, accepted_by_text=0))


def test_prompt_comes_from_an_argument_a_file_or_standard_input(tmp_path: Path, expected: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    assert generate("--file", file).stdout == generate("-", stdin=PROMPT).stdout == expected + "\n"


def test_generate_follows_a_grammar_or_schema_file(tmp_path: Path) -> None:
    grammar, schema = tmp_path / "ab.gbnf", tmp_path / "schema.json"
    grammar.write_text('root ::= "ab" [0-9]{2}', encoding="utf-8")
    schema.write_text('{"enum": [[1, 2]]}', encoding="utf-8")
    done = json.loads(generate(PROMPT, "--grammar-file", grammar, "--logprobs", "2", "--json").stdout)
    assert re.fullmatch("ab[0-9]{2}", done["text"])
    assert [entry["token_id"] for entry in done["logprobs"]] == done["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in done["logprobs"])
    assert generate(PROMPT, "--json-schema", schema).stdout == "[1,2]\n"
    wrong = generate(PROMPT, "--json-schema", grammar)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "json_schema is not JSON" in wrong.stderr


def test_json_output_has_the_completion_and_its_figures(expected: str) -> None:
    completion = json.loads(generate(PROMPT, "--json").stdout)
    assert completion["text"] == expected
    assert completion["finish_reason"] == "length"
    assert len(completion["token_ids"]) == completion["stats"]["completion_tokens"] == 16
    assert {"acceptance_rate", "mean_accepted_length", "phase_seconds"} <= completion["stats"].keys()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give one prompt"),
        (["a", "--file", "b"], 2, "give one prompt"),
        (["--file", "nowhere.txt"], 2, "nowhere.txt"),
        (["a", "--temperature", "nan"], 2, "temperature"),
        (["a", "-n", "-3"], 2, "--max-tokens"),
        (["a", "--cache-type", "q1"], 2, "--cache-type 'q1'"),
        (["a", "--cache", "-1"], 2, "--cache"),
        (["a", "-d", "many"], 2, 'must be a whole number or "auto"'),
        (["a", "--draft-text", "many"], 2, 'must be a whole number or "auto"'),
        (["a", "--draft-text", "64"], 2, "--draft-text 64 must be a whole number from 0 to 63"),
        (["a", "--draft-text", "9", "-d", "3"], 2, '--draft-text 9 needs --draft-tokens "auto"'),
        (["a", "--draft-vocab", "half"], 2, 'must be a whole number, "auto" or "all"'),
        (["a", "--draft-vocab", "0"], 2, "--draft-vocab 0 must be a number of tokens, 1 or more"),
        (["a", "--no-such-option"], 2, "there is no option '--no-such-option'"),
        (["a", "-m", "nowhere.gguf"], 3, "no such file"),
        (["a", "-m", ""], 2, "the name of the model is empty"),
        (["a", "-m", str(ROOT / "README.md")], 3, "not a readable GGUF"),
        ([""], 2, "empty"),
    ],
    ids=str,
)
def test_invalid_arguments_print_one_line_and_exit_with_the_code_of_their_kind(
    arguments: list[str], code: int, words: str
) -> None:
    done = generate(*arguments)
    assert done.returncode == code
    assert words in " ".join(done.stderr.split())
    if words != "--cache":  # typer prints its own errors in a box
        assert (done.stderr.startswith("error: "), done.stderr.count("\n")) == (True, 1)
    assert done.stdout == ""


def test_drafts_without_a_head_are_refused_with_a_hint(headless: Path) -> None:
    done = generate(PROMPT, "-m", headless, "-d", "2")
    assert done.returncode == 2
    assert "use --draft-tokens 0" in " ".join(done.stderr.split())


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_ctrl_c_exits_with_130_after_printing_the_text_so_far() -> None:
    endless = ["generate", PROMPT, "-t", "1", "-c", "200000", "-n", "190000", "--ignore-eos"]
    with subprocess.Popen([*PYMTP, *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert len(first) == 20
    assert process.returncode == 130


def test_closed_pipe_ends_the_command_without_a_traceback() -> None:
    shell = shlex.join([*PYMTP, "generate", "x", "-t", "1", "-c", "4096", "-n", "4000", "--ignore-eos"])
    done = subprocess.run(f"{shell} | head -c 5", shell=True, capture_output=True, text=True, timeout=60)
    assert len(done.stdout) == 5
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(
    ("command", "output", "words"),
    [
        ("info", "> /dev/full", "No space left"),
        ("info --json", ">&-", "output is closed"),
        ("generate x -t 1 -c 256 -n 4", "> /dev/full", "No space left"),
        ("generate x -t 1 -c 256 -n 4", ">&-", "output is closed"),
    ],
)
def test_unwritable_output_prints_one_error_line_and_exits_with_1(command: str, output: str, words: str) -> None:
    if "full" in output and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    shell = f"{shlex.join([*PYMTP, *command.split()])} {output}"
    done = subprocess.run(shell, shell=True, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("lost", "more"), [("2>/dev/full", "--json"), ("2>&-", "")])
def test_closed_stderr_does_not_lose_text_on_stdout(lost: str, more: str, expected: str) -> None:
    command = shlex.join([*PYMTP, "generate", PROMPT, "-t", "1", "-c", "1024", "-n", "16", *more.split()])
    done = subprocess.run(f"{command} {lost}", shell=True, stdout=subprocess.PIPE, text=True, timeout=60)
    text = json.loads(done.stdout)["text"] if more else done.stdout
    assert (done.returncode, text) == (0, expected if more else expected + "\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("command", ["generate - -t 1 -c 256 -n 4", "chat -t 1 -c 256 -n 4"])
@pytest.mark.parametrize("given", ["<&-", "< bytes"])
def test_unreadable_input_prints_one_error_line_and_exits_with_an_error(
    command: str, given: str, tmp_path: Path
) -> None:
    (tmp_path / "bytes").write_bytes(b"hi\xff\n")
    own = [word for word in PYMTP if word != "-I"]  # -I would ignore PYTHONIOENCODING
    # raise an error for bytes that are not UTF-8, as Python does in a UTF-8 locale
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    shell = f"{shlex.join([*own, *command.split()])} {given}"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, env=strict, cwd=tmp_path, timeout=60)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")


def test_character_that_the_terminal_lacks_is_printed_as_an_escape(tmp_path: Path) -> None:
    grammar = tmp_path / "accent.gbnf"
    grammar.write_text('root ::= "\u00e9"', encoding="utf-8")
    own = [word for word in PYMTP if word != "-I"]  # -I would ignore PYTHONIOENCODING
    command = [*own, "generate", "x", "-t", "1", "-c", "256", "--grammar-file", str(grammar)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=ascii_only, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"\\xe9\n")


def chat(stdin: str, *more: str) -> tuple[str, list[int]]:
    """Run `pymtp chat`. Return its output, and the length of each turn's prompt."""
    done = run("chat", "-t", "1", "-c", "1024", "-n", "12", "--temperature", "0", *more, stdin=stdin)
    assert done.returncode == 0
    return done.stdout, [int(line.split()[0]) for line in done.stderr.splitlines() if " prompt tokens" in line]


def test_chat_answers_each_line_and_keeps_earlier_turns(llm: LLM) -> None:
    answer, _ = chat("Hello.\n", "--no-thinking")
    shown, lengths = chat("Hello.\n\nAgain.\n", "--no-thinking")
    assert shown.startswith(answer)
    first = [{"role": "user", "content": "Hello."}]
    both = [*first, {"role": "assistant", "content": answer[:-1]}, {"role": "user", "content": "Again."}]
    variables = {"chat_template_kwargs": {"enable_thinking": False}}
    prompts = [llm.chat_template.render(messages, **variables) for messages in (first, both)]
    assert lengths == [len(llm.model.tokenize(prompt)) for prompt in prompts]


def test_chat_uses_sampling_defaults_of_the_model_file(tuned: Path) -> None:
    small = ("-t", "1", "-c", "1024", "-m", str(tuned), "--no-thinking", "-n", "24")
    said = "Tell a story about the fox Ada and Tom in Rome."
    messages = [{"role": "user", "content": said}]
    plain: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    options = ("--temp", "1.2", "--top-k", "-1", "--repeat-penalty", "1.1", "--presence-penalty", "0.3", "--seed", "4")
    given = {"temperature": 1.2, "top_k": 0, "repetition_penalty": 1.1, "presence_penalty": 0.3, "seed": 4}
    with make_llm(tuned) as llm:
        assert (
            run("chat", *small, "--seed", "0", stdin=f"{said}\n").stdout
            == llm.chat(messages, SamplingParams(24, **TUNED), **plain).text + "\n"
        )
        expected = llm.chat(messages, SamplingParams(24, **(TUNED | given)), **plain).text
        assert run("chat", *small, *options, stdin=f"{said}\n").stdout == expected + "\n"
        short = run("chat", *small[:-2], "--seed", "0", stdin=f"{said}\n").stdout  # without -n
        assert short == llm.chat(messages, **plain).text + "\n"


def test_generate_takes_penalties_and_samplers(llm: LLM) -> None:
    given = {"temperature": 0.9, "seed": 3, "presence_penalty": 0.3, "repetition_penalty": 1.1, "penalty_last_n": -1}
    given |= {"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n", "x"], "xtc_probability": 0.5, "typical_p": 0.9}
    given |= {"top_n_sigma": 2.0, "dynatemp_range": 0.2, "samplers": "edsyxt"}
    options = ("--temp", "0.9", "--seed", "3", "--presence-penalty", "0.3", "--repeat-penalty", "1.1")
    options += ("--repeat-last-n", "-1", "--dry-multiplier", "0.8", "--dry-sequence-breaker", r"\n")
    options += ("--dry-sequence-breaker", "x", "--xtc-probability", "0.5", "--typical", "0.9", "--top-nsigma", "2")
    options += ("--dynatemp-range", "0.2", "--sampler-seq", "edsyxt")
    done = run("generate", *options, "-t", "1", "-c", "1024", "-n", "24", "def add(a, b):")
    assert done.stdout == llm.generate("def add(a, b):", SamplingParams(24, **given)).text + "\n"
    refused = run("generate", "--dry-base", "0.5", "-m", "nowhere.gguf", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--dry-base 0.5 must be from 1 to 1e30" in refused.stderr


@pytest.mark.parametrize("command", ["chat", "serve"])
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--temp", "nan", "--temperature nan must be a finite number"),
        ("--top-k", "-2", "--top-k -2 must be"),
        ("--top-p", "1.5", "--top-p 1.5 must be"),
        ("--min-p", "-1", "--min-p -1.0 must be"),
        ("--repeat-penalty", "0", "--repeat-penalty 0.0 must be"),
        ("--repeat-last-n", "-2", "--repeat-last-n -2 must be"),
        ("--presence-penalty", "inf", "--presence-penalty inf must be"),
        ("--typical", "2", "--typical 2.0 must be"),
        ("--samplers", "top_k;mirostat", "--samplers must be names of"),
        ("--seed", "-2", "--seed -2 must be"),
    ],
)
def test_error_about_a_sampling_option_has_the_name_of_the_option(
    command: str, option: str, value: str, words: str
) -> None:
    done = run(command, option, value, "-m", "nowhere.gguf")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())


def test_error_says_minus_one_where_python_says_none() -> None:
    done = run("generate", "-n", "0", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--max-tokens 0 must be a whole number of at least 1, or -1\n" in done.stderr


def test_error_quotes_paths_and_texts_as_they_were_given(tmp_path: Path) -> None:
    missing, grammar = tmp_path / "a, seed=3.txt", tmp_path / "rule.gbnf"
    grammar.write_text('root ::= "a" seed=3 temperature=1')
    for options, words in (
        (["--file", str(missing)], f"from {missing}:"),
        (["--grammar-file", str(grammar), "x"], "=3 temperature=1"),
        (["--samplers", "top_k, seed=4", "x"], "top_k, seed=4"),
    ):
        done = run("generate", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("generate -c 32k", {"n_ctx": 32768}),
        ("serve --ctx 128K -b 4k -ub 1k", {"n_ctx": 131072, "n_batch": 4096, "n_ubatch": 1024}),
        ("generate -n 1M", {"max_tokens": 2**20}),
        ("bench prefix -c 8k", {"ctx": 8192}),
        ("chat -n -1 --reasoning-budget 8k", {"max_tokens": None, "reasoning_budget": 8192}),
        ("info --image-max-tokens 2k --yarn-orig-ctx 256k", {"image_max_tokens": 2048, "yarn_orig_ctx": 2**18}),
    ],
)
def test_numbers_of_tokens_may_end_in_k_and_m(line: str, value: dict[str, object]) -> None:
    params = parse(*line.split()).params
    assert {name: params[name] for name in value} == value


def test_numbers_of_tokens_in_texts_may_end_in_k_too() -> None:
    assert PlacementOptions(draft_vocab="32k").keywords()["draft_vocab"] == 32768
    assert parse_effort_budgets("--effort-budgets", "low=1k,high=512") == {"low": 1024, "high": 512}


@pytest.mark.parametrize("value", ["32q", "k", "3.5k", "32kk", "", "9" * 5000])
def test_text_that_is_no_number_of_tokens_is_refused(value: str) -> None:
    for option in ("--ctx", "--max-tokens"):
        done = run("generate", "-m", "nowhere.gguf", f"{option}={value}", "x")
        told = " ".join(done.stderr.split())
        assert done.returncode == 2
        assert f"Invalid value for '{option}'" in told
        assert "must be a whole number of tokens, such as 4096, 4k or 1M" in told


# options whose errors name the file
FILES = (
    "prefix",
    "grammar_file",
    "json_schema",
    "system_file",
    "mmproj",
    "head",
    "lora",
    "api_key_file",
    "models_file",
)


@pytest.mark.parametrize("command", ["generate", "chat", "serve"])
def test_error_about_an_option_has_its_name_on_the_command_line(command: str) -> None:
    refused = {}
    for option in typer_command().commands[command].params:
        if option.param_type_name == "option" and not option.is_flag and option.name not in FILES:
            long = next(name for name in option.opts if name.startswith("--"))
            prompt = ["x"] if command == "generate" else []
            told = " ".join(run(command, "-m", "nowhere.gguf", f"{long}=-7", *prompt).stderr.split())
            if "no such file: " not in told:  # the value was taken
                refused[long] = told
    assert [told for long, told in refused.items() if long not in told] == []
    assert refused.keys() >= {
        "--ctx",
        "--threads",
        "--top-k",
        "--draft-tokens",
        "--cache-type",
        "--cache",
        "--split-mode",
    }


def test_error_about_two_options_has_both_names() -> None:
    done = run("generate", "-m", "nowhere.gguf", "-b", "8", "-ub", "8", "-d", "20", "x")
    assert done.stderr == "error: --batch-size 8 must be 21 or more with --draft-tokens 20\n"


@pytest.mark.parametrize("thinks", [True, False])
def test_chat_separates_thinking_from_the_answer(llm: LLM, thinks: bool) -> None:
    shown, lengths = chat(f"{SUM}\nAgain.\n", "--thinking" if thinks else "--no-thinking")
    answer, _ = chat(f"{SUM}\n", "--thinking" if thinks else "--no-thinking")
    visible = "" if thinks else answer[:-1]  # max_tokens ends the turn within the thinking
    first = [{"role": "user", "content": SUM}]
    both = [*first, {"role": "assistant", "content": visible}, {"role": "user", "content": "Again."}]
    variables = {"chat_template_kwargs": {"enable_thinking": thinks}}
    prompts = [llm.chat_template.render(messages, **variables) for messages in (first, both)]
    assert lengths == [len(llm.model.tokenize(prompt)) for prompt in prompts]
    assert shown.startswith(answer)


def test_chat_thinks_within_the_reasoning_budget() -> None:
    budget = ("--reasoning-budget", "2", "--reasoning-budget-message", " Enough. ")
    shown, _ = chat(f"{SUM}\n", "-n", "40", *budget)
    thinking, _, answer = shown.partition(" Enough. </think>\n\n")
    assert thinking
    assert answer
    assert chat(f"{SUM}\nMore.\n", "--reasoning-budget", "0") == chat(f"{SUM}\nMore.\n", "--no-thinking")


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_error_about_a_reasoning_budget_has_the_name_of_the_option(command: str) -> None:
    for options, code in (
        (["--reasoning-budget", "-2"], 2),
        (["--reasoning-budget", "x"], 2),
        (["--reasoning-budget-message", "</think>"], 2),
        *([(["--effort-budgets", "low"], 2)] if command == "serve" else []),
    ):
        done = run(command, *options)
        assert done.returncode == code
        assert options[0] in done.stderr


def test_chat_shows_cached_tokens() -> None:
    long = "word " * 200
    done = run("chat", "-t", "1", "-c", "1024", "-n", "12", stdin=f"{long}\n{long}\n")
    first, second = [line for line in done.stderr.splitlines() if " prompt tokens" in line]
    assert "cached" not in first
    assert int(second.split(" cached")[0].split("(")[1]) > 100


def test_turn_that_exceeds_the_context_does_not_end_the_chat() -> None:
    answer, _ = chat("Hello.\n")
    after, lengths = chat("x" * 20000 + "\nHello.\n")
    assert after == answer
    assert len(lengths) == 1


def test_version_names_pymtp_and_llama_cpp() -> None:
    build = pymtp.build_info()
    assert run("--version").stdout == f"pymtp {build['pymtp']}, llama.cpp {build['llama_cpp_commit']}\n"


def test_captured_output_has_no_terminal_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screen, "_color_system", ColorSystem.STANDARD)  # as with pytest -s
    assert run("info", "-c", "4096").stderr.startswith("error: ")


def test_each_warning_while_loading_is_shown_once(demo: Path) -> None:
    small = ("-n", "1", "-t", "1", "-c", "256", "def")
    done = run("generate", "-ot", "nothing=CPU", "-ncmoe", "2", *small)
    assert done.returncode == 0
    assert done.stderr.count("warning: override_tensor: no tensor that is loaded has a name that matches nothing") == 1
    assert done.stderr.count("warning: n_cpu_moe: the model has no experts\n") == 1
    for fine in (("-ot", "ffn_up=CPU", "--no-mmap"), ("-d", "0"), ("-d", "0", "--no-mmap", "-ngl", "0")):
        done = run("generate", *fine, *small)
        assert (done.returncode, "warning" in done.stderr) == (0, False)


def test_hub_name_without_hf_prefix_is_refused_with_a_hint() -> None:
    done = run("generate", "x", "-m", "owner/name:Q4_K_M")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no such file: owner/name:Q4_K_M; a model of the hub is hf:owner/name:Q4_K_M" in " ".join(
        done.stderr.split()
    )
    assert "hub" not in run("generate", "x", "-m", "models/m.gguf").stderr


def test_model_without_a_head_gets_a_note_unless_drafts_are_off(headless: Path) -> None:
    small = ("x", "-m", str(headless), "-n", "1", "-t", "1", "-c", "256")
    note = "note: headless.gguf has no multi-token-prediction head: it is decoded without a head's drafts. --head FILE"
    assert " ".join(run("generate", *small).stderr.split()).count(note) == 1
    assert "note" not in run("generate", *small, "-d", "0").stderr


def test_unknown_processor_level_prints_one_error_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYMTP_CPU", "v0")
    program = [sys.executable, "-I", "-c", "from pymtp_command import main; main()", "--version"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: PYMTP_CPU is 'v0'")


def test_chat_uses_the_given_template_and_variables(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "it.jinja"
    file.write_text("{{ start }}{{ messages[-1].content }}", encoding="utf-8")
    _, lengths = chat("Hello.\n", "--chat-template-file", str(file), "--chat-template-kwargs", '{"start": "Well. "}')
    assert lengths == [len(llm.model.tokenize("Well. Hello."))]
