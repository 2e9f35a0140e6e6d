"""Tests of the command lines in README.md and docs/: each of them parses."""

from __future__ import annotations

import re
import shlex

import pytest
from helpers.command import parse
from helpers.documents import PAGES, blocks

PROGRAM = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?pymtp (\S.*)$")


def documented() -> list[str]:
    """Return the arguments of each command line `pymtp …` in code and in sentences of the documents, once each."""
    found = []
    for page in PAGES:
        spans = re.findall(r"`(pymtp [a-z][^`…]*)`", page.read_text(encoding="utf-8"))
        lines = [line.strip() for block in blocks(page) for line in block.code.splitlines()]
        for line in [*lines, *(span for span in spans if " -" in span and "--help" not in span)]:
            for command in re.split(r"&&|\|\|?|;", line):
                if match := PROGRAM.match(command.strip()):
                    arguments = re.split(r"\s[>#&]|\s2>", match[1])[0].strip()
                    found.append(re.sub(r"\bN\b", "1", arguments))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("line", documented())
def test_documented_command_parses(line: str) -> None:
    arguments = shlex.split(line)
    if arguments != ["--version"]:
        assert parse(*arguments).command.name == arguments[arguments[0] == "bench"]


def test_documents_have_command_lines_of_all_commands() -> None:
    named = {line.split()[0] for line in documented()}
    assert named >= {"generate", "chat", "serve", "prefix", "batch", "info", "tap", "pull", "bench"}
    assert len(documented()) > 30
