"""Tests of `pymtp prefix` and `--prefix`: a saved prompt is not prefilled again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from helpers.command import generate, run

from pymtp.prefix_cache.file import PrefixFile

PROMPT = "def fibonacci(n):"
DOCUMENT = "def area(width, height):\n    return width * height\n\n\n" * 8 + "class"


def test_saved_prefix_is_not_prefilled_again(tmp_path: Path) -> None:
    document, saved = tmp_path / "document.txt", tmp_path / "document.prefix"
    document.write_text(DOCUMENT)
    done = run("prefix", "-f", document, "-o", saved, "-t", "1")
    assert (done.returncode, done.stdout) == (0, "")
    with PrefixFile(saved, None) as file:
        n, checkpoints = len(file.tokens), file.checkpoints
        assert f"{n} tokens" in done.stderr
    options = ["-t", "1", "-n", "8", "--json"]
    with_it = json.loads(run("generate", f"{DOCUMENT} Box", "--prefix", saved, *options).stdout)
    without = json.loads(run("generate", f"{DOCUMENT} Box", *options).stdout)
    assert with_it["text"] == without["text"]
    assert (with_it["stats"]["cached_tokens"], without["stats"]["cached_tokens"]) == (n, 0)
    about = json.loads(run("info", saved, "--json").stdout)["prefix"]
    assert (about["tokens"], about["states_after"]) == (n, checkpoints)
    assert about["size_bytes"] == saved.stat().st_size > about["host_memory_bytes"]
    shown = run("info", saved).stdout
    assert {f"tokens\t{n}", f"states after\t{checkpoints[0]} {checkpoints[1]}"} <= set(shown.splitlines())


def test_chat_continues_from_a_saved_system_message(tmp_path: Path) -> None:
    document, saved = tmp_path / "document.txt", tmp_path / "document.prefix"
    document.write_text(DOCUMENT)
    n = int(run("prefix", "-f", document, "-o", saved, "--system", "-t", "1").stderr.split()[0])
    command = ["chat", "--system-file", document, "-t", "1", "-n", "4", "--temperature", "0"]
    done, without = run(*command, "--prefix", saved, stdin="Why?\n"), run(*command, stdin="Why?\n")
    assert done.returncode == 0
    assert done.stdout == without.stdout
    assert f"({n} cached)" in done.stderr
    assert "cached" not in without.stderr
    done = run(*command, "--system", "x", stdin="Why?\n")
    assert (done.returncode, done.stdout) == (2, "")


def test_prefix_file_that_does_not_match_the_prompt_gets_a_note(tmp_path: Path) -> None:
    saved = tmp_path / "[b]saved.prefix"
    assert run("prefix", DOCUMENT, "-o", saved, "-t", "1").returncode == 0

    def notes(done: subprocess.CompletedProcess[str]) -> list[str]:
        return [line for line in done.stderr.splitlines() if line.startswith("note:")]

    without, done = generate(PROMPT), generate(PROMPT, "--prefix", saved)
    assert (done.returncode, done.stdout) == (0, without.stdout)
    assert notes(done) == [f"note: {saved} is not used: the prompt does not begin with its text"]
    as_json = generate(PROMPT, "--prefix", saved, "--json")
    assert json.loads(as_json.stdout)["text"] + "\n" == without.stdout
    assert notes(as_json) == notes(done)
    assert not notes(generate(f"{DOCUMENT} Box", "--prefix", saved))
    assert not notes(without)
    chat = run("chat", "--prefix", saved, "-t", "1", "-n", "4", stdin="Why?\nHow?\n")
    assert (chat.returncode, notes(chat)) == (0, notes(done))  # the note is printed once, not for each turn


def test_invalid_prefix_file_is_refused(tmp_path: Path) -> None:
    saved = tmp_path / "saved.prefix"
    assert run("prefix", DOCUMENT, "-o", saved, "-t", "1").returncode == 0
    for more, why in (
        (["--prefix", saved, "--cache", "0"], "cache_bytes is 0"),
        (["--prefix", saved, "--cache-type", "q8_0"], "was made with another type_k"),
        (["--prefix", saved, "-d", "0"], "was made with drafts"),
        (["--prefix", __file__], "is not a prefix file"),
        (["--prefix", tmp_path / "missing"], "cannot read the prefix from"),
        (["--prefix", tmp_path], "cannot read the prefix from"),
    ):
        done = generate(PROMPT, *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    saved.write_bytes(saved.read_bytes()[:-1] + b"x")
    for command in (["generate", "x", "--prefix", saved], ["info", saved]):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "checksum" in done.stderr
    done = run("prefix", DOCUMENT, "-o", tmp_path / "missing" / "file", "-t", "1")
    assert (done.returncode, done.stdout) == (2, "")
