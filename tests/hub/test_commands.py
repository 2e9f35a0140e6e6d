"""Claims about commands: hf: names wherever a model is named, `pymtp pull`, a download that is killed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.command import PYMTP
from helpers.hub import Hub, gguf

from pymtp.cli import app_main
from pymtp.cli.exit_codes import MISUSED, NOT_LOADED

Started = Callable[..., subprocess.Popen[str]]
NAME = "model-Q4_K_M.gguf"


@pytest.fixture
def started(hub: Hub, tmp_path: Path) -> Started:
    """Starts a command that knows the hub by the variables of its environment."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = others | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}

    def start(*arguments: str, stderr: int = subprocess.PIPE, **variables: str) -> subprocess.Popen[str]:
        command = [*PYMTP, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment | variables)

    return start


def test_pull_prints_the_path_and_nothing_else_on_stdout(hub: Hub, started: Started) -> None:
    hub.files[NAME] = gguf(head=False)
    run = started("pull", "owner/name:Q4_K_M")
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert Path(out.removesuffix("\n")).read_bytes() == hub.files[NAME]
    assert "note: model-Q4_K_M.gguf of owner/name has no multi-token-prediction head" in err
    assert "100%" not in err  # a bar is for terminals


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_a_terminal_sees_a_bar(hub: Hub, started: Started) -> None:
    hub.files[NAME] = gguf()
    import fcntl
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    run = started("pull", "owner/name:Q4_K_M", stderr=theirs)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # that nobody writes there any more
        while some := os.read(ours, 4096):
            said += some
    os.close(ours)
    out, _ = run.communicate(timeout=100)
    assert (run.returncode, Path(out.removesuffix("\n")).name) == (0, NAME)
    shown = said.decode()
    assert "100%" in shown
    assert NAME in shown


def test_a_download_that_is_killed_goes_on(hub: Hub, started: Started, demo: Path, tmp_path: Path) -> None:
    hub.files[NAME] = data = demo.read_bytes()
    half = len(data) // 2
    hub.faults.cut_after, hub.faults.cuts, hub.faults.hang = half, 1, True
    run = started("pull", "hf:owner/name")
    give_up = time.monotonic() + 60
    while [path.stat().st_size for path in tmp_path.rglob("*.incomplete")] != [half]:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    run.kill()
    run.communicate()
    hub.sent.clear()
    run = started("generate", "-m", "hf:owner/name", "-t", "1", "-c", "256", "-n", "4", "-d", "1", "def")
    out, err = run.communicate(timeout=100)
    assert (run.returncode, bool(out.strip())) == (0, True), err
    assert sum(answer.n for answer in hub.sent if answer.asked_to == len(data)) == len(data) - half
    hub.asked.clear()
    run = started("info", "hf:owner/name", HF_HUB_OFFLINE="1")
    out, err = run.communicate(timeout=100)
    assert (run.returncode, NAME in out) == (0, True), err
    assert hub.asked == []


@pytest.mark.parametrize(
    "command",
    [
        "pull hf:owner/nmae",
        "generate -m hf:owner/nmae def",
        "chat -m hf:owner/nmae",
        "serve -m hf:owner/nmae --port 0",
        "batch -m hf:owner/nmae REQUESTS ANSWERS",
        "prefix -m hf:owner/nmae -o OUT text",
        "info hf:owner/nmae",
        "info --memory hf:owner/nmae",
        "tap hf:owner/nmae",
        *(f"bench {bench} -m hf:owner/nmae" for bench in ("decode", "prefill", "batch", "rows", "prefix")),
    ],
)
def test_every_command_asks_the_hub(
    hub: Hub, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("REQUESTS").write_text("")
    with pytest.raises(SystemExit) as ended:
        app_main(command.split())
    assert ended.value.code == NOT_LOADED
    assert f"no repository owner/nmae on {hub.url}" in capsys.readouterr().err


def test_options_are_looked_at_before_the_hub_is_asked(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate -m hf:owner/name -c -5 def", "serve -m hf:owner/name -c -5"):
        with pytest.raises(SystemExit) as ended:
            app_main(command.split())
        assert ended.value.code == MISUSED
        assert "--ctx" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        app_main(["generate", "-m", "hf:owner/name", "--lora", "nowhere.gguf", "def"])
    assert "no such adapter: nowhere.gguf" in capsys.readouterr().err
    assert hub.asked == []


def test_a_name_that_is_none_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app_main(["info", "hf:name"])
    assert ended.value.code == MISUSED
    assert "it must be like hf:owner/name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HF_ENDPOINT", "http://127.0.0.1:99999", "Port out of range"),
        ("HF_ENDPOINT", "http://name:secret@[::1", "Invalid IPv6 URL"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", "'soon'"),
    ],
)
def test_variables_that_huggingface_hub_cannot_read_are_told(
    started: Started, variable: str, value: str, said: str
) -> None:
    run = started("pull", "owner/name", **{variable: value})
    out, err = run.communicate(timeout=100)
    assert (run.returncode, out, err.count("\n")) == (MISUSED, "", 1), out + err
    assert err.startswith("error: huggingface_hub cannot be loaded")
    assert said in err
    assert variable in err
    assert "secret" not in err


@pytest.mark.parametrize("found", ["", "no certificate"])
def test_certificates_that_cannot_be_read_are_told(started: Started, tmp_path: Path, found: str) -> None:
    if found:
        (tmp_path / "c.pem").write_text(found)
    run = started("pull", "owner/name", SSL_CERT_FILE=str(tmp_path / "c.pem"))
    _, err = run.communicate(timeout=100)
    assert (run.returncode, err.count("\n")) == (NOT_LOADED, 1), err
    assert f"SSL_CERT_FILE is {tmp_path / 'c.pem'}" in err
    assert "cache" not in err
