"""Tests of `pymtp serve` with several models, up to the config of the front. No process is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pymtp.cli.app import app
from pymtp.errors import InvalidRequestError, ModelLoadError
from pymtp.server.front.config import FrontConfig
from pymtp.server.process.worker_config import WorkerConfig

FILE = """\
ctx = 4096
temp = 0.5

[coder]
model = "a.gguf"
n_seq_max = 2
n_ubatch = 256
served-name = ["gpt-4o"]
cache = 16
lora-scaled = ["l.gguf:0.5"]
chat-template-kwargs = { enable_thinking = false }

["qwen/small"]
model = "hf:owner/name:Q4_K_M"
n_ctx = 1024
mmap = false
temp = 0
draft-text = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b.gguf", "l.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr("pymtp.server.metrics.logs.configure", lambda *_: None)
    monkeypatch.setattr(
        "pymtp.cli.serve.supervise", lambda listeners, *more: listeners[0].close() or found.append(more[0])
    )
    return found


def serve(*options: str | Path) -> None:
    CliRunner().invoke(app, ["serve", "--port", "0", *map(str, options)], catch_exceptions=False)


def test_several_models_have_the_names_of_their_files_and_share_the_options(folder: Path, launched: list[Any]) -> None:
    serve(
        "-m",
        folder / "a.gguf",
        "-m",
        "hf:owner/name:Q4_K_M",
        "-c",
        "512",
        "--models-max",
        "1",
        "--temp",
        "0.5",
        "--no-autoload",
    )
    (front,) = launched
    assert isinstance(front, FrontConfig)
    assert [model.settings.served_names for model in front.models] == [
        ("a",),
        ("owner/name:Q4_K_M", "hf:owner/name:Q4_K_M"),
    ]
    assert [(model.llm.n_ctx, model.fit) for model in front.models] == [(512, ("n_seq_max",))] * 2
    assert front.models[1].settings.sampling == {"temperature": 0.5}
    assert (front.models_max, front.models_memory, front.idle_seconds, front.autoload) == (1, None, 0.0, False)
    assert FrontConfig.from_json(json.loads(json.dumps(front.to_json()))) == front


def test_options_of_the_file_are_those_of_the_command_line_and_of_llm(folder: Path, launched: list[Any]) -> None:
    (folder / "models.toml").write_text(FILE)
    serve("--models", folder / "models.toml", "-t", "3", "--temp", "0.9", "--models-memory", "100")
    (front,) = launched
    coder, small = front.models
    assert front.models_memory == 100 * 2**20
    assert coder.settings.served_names == ("coder", "gpt-4o")
    assert coder.llm.model == str(folder / "a.gguf")
    assert (coder.llm.n_ctx, coder.llm.n_seq_max, coder.llm.n_ubatch, coder.llm.n_threads) == (4096, 2, 256, 3)
    assert coder.llm.cache_bytes == 16 * 2**20
    assert [scale for _, scale in coder.llm.adapters] == [0.5]
    assert coder.llm.chat_template_kwargs == {"enable_thinking": False}
    assert (coder.fit, small.fit) == ((), ("n_seq_max",))
    assert small.settings.served_names == ("qwen/small",)
    assert (coder.llm.draft_text, small.llm.draft_text) == ("auto", 7)
    assert (small.llm.model, small.llm.n_ctx, small.llm.use_mmap) == ("hf:owner/name:Q4_K_M", 1024, False)
    assert [model.settings.sampling["temperature"] for model in front.models] == [0.5, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\nmodel = 'a.gguf'\nn_cxt = 3\n", r"models\.toml, line 3: there is no option 'n_cxt' of a model"),
        ("n_cxt = 3\n[a]\nmodel = 'a.gguf'\n", r"models\.toml, line 1: there is no option 'n_cxt'"),
        (
            "[a]\nmodel = 'a.gguf'\nport = 3\n",
            r"line 3: 'port' holds for the whole server",
        ),
        ("[a]\nmodel = 'a.gguf'\nctx = 'x'\n", r"\[a\]: Invalid value for '--ctx'.*number of tokens"),
        ("[a]\nmodel = 'a.gguf'\nn_ctx = -1\n", r"\[a\]: --ctx -1 must be a whole number"),
        ("[a]\nmodel = 'a.gguf'\ntemp = -1\n", r"\[a\]: --temperature -1\.0 must be"),
        ("[a]\nmodel = 'a.gguf'\ntemp = false\n", r"line 3: --temperature must have one value.*not False"),
        ("temp = true\n[a]\nmodel = 'a.gguf'\n", r"line 1: --temperature must have one value.*not True"),
        ("[a]\nmodel = 'a.gguf'\nctx = [1, 2]\n", r"line 3: --ctx must have one value"),
        ("[a]\nmodel = 'a.gguf'\nmmap = 'no'\n", r"line 3: --mmap must have true or false, not 'no'"),
        ("[a]\nctx = 3\n", r'\[a\] must have model = "FILE"'),
        ("model = 'a.gguf'\n[a]\n", "model must stand in a table"),
        ("ctx = 3\n", "has no model"),
        ("[a\n", r"is no TOML"),
        ("[a]\nmodel = 'a.gguf'\n[b]\nmodel='b.gguf'\nserved-name = ['a']\n", "two models have the name 'a'"),
    ],
)
def test_wrong_files_are_refused_with_place_and_name(folder: Path, launched: list[Any], text: str, words: str) -> None:
    (folder / "models.toml").write_text(text)
    with pytest.raises(InvalidRequestError, match=words):
        serve("--models", folder / "models.toml")
    assert launched == []


@pytest.mark.parametrize("keys", [("n_ctx", "ctx"), ("ctx", "n_ctx")])
def test_option_of_a_table_replaces_one_of_the_file_in_any_spelling(
    folder: Path, launched: list[Any], keys: tuple[str, str]
) -> None:
    (folder / "models.toml").write_text(f"{keys[0]} = 512\n[a]\nmodel = 'a.gguf'\n{keys[1]} = 1024\n")
    serve("--models", folder / "models.toml")
    (front,) = launched
    assert front.models[0].llm.n_ctx == 1024


@pytest.mark.parametrize("line", ["mlock = false", "use_mlock = false"])
def test_table_can_undo_each_option_of_the_command_line(folder: Path, launched: list[Any], line: str) -> None:
    undone = f"{line}\nmmap = true\nkv-offload = true\nall-threads = false\nlora-scaled = []\n"
    undone += "dry-sequence-breaker = []\n"
    (folder / "models.toml").write_text(f"[a]\nmodel = 'a.gguf'\n{undone}[b]\nmodel = 'b.gguf'\n")
    flags = ["--mlock", "--no-mmap", "--no-kv-offload", "--all-threads", "--lora-scaled", f"{folder / 'l.gguf'}:0.5"]
    serve("--models", folder / "models.toml", *flags, "--dry-sequence-breaker", "x")
    (front,) = launched
    names = ("use_mlock", "use_mmap", "offload_kqv", "all_threads")
    of_a, of_b = ([getattr(model.llm, name) for name in names] for model in front.models)
    assert (of_a, of_b) == ([False, True, True, False], [True, False, False, True])
    assert [len(model.llm.adapters) for model in front.models] == [0, 1]
    assert [dict(model.settings.sampling) for model in front.models] == [{}, {"dry_sequence_breakers": ["x"]}]


@pytest.mark.parametrize(("line", "expected"), [("no-mmproj = true", False), ("no_mmproj = false", None), ("", None)])
def test_options_may_have_the_name_of_their_opposites(
    folder: Path, launched: list[Any], line: str, expected: object
) -> None:
    (folder / "models.toml").write_text(f'[a]\nmodel = "a.gguf"\n{line}\n[b]\nmodel = "b.gguf"\n')
    serve("--models", "models.toml")
    (front,) = launched
    assert [model.llm.mmproj for model in front.models] == [expected, None]


def test_table_can_leave_out_a_projector_that_is_given_for_all(folder: Path, launched: list[Any]) -> None:
    (folder / "p.gguf").write_bytes(b"GGUF")
    text = 'mmproj = "p.gguf"\n[a]\nmodel = "a.gguf"\nno-mmproj = true\n[b]\nmodel = "b.gguf"\n'
    (folder / "models.toml").write_text(text)
    serve("--models", "models.toml")
    (front,) = launched
    assert [model.llm.mmproj and Path(model.llm.mmproj).name for model in front.models] == [False, "p.gguf"]


def test_table_can_have_a_projector_beside_no_mmproj_for_all(folder: Path, launched: list[Any]) -> None:
    (folder / "p.gguf").write_bytes(b"GGUF")
    (folder / "models.toml").write_text('[a]\nmodel = "a.gguf"\nmmproj = "p.gguf"\n[b]\nmodel = "b.gguf"\n')
    serve("--models", "models.toml", "--no-mmproj")
    (front,) = launched
    assert [model.llm.mmproj and Path(model.llm.mmproj).name for model in front.models] == ["p.gguf", False]


def test_missing_files_are_reported_at_the_start(folder: Path, launched: list[Any]) -> None:
    with pytest.raises(ModelLoadError, match=r"no such file: .*c\.gguf"):
        serve("-m", folder / "a.gguf", "-m", folder / "c.gguf")
    (folder / "models.toml").write_text("[c]\nmodel = 'c.gguf'\n")
    with pytest.raises(ModelLoadError, match=r"models\.toml: \[c\]: no such file: .*c\.gguf"):
        serve("--models", folder / "models.toml")
    with pytest.raises(InvalidRequestError, match=r"cannot read the models from .*none\.toml: No such file"):
        serve("--models", folder / "none.toml")


def test_options_of_one_model_are_refused_for_several(folder: Path, launched: list[Any]) -> None:
    two = ("-m", folder / "a.gguf", "-m", folder / "b.gguf")
    with pytest.raises(InvalidRequestError, match="--served-name is for one model"):
        serve(*two, "-a", "x")
    with pytest.raises(InvalidRequestError, match="two models have the name 'a'"):
        serve("-m", folder / "a.gguf", "-m", folder / "a.gguf")
    with pytest.raises(InvalidRequestError, match="--models-max is for several models"):
        serve("-m", folder / "a.gguf", "--models-max", "1")
    (folder / "models.toml").write_text("[a]\nmodel = 'a.gguf'\n")
    with pytest.raises(InvalidRequestError, match="give --model or --models, not both"):
        serve(*two, "--models", folder / "models.toml")


def test_one_model_has_a_worker_of_its_own_unless_it_sleeps(folder: Path, launched: list[Any]) -> None:
    serve("-m", folder / "a.gguf")
    serve("-m", folder / "a.gguf", "-s", "3", "-c", "100")
    serve("-m", folder / "a.gguf", "--idle-seconds", "60")
    alone, given, sleeps = launched
    assert isinstance(alone, WorkerConfig)
    assert (alone.fit, given.fit) == (("n_ctx", "n_seq_max"), ())
    assert (given.llm.n_ctx, given.llm.n_seq_max) == (100, 3)
    assert isinstance(sleeps, FrontConfig)
    assert (len(sleeps.models), sleeps.idle_seconds, sleeps.models[0].settings.served_names) == (1, 60.0, ())
