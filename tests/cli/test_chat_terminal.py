"""Tests of `pymtp chat` in a terminal of its own: each waits for what the screen shows."""

from __future__ import annotations

import json
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

from helpers.terminal import ALT_ENTER, CTRL_C, CTRL_D, HOME, LEFT, PASTE, PASTE_END, SEARCH, UP, Terminal

from pymtp.cli.chat.slash_words import COMMANDS

SMALL = ("chat", "-t", "1", "-c", "1024", "-d", "0")
ESCAPE = b"\x1b"
QUESTION = "What is 457 + 86?"  # the model thinks for some 20 tokens
ANSWERED = "prompt tokens"  # figures end an answer
COLOUR = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[\d;]*)?m")


def saved(terminal: Terminal, folder: Path) -> list[dict[str, Any]]:
    """Save the chat, and return its messages."""
    file = folder / "saved.json"
    file.unlink(missing_ok=True)
    terminal.run("/save saved.json", "in saved.json)")
    messages: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return messages


def users(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


def test_chat_lines_are_edited_recalled_pasted_and_completed(tmp_path: Path) -> None:
    with Terminal(tmp_path, *SMALL, "-n", "2") as terminal:
        terminal.wait_for_prompt()
        banner = terminal.text
        assert all(
            words in banner for words in ("the shipped model", "1024 tokens", "no drafts", "/help", "Ctrl-D leaves")
        )
        terminal.run(f"ello{LEFT}{LEFT}{LEFT}{LEFT}H", ANSWERED)
        terminal.run(f"{UP}, again{HOME}Well, ", ANSWERED)
        terminal.run(f"one{ALT_ENTER}two", ANSWERED)
        lines = "\n".join(f"line {i}" for i in range(50))
        terminal.clear()
        terminal.type(PASTE + lines.replace("\n", "\r") + PASTE_END)
        terminal.wait("line 49")
        terminal.run(" ends", ANSWERED, clear=False)
        terminal.clear()
        terminal.type("/cl")
        terminal.wait("begin a new chat")  # the menu
        terminal.type("\t")
        terminal.wait_for_prompt("> /clear")
        terminal.run("", "(a new chat)", clear=False)
        terminal.clear()
        terminal.type(f"{SEARCH}again")
        terminal.wait("> Well, Hello, again")
        terminal.type("\r")  # ends the search
        terminal.wait_for_prompt("> Well, Hello, again")
        terminal.run("", ANSWERED, clear=False)
        assert users(saved(terminal, tmp_path)) == ["Well, Hello, again"]
        terminal.run("", ">")  # an empty line is no message
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    history = tmp_path / "pymtp" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    written = history.read_text(encoding="utf-8")
    assert "+Hello\n" in written
    assert "+one\n+two\n" in written
    assert "".join(f"+line {i}\n" for i in range(49)) + "+line 49 ends\n" in written


def test_chat_commands_in_a_terminal(tmp_path: Path) -> None:
    options = ("-n", "60", "--seed", "1")
    with Terminal(tmp_path, *SMALL, *options) as terminal:
        terminal.wait_for_prompt()
        terminal.run("/help", "Ctrl-D")
        assert all(name in terminal.text for name in COMMANDS)
        terminal.run(QUESTION, ANSWERED)
        assert "think>" not in terminal.text
        _, first = saved(terminal, tmp_path)
        thinking, content = first["reasoning_content"], first["content"]
        dimmed = "".join(re.findall("\x1b\\[2m([^\x1b]*)\x1b\\[0m", terminal.raw.decode()))
        assert thinking.replace("\n", "\r\n") in dimmed
        assert content.strip().replace("\n", "\r\n") in terminal.raw.decode()
        assert content.strip().replace("\n", "\r\n") not in dimmed
        terminal.run("/set temp 1.5", "(temperature: 1.5)")
        terminal.run("/regen", ANSWERED)
        question, second = saved(terminal, tmp_path)
        assert (question["content"], second != first) == (QUESTION, True)
        terminal.clear()
        terminal.type("/edit\r")
        terminal.wait_for_prompt(f"> {QUESTION}")
        terminal.run(" More.", ANSWERED, clear=False)
        assert users(saved(terminal, tmp_path)) == [f"{QUESTION} More."]
        terminal.run("/set temp 0", "(temperature: 0)")
        terminal.run("/set", "samplers")
        assert re.search(r"temperature +0 +default: 0\.2", terminal.text)
        terminal.run("/system Be brief.", "(system message: Be brief.)")
        terminal.run("/image picture.png", "error: this model was loaded without a projector")
        terminal.run("/clear", "a new chat")
        assert saved(terminal, tmp_path) == [{"role": "system", "content": "Be brief."}]
        terminal.run("/system -", "(no system message)")
        (tmp_path / "other.json").write_text('{"messages": [{"role": "user", "content": "loaded"}]}')
        terminal.run("/load other.json", "1 message from other.json")
        terminal.run("/regen", ANSWERED)
        assert users(saved(terminal, tmp_path)) == ["loaded"]
        terminal.clear()
        terminal.type(PASTE + "word " * 2000 + PASTE_END)
        terminal.run("", "is not in the chat", clear=False)
        shown = terminal.text.replace("\n", "")
        assert re.search(r"the prompt has \d{4} tokens, n_ctx is 1024. Your message has \d{4} tokens", shown)
        terminal.run("/nonsense", "error: there is no /nonsense")
        terminal.run("Again.", ANSWERED)
        assert users(saved(terminal, tmp_path)) == ["loaded", "Again."]
        terminal.type("/exit\r")
        assert terminal.wait_for_end() == 0


@pytest.mark.parametrize(("moment", "number"), [("typing", signal.SIGTERM), ("answer", signal.SIGQUIT)])
def test_signal_that_ends_a_chat_leaves_the_terminal_as_it_was(tmp_path: Path, moment: str, number: int) -> None:
    with Terminal(tmp_path, *SMALL, "-n", "40") as terminal:
        before = terminal.settings
        terminal.wait_for_prompt()
        assert b"\x1b[?25l" not in terminal.raw.partition(b"/help lists")[0], "the cursor is there while a model loads"
        if moment == "answer":
            terminal.hold("3!")
            terminal.type("Hello.\r")
            terminal.wait_until_held()
        assert terminal.settings != before
        terminal.send(number)
        assert terminal.wait_for_end() == -number
        assert terminal.settings == before
        terminal.read_rest()
        assert terminal.raw.rfind(b"\x1b[?2004l") > terminal.raw.rfind(b"\x1b[?2004h"), "pasted text is not marked"


def test_ctrl_c_ends_what_runs_and_keeps_the_chat(tmp_path: Path) -> None:
    options = ("-n", "40", "--reasoning-budget", "6", "--temperature", "0")
    with Terminal(tmp_path, *SMALL, *options) as terminal:
        terminal.wait_for_prompt()
        terminal.type(CTRL_C)  # 1: on an empty line
        terminal.wait("Ctrl-C again leaves")
        terminal.run(f"some text{CTRL_C}", ">")  # 2: while typing
        terminal.wait_for_prompt(">")
        terminal.type(UP)
        terminal.wait_for_prompt("> some text")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt(">")
        terminal.type("/he")
        terminal.wait("list commands and keys")
        terminal.type(CTRL_C)  # 3: with a menu of completions
        terminal.wait_for_prompt(">")
        terminal.type(f"{SEARCH}some")
        terminal.wait_for_prompt("I-search backward: some")
        terminal.type(CTRL_C)  # 4: in a search
        terminal.wait_for_prompt(">")
        ask = {held: f"What is 457 + {86 + i}?" for i, held in enumerate(("0", "1", "4", "</think>"))}
        for held, keeps in (("0", False), ("1", True), ("4", True), ("</think>", True)):
            # 5 to 8: while the prompt is read, at the first token, in the thinking, in the answer
            terminal.clear()
            terminal.hold(held)
            terminal.type(f"{ask[held]}\r")
            terminal.wait_until_held()
            if held == "0":
                terminal.wait("reading the prompt")
            terminal.type(CTRL_C)
            terminal.wait("ended by Ctrl-C; the chat keeps" if keeps else "the chat is as it was")
            terminal.wait_for_prompt()
            terminal.hold("")
        messages = saved(terminal, tmp_path)
        assert users(messages) == [ask[held] for held in ("1", "4", "</think>")]
        partial = [message for message in messages if message["role"] == "assistant"]
        assert [bool(message["content"]) for message in partial] == [False, False, True]
        assert all(message["reasoning_content"] for message in partial[1:])
        terminal.hold("0")
        terminal.clear()
        terminal.type("/regen\r")
        terminal.wait_until_held()
        terminal.type(CTRL_C)  # 9: before another answer
        terminal.wait("the chat is as it was")
        terminal.wait_for_prompt()
        terminal.hold("")
        terminal.clear()
        terminal.type("/edit\r")
        terminal.wait_for_prompt(f"> {ask['</think>']}")
        terminal.type(CTRL_C)  # 10: while a message is changed
        terminal.wait("the message is as it was")
        assert saved(terminal, tmp_path) == messages
        terminal.clear()
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again leaves")
        terminal.wait_for_prompt()
        terminal.type(CTRL_C)  # 11: twice on an empty line
        assert terminal.wait_for_end() == 130
        assert "Traceback" not in terminal.text


def test_second_ctrl_c_in_a_turn_ends_the_program_and_typing_meanwhile_is_kept(tmp_path: Path) -> None:
    with Terminal(tmp_path, *SMALL, "-n", "4") as terminal:
        terminal.wait_for_prompt()
        terminal.hold("1")
        terminal.type("Hello.\r")
        terminal.wait_until_held()
        terminal.type(f"{PASTE}typed\rmeanwhile{PASTE_END}")
        terminal.hold("")
        terminal.wait_for_prompt("  meanwhile")
        assert terminal.text.count("meanwhile") == 1
        terminal.hold("1!")
        terminal.type("\r")
        terminal.wait_until_held()
        terminal.type(CTRL_C)
        terminal.wait_until_pressed()
        terminal.type(CTRL_C)
        assert terminal.wait_for_end() == 130
        assert "Traceback" not in terminal.text


def test_chat_fits_40_columns_and_has_no_colours_if_told_so(tmp_path: Path) -> None:
    (tmp_path / "pymtp").mkdir()
    (tmp_path / "pymtp" / "chat_history").write_text("\n# 2026-01-01\n+from an earlier chat\n")
    with Terminal(tmp_path, *SMALL, "-n", "4", columns=40, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait_for_prompt()
        terminal.type("/")
        terminal.wait("list commands")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        terminal.run("/help", "Ctrl-D")
        shown = [line for line in terminal.text.splitlines() if line.startswith(("/", " "))]
        assert all(name in " ".join(shown) for name in COMMANDS)
        assert {len(re.split(r"\s{2,}", line.strip())) for line in shown} <= {1, 2}  # no word of a column is cut
        terminal.run(UP + UP + UP, "> from an earlier chat")
        terminal.wait(ANSWERED)
        terminal.clear()
        terminal.type("word " * 20)
        terminal.wait_for_prompt("  ord word word word word")
        terminal.type(f"{CTRL_C}{CTRL_D}")
        assert terminal.wait_for_end() == 0
    assert not COLOUR.search(terminal.raw)


def test_chat_in_a_dumb_terminal_has_no_escape_codes(tmp_path: Path) -> None:
    options = ("-n", "12", "--reasoning-budget", "4", "--temperature", "0")
    with Terminal(tmp_path, *SMALL, *options, env={"TERM": "dumb"}) as terminal:
        terminal.wait_for_prompt()
        terminal.type("Hello.\r")
        terminal.wait(ANSWERED)
        assert terminal.text.index("<think>") < terminal.text.index("</think>")
        terminal.wait_for_prompt()
        terminal.type("/edit\r")
        terminal.wait("error: /edit TEXT")
        terminal.wait_for_prompt()
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again leaves")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert ESCAPE not in terminal.raw
