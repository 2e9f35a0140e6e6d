"""Tests of `pymtp.generate`: it loads a model, generates, and keeps the model for the next call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from makers.lora import make_delta, write_adapter

import pymtp
from pymtp import LLM, ClosedError, InvalidRequestError, ModelLoadError, SamplingParams

MODULE = sys.modules["pymtp.generate"]  # pymtp.generate is the function, so the module comes from sys.modules


def test_generate_takes_llm_and_sampling_keywords_and_keeps_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LLM] = []
    original = LLM._load

    def spy(self: LLM, *args: Any, **keywords: Any) -> None:
        made.append(self)
        original(self, *args, **keywords)

    monkeypatch.setattr(LLM, "_load", spy)
    monkeypatch.setattr(MODULE, "_last", None)  # an earlier test may have left a model with the same keywords
    model = {"n_ctx": 512, "n_threads": 1}
    first = pymtp.generate("import ", max_tokens=8, **model)
    assert pymtp.generate("import ", max_tokens=8, temperature=0.0, **model).text == first.text
    assert len(made) == 1
    assert pymtp.generate(["import ", "def "], max_tokens=8, **model)[0].text == first.text
    pymtp.generate("import ", max_tokens=8, draft_tokens=1, **model)
    assert len(made) == 2
    with pytest.raises(ClosedError):
        made[0].generate("import ", SamplingParams(8))
    made[1].close()


def test_generate_reloads_the_model_after_a_change_in_a_list_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    model: dict[str, Any] = {"n_ctx": 512, "n_threads": 1}
    overrides: dict[str, str] = {}
    kept = []
    for changed in ("ffn_up", "ffn_up", "ffn_down"):
        overrides[changed] = "CPU"
        pymtp.generate("import ", max_tokens=2, override_tensor=overrides, **model)
        kept.append(MODULE._last[1])  # type: ignore[index]
    assert kept[0] is kept[1] is not kept[2]
    with pytest.raises(InvalidRequestError, match="n_ctx"):
        pymtp.generate("import ", max_tokens=2, **{**model, "n_ctx": np.array([512, 512])})
    with pytest.raises(ModelLoadError, match="no such adapter"):
        pymtp.generate("import ", max_tokens=2, lora=iter(["nowhere.gguf"]), **model)
    kept[2].close()


def test_generate_errors_name_unknown_keywords_and_missing_models() -> None:
    with pytest.raises(
        TypeError, match=r"^generate\(\) got an unexpected keyword argument 'max_token'. Did you mean 'max_tokens'\?$"
    ):
        pymtp.generate("import ", max_token=8)
    with pytest.raises(TypeError, match=r"'n_predict'. Did you mean 'max_tokens'"):
        pymtp.generate("import ", n_predict=8)
    with pytest.raises(ModelLoadError, match="no such file"):
        pymtp.generate("import ", model="nowhere.gguf")


@pytest.mark.parametrize(
    "wrong",
    [{"n_ctx": -1}, {"type_k": "zz"}, {"cache_bytes": -1}, {"rope_scaling": "zz"}, {"cache_prompt": 3}, {"lora": "no"}],
    ids=str,
)
def test_generate_keeps_its_model_after_an_invalid_option(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    pymtp.generate("import ", max_tokens=1, n_ctx=256, n_threads=1)
    kept = MODULE._last[1]  # type: ignore[index]
    with pytest.raises(pymtp.PymtpError):
        pymtp.generate("import ", max_tokens=1, **{"n_ctx": 256, "n_threads": 1, **wrong})
    assert MODULE._last is not None
    assert MODULE._last[1] is kept
    kept.close()


def test_generate_resolves_relative_paths_at_each_call(
    headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    (tmp_path / "sub").mkdir()
    (tmp_path / "m.gguf").symlink_to(pymtp.model.model.demo_model())
    (tmp_path / "sub" / "m.gguf").symlink_to(headless)
    options: dict[str, Any] = {"model": "m.gguf", "n_ctx": 256, "n_threads": 1, "max_tokens": 1}
    heads = []
    for place in (tmp_path, tmp_path, tmp_path / "sub"):
        monkeypatch.chdir(place)
        pymtp.generate("import ", **options)
        heads.append((MODULE._last[1], MODULE._last[1].model.has_head))  # type: ignore[index]
    assert [head for _, head in heads] == [True, True, False]
    assert heads[0][0] is heads[1][0]
    heads[2][0].close()


def test_generate_resolves_dot_dot_after_a_symlink_like_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "far" / "m.gguf").symlink_to(pymtp.model.model.demo_model())
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path)
    pymtp.generate("import ", model="link/../m.gguf", n_ctx=256, n_threads=1, max_tokens=1)
    MODULE._last[1].close()  # type: ignore[index]


class Bytes:
    def __fspath__(self) -> bytes:
        return b"m.gguf"


class Number:
    def __fspath__(self) -> Any:
        return 3


@pytest.mark.parametrize(
    "model",
    ["", Bytes(), Number(), "m.gguf", "a\0b"],
    ids=["empty", "bytes", "number", "relative", "null"],
)
def test_generate_refuses_odd_models_with_the_error_of_llm(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(pymtp.PymtpError) as expected:
        LLM(model)
    with pytest.raises(type(expected.value)) as found:
        pymtp.generate("import ", model=model)
    assert str(found.value) == str(expected.value)


def test_generate_keeps_a_model_whose_adapter_file_was_deleted(
    demo_f32: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "_last", None)
    lora = write_adapter(tmp_path / "a.gguf", make_delta(demo_f32, ["blk.0.ffn_up.weight"], seed=1), alpha=4.0)
    options: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "lora": lora, "max_tokens": 4}
    text = pymtp.generate("import ", **options).text
    lora.unlink()
    assert pymtp.generate("import ", **options).text == text
    MODULE._last[1].close()  # type: ignore[index]
