"""Tests of `pymtp info`: it describes a model, a prefix file and the build, and plans memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from helpers.command import run
from helpers.prefix_files import write_prefix
from helpers.tuned import TUNED, write_tuned

import pymtp
from pymtp.cli import app_main


def test_info_table_in_a_file_is_not_cut_to_a_terminal_s_width() -> None:
    shown = run("info").stdout
    assert str(pymtp.model.model.demo_model()) in shown
    assert all(patch in shown for patch in pymtp.build_info()["patches"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("info", "--memory"),
        ("bench", "batch", "--from", str(ROOT / "benchmarks/arriving.json")),
    ],
    ids=" ".join,
)
def test_tables_in_a_file_have_no_spaces_at_the_end_of_lines(arguments: tuple[str, ...]) -> None:
    lines = run(*arguments).stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if line != line.rstrip()] == []


def test_info_describes_the_model_and_the_build() -> None:
    shown = " ".join(run("info").stdout.split())
    assert "demonstrations and tests" in shown
    about = json.loads(run("info", "--json").stdout)
    assert about["model"]["architecture"] == "qwen35"
    assert about["model"]["mtp_head"] is True
    assert about["build"] == json.loads(json.dumps(pymtp.build_info()))


def test_info_lists_types_of_weights_and_prices_them_on_demand() -> None:
    about = json.loads(run("info", "--json").stdout)["model"]
    assert [kind["type"] for kind in about["types"]] == ["q8_0", "f32"]
    assert about["weights"] == "q8_0"
    priced = json.loads(run("info", "--prices", "--json").stdout)["model"]
    whole, products, other = priced.pop("price_of_4_rows"), *priced["types"]
    assert whole > 0  # the load of the machine may make it any number
    assert products.pop("price_of_4_rows") > 0
    assert "price_of_4_rows" not in other
    assert priced == about
    types = re.search(r"^types\t(.*)$", run("info").stdout, re.MULTILINE)
    assert types is not None
    assert re.fullmatch(r"q8_0: [0-9]+ tensors, [0-9.]+ MiB; f32: [0-9]+ tensors, [0-9.]+ MiB", types[1])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--prices --memory", "--memory and --prices exclude each other"),
        ("--prices -c 4096", "--ctx has an effect only with --memory"),
        ("-o json", "there is no option -o: --json prints JSON"),
        ("--prices -ngl auto", "--gpu-layers auto depends on the context"),
    ],
)
def test_info_refuses_options_and_names_what_is_right(options: str, error: str) -> None:
    done = run("info", *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {error}")


def test_info_shows_the_sampling_defaults_of_the_model(tuned: Path, tmp_path: Path) -> None:
    output = run("info", tuned, "--json")
    assert json.loads(output.stdout)["model"]["sampling"] == TUNED
    assert output.stderr == ""
    words = ", ".join(f"{name} {value}" for name, value in TUNED.items())
    assert re.search(rf"^sampling\t{re.escape(words)}$", run("info", tuned).stdout, re.MULTILINE)
    assert json.loads(run("info", write_tuned(tmp_path / "bare.gguf"), "--json").stdout)["model"]["sampling"] == {}
    odd = run("info", write_tuned(tmp_path / "odd.gguf", top_k=-7, mirostat=1, temp=0.5), "--json")
    assert json.loads(odd.stdout)["model"]["sampling"] == {"temperature": 0.5}
    assert odd.stderr.count("note: general.sampling.") == 2


@pytest.mark.parametrize(
    ("option", "name"),
    [("--n-cpu-moe 3", "--n-cpu-moe"), ("-c 4096", "--ctx"), ("--no-mmap", "--no-mmap"), ("-d 0", "--draft-tokens")],
)
def test_info_refuses_options_of_the_memory_plan_without_the_option_memory(option: str, name: str) -> None:
    done = run("info", *option.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {name} has an effect only with --memory: add --memory\n"
    assert run("info", "--memory", *option.split()).returncode == 0


def test_info_escapes_markup_and_control_characters(tmp_path: Path) -> None:
    saved = tmp_path / "saved.prefix"
    rows, state = np.zeros((3, 8), dtype=np.uint8), np.zeros(5, dtype=np.uint8)
    write_prefix(
        saved,
        {"model": "[/b] [red]m[/red] \x1b[31m", "file": "another", "a_b [/c]": "\ud800"},
        [1, 2, 3],
        {3: state},
        rows,
    )
    shown = run("info", saved)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"^model\t\[/b\] \[red\]m\[/red\] \ufffd\[31m$", shown.stdout, re.MULTILINE)
    assert re.search(r"^a b \[/c\]\t\ufffd$", shown.stdout, re.MULTILINE)
    about = json.loads(run("info", saved, "--json").stdout)["prefix"]
    assert (about["file"], about["tokens"]) == (str(saved), 3)


def test_info_does_not_mistake_a_model_for_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + (123).to_bytes(8, "little") + bytes(8))  # 123 is "{"
    done = run("info", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "prefix" not in done.stderr


def test_memory_plan_tells_the_length_of_training_if_the_context_is_longer() -> None:
    said = "The model was trained with contexts of 8,192 tokens."
    assert said not in run("info", "--memory", "-c", "8192").stdout
    assert said in run("info", "--memory", "-c", "8448").stdout


def test_info_warns_if_the_plan_exceeds_the_host_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def info_output(total: int | None, *options: str) -> str:
        monkeypatch.setattr("pymtp.cli.info.host_memory", lambda: total)
        with pytest.raises(SystemExit):
            app_main(["info", "--memory", "-c", "256", *options])
        return capsys.readouterr().out

    assert "This is more than the 1.0 MiB of memory that the host has." in info_output(2**20)
    assert "This is more" not in info_output(2**40)
    assert "This is more" not in info_output(None)
    assert json.loads(info_output(2**20, "--json"))["host_memory"] == 2**20
