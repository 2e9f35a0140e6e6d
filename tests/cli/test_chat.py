"""Tests of the parts of `pymtp chat` without a terminal: commands in a pipe, files, settings, history."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run

from pymtp import LLM, SamplingParams
from pymtp.cli.chat import reader
from pymtp.cli.chat.files import load_chat, save_chat
from pymtp.cli.chat.history import MAX_BYTES, MAX_ENTRY, ChatHistory
from pymtp.cli.chat.interrupts import Interrupts
from pymtp.cli.chat.reader import PlainReader, make_reader
from pymtp.cli.chat.settings import NAMES, ChatSettings
from pymtp.cli.chat.slash_words import split_command
from pymtp.cli.model_file import show_note
from pymtp.cli.screen import show_error, show_remark, write_text
from pymtp.errors import InvalidRequestError

CHAT: list[dict[str, Any]] = [{"role": "user", "content": "Hi. é"}, {"role": "assistant", "content": "Hello."}]


def test_chat_in_a_pipe_runs_commands_and_prints_only_answers_on_stdout(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    lines = ["Hello.", f"/save {first}", "/edit Again.", "/regen", "/edit", "/clear", "/regen", f"/load {first}"]
    lines += [
        "/etc/hosts is what?",
        " /help as a message",
        f"/save {second}",
        "/nonsense",
        "/clear now",
        "/exit",
        "never",
    ]
    done = run(
        "chat", "-t", "1", "-c", "1024", "-n", "4", "--temperature", "0", "--no-thinking", stdin="\n".join(lines)
    )
    assert done.returncode == 0
    answers = [json.loads(file.read_text())[1::2] for file in (first, second)]
    hello = answers[0][0]["content"]
    printed = [message["content"] for message in answers[1]]
    assert done.stdout.startswith(f"{hello}\n")
    assert done.stdout.endswith("".join(f"{content}\n" for content in printed[1:]))
    assert done.stderr.count("prompt tokens") == 5
    users = [message["content"] for message in json.loads(second.read_text())[::2]]
    assert users == ["Hello.", "/etc/hosts is what?", " /help as a message"]
    for words in (
        "error: /edit TEXT",
        "error: there is no message to answer",
        "error: there is no /nonsense",
        "error: /clear takes no argument",
    ):
        assert words in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_over_long_turn_or_chat_is_refused_with_its_tokens_and_the_chat_goes_on(tmp_path: Path) -> None:
    long, file = tmp_path / "long.json", tmp_path / "chat.json"
    long.write_text(json.dumps([{"role": "user", "content": "word " * 1200}]))
    lines = ["Hello.", "word " * 1200, f"/system {'word ' * 1200}", f"/load {long}", f"/edit {'word ' * 1200}"]
    lines += ["x" * 200_000, "Again.", f"/save {file}"]
    done = run("chat", "-t", "1", "-c", "512", "-n", "4", stdin="\n".join(lines))
    shown = " ".join(done.stderr.split())
    assert len(re.findall(r"Your message has \d{4,} tokens; it is not in the chat", shown)) == 3
    assert len(re.findall(r"error: the chat would have \d{4} ", shown)) == 2
    assert [message["content"] for message in json.loads(file.read_text())[::2]] == ["Hello.", "Again."]
    refused = run("chat", "-t", "1", "-c", "512", "--system", "word " * 1200, stdin="Hello.\n")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(r"error: the chat would have \d{4} ", refused.stderr)


def test_chat_that_fills_the_context_says_so(llm: LLM) -> None:
    messages = (" ".join(["word"] * n) for n in count(1))
    rendered = ((said, llm.chat_template.render([{"role": "user", "content": said}])) for said in messages)
    full = next(said for said, prompt in rendered if len(llm.model.tokenize(prompt)) >= 254)
    done = run("chat", "-t", "1", "-c", "256", stdin=f"{full}\n")
    assert "the context of 256 tokens is full: /clear or /edit makes room" in done.stderr


def test_seed_is_random_unless_given() -> None:
    shown = run("chat", "-t", "1", "-c", "256", stdin="/set\n").stderr
    assert "random" in next(line for line in shown.splitlines() if line.startswith("seed"))
    shown = run("chat", "-t", "1", "-c", "256", "--seed", "7", stdin="/set\n").stderr
    assert next(line for line in shown.splitlines() if line.startswith("seed")).split() == ["seed", "7"]


def test_settings_may_have_an_equals_sign_and_the_chat_ends_by_the_words_of_others() -> None:
    for leave in "/quit", "/bye":
        done = run("chat", "-t", "1", "-c", "256", stdin=f"/set seed=7\n/set\n{leave}\nnever\n")
        assert ["seed", "7"] in [line.split()[:2] for line in done.stderr.splitlines()]
        assert (done.returncode, done.stdout) == (0, "")


def test_saved_chat_is_openai_messages_and_loads_again(tmp_path: Path) -> None:
    file, link = tmp_path / "chat.json", tmp_path / "link.json"
    file.write_text("[]")  # an empty list is a chat that may be overwritten
    file.chmod(0o640)
    link.symlink_to(file)
    with pytest.raises(InvalidRequestError, match="no list of messages"):
        load_chat(file)
    file.write_text(json.dumps(CHAT[:1]))
    save_chat(link, CHAT)
    assert json.loads(file.read_text(encoding="utf-8")) == CHAT == load_chat(link)
    assert (link.is_symlink(), stat.S_IMODE(file.stat().st_mode)) == (True, 0o640)
    file.write_text(json.dumps({"model": "m", "messages": CHAT}))
    assert load_chat(file) == CHAT
    save_chat(file, [{"role": "user", "content": "caf\udce9"}])
    assert load_chat(file) == [{"role": "user", "content": "caf\ufffd"}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"role": "user", "con', "is not JSON"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "no list of messages"),
        (b'{"chats": []}', "no list of messages"),
        (b"[1, 2]", "has no chat: messages"),
        (b'[{"role": "user"}]', "has no chat: messages"),
        (b'[{"role": "wizard", "content": "x"}]', "the role 'wizard'"),
        (b'[{"role": "user", "content": [{"type": "image_url"}]}]', "must be text or images"),
    ],
)
def test_damaged_or_foreign_file_is_no_chat_and_is_not_overwritten(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=words):
        load_chat(file)
    if content not in (b"", b"[]"):
        with pytest.raises(InvalidRequestError, match="is not overwritten"):
            save_chat(file, CHAT)
        assert file.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices")
def test_chat_file_that_cannot_be_read_or_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, words in ((tmp_path, "not a regular file"), (Path("/dev/zero"), "not a regular file")):
        with pytest.raises(InvalidRequestError, match=words):
            load_chat(path)
    for path, words in (
        (Path("/dev/full"), "No space left on device"),
        (tmp_path, "Is a directory"),
        (tmp_path / "no folder" / "chat.json", "No such file or directory: .*chat.json"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            save_chat(path, CHAT)
    assert Path("/dev/full").is_char_device()
    file = tmp_path / "chat.json"
    save_chat(file, CHAT)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidRequestError, match=r"the chat is not saved: .*No space left on device: .*chat.json"):
        save_chat(file, CHAT[:1])
    assert load_chat(file) == CHAT
    assert [each.name for each in tmp_path.iterdir()] == ["chat.json"]


def test_settings_take_names_of_parameters_and_of_options_and_refuse_others() -> None:
    settings = ChatSettings(SamplingParams(temperature=0.7, seed=None, max_tokens=None), None)
    for name, text in (("temp", "0"), ("--repeat-penalty", "1.1"), ("top-k", "-1"), ("seed", "3"), ("max_tokens", "9")):
        settings.set(name, text)
    assert settings.set("thinking", "off") == "thinking: off"
    settings.set("thinking_budget", "5")
    settings.set("thinking_budget", "-1")
    assert settings.params.thinking_budget is None
    settings.set("stop", "END")
    settings.set("samplers", "top_k;temperature")
    params = settings.params
    assert (params.temperature, params.repetition_penalty, params.top_k, params.seed) == (0, 1.1, 0, 3)
    assert (params.max_tokens, params.stop, settings.template_kwargs) == (9, ("END",), {"enable_thinking": False})
    rows = {name: (value, default) for name, value, default in settings.rows()}
    assert tuple(rows) == NAMES
    assert rows["seed"] == ("3", "default: random")
    for name in NAMES:
        settings.set(name, "default")
    assert (settings.params, settings.thinking) == (SamplingParams(temperature=0.7, seed=None, max_tokens=None), None)
    odd = {"temperature": "hot", "top_p": "2", "seed": "1.5", "thinking": "7", "colour": "1", "samplers": "[[[]]]"}
    for name, text in (odd | {"stop": '{"a": 1}', "min_p": "NaN", "top_k": "1e400", "max_tokens": "0"}).items():
        with pytest.raises(InvalidRequestError, match=name):
            settings.set(name, text)
    assert settings.params == SamplingParams(temperature=0.7, seed=None, max_tokens=None)


def test_settings_that_count_tokens_take_k_and_others_do_not() -> None:
    settings = ChatSettings(SamplingParams(), None)
    counts = {"max_tokens": ("4k", 4096), "reasoning-budget": ("1K", 1024), "repeat_last_n": ("64", 64)}
    for name, (text, shown) in counts.items():
        assert settings.set(name, text).endswith(f": {shown}")
    with pytest.raises(InvalidRequestError, match="top_k"):
        settings.set("top_k", "1k")
    with pytest.raises(InvalidRequestError, match=r"of at least 1, or none$"):
        settings.set("max_tokens", "0")


def test_command_is_a_slash_with_a_word() -> None:
    assert split_command("/edit one\ntwo ") == ("/edit", "one\ntwo")
    assert split_command("/help") == ("/help", "")
    assert [split_command(line) for line in ("/etc/hosts", "/ help", " /help", "/Help", "help", "")] == [None] * 6


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_history_is_private_and_bounded_and_survives_a_useless_file(tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    history = ChatHistory(file)
    history.append_string("one\n\ntwo")
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    file.chmod(0o644)
    history.append_string("again")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for i in range(40):
        history.append_string(f"{i} " + "x" * (MAX_ENTRY - 10))
    history.append_string("x" * (MAX_ENTRY + 1))
    assert (file.stat().st_size <= MAX_BYTES, stat.S_IMODE(file.stat().st_mode)) == (True, 0o600)
    kept = [line.split()[0] for line in ChatHistory(file).load_history_strings()]
    assert kept == [str(i) for i in range(39, 39 - len(kept), -1)]
    assert len(kept) > 5
    useless = ChatHistory(tmp_path)
    useless.append_string("kept in memory")
    assert useless.problem is not None
    assert useless.get_strings() == ["kept in memory"]


class Typed(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_gets_no_control_characters_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    written = "a\tb\r\n\x1b[2J\x07\rc\x9b1m é"
    for stdout, expected in ((Typed(), "a\tb\r\n\ufffd[2J\ufffd\ufffdc\ufffd1m é"), (io.StringIO(), written)):
        monkeypatch.setattr(sys, "stdout", stdout)
        write_text(written)
        assert stdout.getvalue() == expected


def test_terminal_gets_no_control_characters_in_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    for show in (show_remark, show_error, show_note):
        for stderr, expected in ((Typed(), "a\ufffd[2J\ufffdb"), (io.StringIO(), "a\x1b[2Jb")):
            monkeypatch.setattr(sys, "stderr", stderr)
            show("a\x1b[2J\x07b")  # of a file that was loaded
            assert expected in stderr.getvalue()


def test_piped_line_has_no_line_end_and_no_surrogates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\r\ncaf\udce9\n"))
    plain = PlainReader(Interrupts(lambda: None))
    assert (plain.read(), plain.read()) == ("one", "caf\ufffd")


def test_terminal_without_the_package_for_editing_gets_a_note_and_reads_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdin", Typed("one\n"))
    monkeypatch.setattr(sys, "stderr", Typed())
    monkeypatch.setattr(reader, "find_spec", lambda _: None)
    plain = make_reader(Interrupts(lambda: None))
    assert isinstance(plain, PlainReader)
    assert "pip install prompt-toolkit" in sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert plain.read() == "one"
    with pytest.raises(EOFError):
        plain.read()
