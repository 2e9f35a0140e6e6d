"""Tests of commands with hub names: every command takes them, `pymtp pull`, and a killed download."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.command import PYMTP, run
from helpers.hub import HEAD_ALONE, Hub, gguf
from helpers.warm import Program, WarmProcess

from pymtp import Model
from pymtp.cli import app_main
from pymtp.cli.exit_codes import MISUSED, NOT_LOADED
from pymtp.errors import ModelLoadError
from pymtp.model.options import ModelOptions

Pull = Callable[..., tuple[int, str]]
Run = Callable[..., tuple[int, str]]
Started = Callable[..., subprocess.Popen[str]]
Made = list[tuple[str, str | None]]
NAME, HEAD_NAME = "model-Q4_K_M.gguf", "mtp-model-Q8_0.gguf"


@pytest.fixture
def models_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Made:
    """Return a list of the model files and heads that a command loads; the load itself fails."""
    made: Made = []

    def make(_: Model, path: Path, *, options: ModelOptions | None = None, **keywords: Any) -> None:
        head = keywords.get("head") if options is None else options.head
        made.append((Path(path).name, head and Path(head).name))
        raise ModelLoadError("the test made none")

    monkeypatch.setattr(Model, "__init__", make)
    monkeypatch.chdir(tmp_path)
    Path("REQUESTS").write_text("")
    return made


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """Return the environment variables of a command that uses the hub."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return others | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}


@pytest.fixture
def warm(environment: dict[str, str]) -> Callable[..., WarmProcess]:
    """Return a function that starts a command as a fork, with the hub in its environment; stdout goes to stderr.

    huggingface_hub reads its environment variables at its import, so each command is a process of its own.
    """
    source = "import sys; sys.stdout = open(2, 'w', closefd=False)\nfrom pymtp.cli import app_main; app_main()"

    def start(*arguments: str, **variables: str) -> WarmProcess:
        return WarmProcess(Program(source, arguments), environment | variables)

    return start


@pytest.fixture
def ended(warm: Callable[..., WarmProcess]) -> Run:
    """Return a function that runs a command like `warm`, and returns the exit code and all that was printed."""

    def run(*arguments: str, **variables: str) -> tuple[int, str]:
        process = warm(*arguments, **variables)
        with process.stderr:
            printed = process.stderr.read()
        return process.wait(), printed

    return run


@pytest.fixture
def pull(ended: Run) -> Pull:
    """Return a function that runs `pymtp pull owner/name` like `ended`."""
    return partial(ended, "pull", "owner/name")


@pytest.fixture
def started(environment: dict[str, str]) -> Started:
    """Return a function that starts a command, with the hub in its environment variables."""

    def start(*arguments: str, stderr: int = subprocess.PIPE, **variables: str) -> subprocess.Popen[str]:
        command = [*PYMTP, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment | variables)

    return start


def test_pull_prints_only_the_path_on_stdout(hub: Hub, started: Started) -> None:
    hub.files[NAME] = gguf(head=False)
    run = started("pull", "owner/name:Q4_K_M")
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    assert Path(out.removesuffix("\n")).read_bytes() == hub.files[NAME]
    assert "note: model-Q4_K_M.gguf of owner/name has no multi-token-prediction head" in err
    assert "100%" not in err  # stderr is not a terminal, so there is no progress bar


def test_pull_prints_the_paths_of_model_and_head(hub: Hub, started: Started) -> None:
    hub.files |= {NAME: gguf(head=False), HEAD_NAME: gguf(tensors=HEAD_ALONE)}
    run = started("pull", "owner/name")
    out, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    model, head = map(Path, out.splitlines())
    assert (model.name, head.name) == (NAME, HEAD_NAME)
    assert [path.read_bytes() for path in (model, head)] == [hub.files[NAME], hub.files[HEAD_NAME]]
    assert err == f"note: {HEAD_NAME} is the head of {NAME}: -m hf:owner/name loads both\n"


@pytest.mark.parametrize(
    "command",
    [
        "generate -m hf:owner/name def",
        "generate -m hf:owner/name:Q4_K_M+Q8_0 def",
        "chat -m hf:owner/name",
        "batch -m hf:owner/name REQUESTS ANSWERS",
        "prefix -m hf:owner/name -o OUT text",
        "info hf:owner/name",
        "info hf:owner/name --memory",
        "tap hf:owner/name",
        *(f"bench {bench} -m hf:owner/name" for bench in ("decode", "prefill", "batch", "rows", "prefix")),
    ],
)
def test_every_command_loads_the_head(hub: Hub, command: str, models_made: Made) -> None:
    hub.files |= {NAME: gguf(head=False), HEAD_NAME: gguf(tensors=HEAD_ALONE)}
    found = run(*command.split())
    assert (found.returncode, models_made) == (NOT_LOADED, [(NAME, HEAD_NAME)]), found.stderr
    assert "decoded without a head's drafts" not in found.stderr


@pytest.mark.parametrize(
    "command",
    [
        "generate -m hf:owner/name -d 0 def",
        "info hf:owner/name --memory -d 0",
        "bench decode -m hf:owner/name --depths none",
        "bench batch -m hf:owner/name --depths none",
        "bench prefill -m hf:owner/name --modes none",
    ],
)
def test_commands_without_drafts_download_no_head(hub: Hub, command: str, models_made: Made) -> None:
    hub.files |= {NAME: gguf(head=False), HEAD_NAME: gguf(tensors=HEAD_ALONE)}
    found = run(*command.split())
    assert (found.returncode, models_made) == (NOT_LOADED, [(NAME, None)]), found.stderr
    assert HEAD_NAME not in {answer.path for answer in hub.sent}
    assert "note:" not in found.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
def test_pull_shows_a_progress_bar_on_a_terminal(hub: Hub, started: Started) -> None:
    hub.files[NAME] = gguf()
    import fcntl
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    run = started("pull", "owner/name:Q4_K_M", stderr=theirs)
    os.close(theirs)
    said = b""
    with suppress(OSError):  # the command has closed its end of the terminal
        while some := os.read(ours, 4096):
            said += some
    os.close(ours)
    out, _ = run.communicate(timeout=100)
    assert (run.returncode, Path(out.removesuffix("\n")).name) == (0, NAME)
    shown = said.decode()
    assert "100%" in shown
    assert NAME in shown


def test_killed_download_is_resumed(
    hub: Hub, warm: Callable[..., WarmProcess], ended: Run, demo: Path, tmp_path: Path
) -> None:
    hub.files[NAME] = data = demo.read_bytes()
    half = len(data) // 2
    hub.faults.cut_after, hub.faults.cuts, hub.faults.hang = half, 1, True
    killed = warm("pull", "hf:owner/name", HF_HUB_DOWNLOAD_TIMEOUT="1000")  # no second request while the first hangs
    hub.hangs.wait()
    while not (partial := [path for path in tmp_path.rglob("*.incomplete") if path.stat().st_size]):
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    killed.stderr.close()
    kept = partial[0].stat().st_size  # the process may not have written the last bytes that arrived
    assert 0 < kept <= half
    hub.sent.clear()
    code, printed = ended("generate", "-m", "hf:owner/name", "-t", "1", "-c", "256", "-n", "4", "-d", "1", "def")
    assert (code, ", 4 tokens at " in printed) == (0, True), printed
    assert sum(answer.n for answer in hub.sent if answer.asked_to == len(data)) == len(data) - kept
    hub.asked.clear()
    code, printed = ended("info", "hf:owner/name", HF_HUB_OFFLINE="1")
    assert (code, NAME in printed) == (0, True), printed
    assert hub.asked == []


@pytest.mark.parametrize(
    "command",
    [
        "pull hf:owner/nmae",
        "generate -m hf:owner/nmae def",
        "chat -m hf:owner/nmae",
        "batch -m hf:owner/nmae REQUESTS ANSWERS",
        "prefix -m hf:owner/nmae -o OUT text",
        "info hf:owner/nmae",
        "info --memory hf:owner/nmae",
        "tap hf:owner/nmae",
        *(f"bench {bench} -m hf:owner/nmae" for bench in ("decode", "prefill", "batch", "rows", "prefix")),
    ],
)
def test_every_command_takes_a_hub_name(
    hub: Hub, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("REQUESTS").write_text("")
    with pytest.raises(SystemExit) as exit_:
        app_main(command.split())
    assert exit_.value.code == NOT_LOADED
    assert f"no repository owner/nmae on {hub.url}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("generate -m hf:owner/name -c -5 def", "--ctx -5 must be"),
        ("serve -m hf:owner/name -c -5", "--ctx -5 must be"),
        ("generate -m hf:owner/name --prefix nowhere def", "cannot read the prefix from nowhere"),
        ("serve -m hf:owner/name --prefix nowhere", "cannot read the prefix from nowhere"),
        ("prefix -m hf:owner/name -o nowhere/file text", "cannot save a prefix: there is no folder"),
        ("prefix -m hf:owner/name -o . text", "cannot save a prefix: . is a directory"),
        ("batch -m hf:owner/name nowhere ANSWERS", "cannot open nowhere"),
        ("info hf:owner/name --memory -ngl -2", "--gpu-layers -2 must be"),
        ("info hf:owner/name --memory -s 0", "--n-seq-max 0 must be"),
        ("info hf:owner/name --memory -c -4", "--ctx -4 must be"),
        ("info hf:owner/name --memory --cache-type zz", "--cache-type 'zz' is not known"),
        ("tap hf:owner/name -g -7", "--gpu-layers -7 must be"),
        ("tap hf:owner/name -t 0", "--threads 0 must be"),
        *(
            (f"bench {bench} -m hf:owner/name {wrong}", f"{option} {value}")
            for bench in ("decode", "prefill", "batch", "rows", "prefix")
            for wrong, option, value in (
                ("-t 0", "--threads", "0 must be"),
                ("-g -2", "--gpu-layers", "-2 must be"),
                ("--cache-type zz", "--cache-type", "'zz' is not known"),
            )
        ),
        ("bench decode -m hf:owner/name --draft-vocab 0", "--draft-vocab 0 must be"),
        ("bench prefill -m hf:owner/name --synthetic-acceptance x", "--synthetic-acceptance 'x' must be"),
    ],
)
def test_commands_check_options_before_the_download(
    hub: Hub,
    command: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        app_main(command.split())
    assert (exit_.value.code, hub.asked) == (MISUSED, [])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate -m hf:owner/name def", "info --memory hf:owner/name"])
def test_commands_check_adapters_before_the_download(
    hub: Hub, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        app_main([*command.split(), "--lora", "nowhere.gguf"])
    assert (exit_.value.code, hub.asked) == (NOT_LOADED, [])
    assert "no such adapter: nowhere.gguf" in capsys.readouterr().err


def test_too_long_filename_has_a_short_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        app_main(["info", "a" * 5000])
    assert exit_.value.code == NOT_LOADED
    assert len(said := capsys.readouterr().err) < 300
    assert "no such file" in said


def test_invalid_hub_name_ends_a_command_with_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        app_main(["info", "hf:name"])
    assert exit_.value.code == MISUSED
    assert "it must be like hf:owner/name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HF_ENDPOINT", "http://127.0.0.1:99999", "Port out of range"),
        ("HF_ENDPOINT", "http://name:secret@[::1", "Invalid IPv6 URL"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", "'soon'"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1", "must be a number of seconds"),
        ("HF_HUB_ETAG_TIMEOUT", "-1", "must be a number of seconds"),
        ("HF_HUB_ETAG_TIMEOUT", "9" * 30, "must be a number of seconds"),
        ("HF_ENDPOINT", "huggingface.co", "must be like https://huggingface.co"),
        ("HF_ENDPOINT", "http://name:se@secret@127.0.0.1:1", "must be like https://huggingface.co"),
        ("HF_ENDPOINT", "http://name:se secret@127.0.0.1:1", "must be like https://huggingface.co"),
        ("HF_ENDPOINT", "http://name:se/secret@127.0.0.1:1", "must be like https://huggingface.co"),
        ("HF_ENDPOINT", "name:secret@127.0.0.1:1", "must be like https://huggingface.co"),
    ],
)
def test_invalid_environment_variable_ends_a_command_with_a_usage_error(
    pull: Pull, variable: str, value: str, message: str
) -> None:
    code, err = pull(**{variable: value})
    assert (code, err.count("\n")) == (MISUSED, 1), err
    assert err.startswith(("error: huggingface_hub cannot be loaded", f"error: {variable} must be "))
    assert message in err
    assert variable in err
    assert "secret" not in err


def test_endpoint_scheme_may_be_uppercase(hub: Hub, ended: Run) -> None:
    hub.files[NAME] = gguf()
    code, printed = ended("pull", "owner/name:Q4_K_M", HF_ENDPOINT=hub.url.replace("http:", "HTTP:"))
    assert (code, Path(printed.splitlines()[-1]).name) == (0, NAME), printed


@pytest.mark.parametrize("token", ["", " "])
@pytest.mark.parametrize("found", ["pipe", "UTF-16", "long name"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_unreadable_token_file_ends_a_command_with_a_usage_error(
    pull: Pull, tmp_path: Path, found: str, token: str
) -> None:
    file = tmp_path / ("t" * 300 if found == "long name" else "token")
    if found == "pipe":
        os.mkfifo(file)
    elif found == "UTF-16":
        file.write_text("hf_secret", encoding="utf-16")
    code, err = pull(HF_TOKEN_PATH=str(file), HF_TOKEN=token)
    assert (code, err.count("\n")) == (MISUSED, 1), err
    assert err.startswith(f"error: the file of the token, {file}, ")


@pytest.mark.parametrize("password", ["se/cret", "se#cret", "se?cret"])
def test_error_hides_the_password_of_a_proxy(pull: Pull, password: str) -> None:
    code, err = pull(HTTP_PROXY=f"http://user:{password}@127.0.0.1:1", NO_PROXY="")
    assert (code, err.count("\n")) == (NOT_LOADED, 1), err
    assert "the address of the hub or of a proxy is invalid" in err
    assert "se" not in err.partition("proxy is invalid; ")[0].split("owner/name")[1]
    assert "cret" not in err


def test_error_names_the_package_that_a_proxy_needs(pull: Pull) -> None:
    code, err = pull(HTTP_PROXY="socks5://127.0.0.1:1", ALL_PROXY="socks5://127.0.0.1:1")
    assert (code, err.count("\n")) == (NOT_LOADED, 1), err
    assert err.startswith("error: cannot reach http://127.0.0.1")


@pytest.mark.parametrize("found", ["", "no certificate", "a folder"])
def test_unreadable_certificates_are_an_error(pull: Pull, tmp_path: Path, found: str) -> None:
    if found == "a folder":
        (tmp_path / "c.pem").mkdir()
    elif found:
        (tmp_path / "c.pem").write_text(found)
    code, err = pull(SSL_CERT_FILE=str(tmp_path / "c.pem"))
    assert (code, err.count("\n")) == (NOT_LOADED, 1), err
    assert f"SSL_CERT_FILE is {tmp_path / 'c.pem'}" in err
    assert "cache" not in err
