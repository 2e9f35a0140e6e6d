"""Tests of the parts of tools/checks/quantized_models.py; it runs llama-quantize, which takes minutes to build."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import quantized_models as check
import typer
from common import write_json
from makers.gguf_read import open_gguf
from makers.make_model import make_model
from makers.weight_mixes import LLAMA, PUBLISHED

from pymtp import Model

USAGE = """usage: llama-quantize [--help] [--pure]
      2  or  NOT_THIS : before the list
 allowed quantization types
-----------------------------------------------------------------------------

  40  or  Q1_0    :  1.125 bpw quantization
  38  or  MXFP4_MOE :  MXFP4 MoE
  24  or  IQ1_S   :  1.56 bpw quantization
  27  or  IQ3_M   :  3.66 bpw quantization mix
  15  or  Q4_K    : alias for Q4_K_M
  15  or  Q4_K_M  :  4.58G, +0.1754 ppl @ Llama-3-8B
   1  or  F16     : 14.00G, +0.0020 ppl @ Mistral-7B
          COPY    : only copy tensors, no quantizing
"""


def test_types_are_read_from_the_usage_of_the_quantizer() -> None:
    types = check.read_types(USAGE)
    assert types == ["Q1_0", "MXFP4_MOE", "IQ1_S", "IQ3_M", "Q4_K_M"]
    kinds = check.all_kinds(types)
    assert kinds[: len(types)] == types
    assert kinds[-len(PUBLISHED) :] == list(PUBLISHED)
    assert {"nvfp4:pure", "iq2_s:pure", "q4_k:pure"} < set(kinds)
    assert "f16:pure" not in kinds
    assert [check.own_mix(kind) for kind in types] == [None, "mxfp4-moe", "mix-iq1_s", "iq3_m", "q4_k_m"]
    assert all(mix in LLAMA for mix in filter(None, map(check.own_mix, kinds)))


def test_quantizer_gets_a_list_of_types_for_a_mix_that_it_does_not_have(tmp_path: Path) -> None:
    options = check.quantizer_options("ud-iq2_xxs", check.SHAPES["experts"], tmp_path)
    assert options == ["--tensor-type-file", str(tmp_path / "types.txt"), "Q8_0"]
    lines = (tmp_path / "types.txt").read_text().splitlines()
    assert r"^blk\.0\.ffn_up_exps\.weight$=iq2_xxs" in lines
    assert not any("norm" in line for line in lines)
    assert check.quantizer_options("ud-iq2_xxs", None, tmp_path) is None
    assert check.quantizer_options("iq2_s:pure", None, tmp_path) == ["--tensor-type", ".*=iq2_s", "Q8_0"]


def test_importance_matrix_has_the_columns_of_each_matrix_and_expert(tmp_path: Path) -> None:
    (model,) = make_model("tiny-moe", tmp_path / "m.gguf", weights=False)
    check.write_imatrix(model, tmp_path / "imatrix.gguf")
    written = {tensor.name: tensor.data.shape for tensor in open_gguf(tmp_path / "imatrix.gguf").tensors}
    assert written["blk.0.ffn_up_exps.weight.in_sum2"] == (4, 96)
    assert written["blk.0.ffn_up_exps.weight.counts"] == (4, 1)
    assert written["token_embd.weight.in_sum2"] == (1, 96)
    assert not any("norm" in name for name in written)


def test_measured_rows_and_cuts_of_an_exact_model_do_not_differ(tmp_path: Path) -> None:
    shape = replace(check.SHAPES["dense"], n_vocab=320)
    (file,) = make_model(shape, tmp_path / "m.gguf", weight_type="q4_0")
    with Model(file) as model:
        assert (check.row_differences(model, sizes=(2, 3)), check.cut_differences(model, n=5, cuts=[[2]])) == (0, 0)


def test_unknown_type_is_refused_with_the_known_ones() -> None:
    assert check.chosen("--types", " b,a ", ["a", "b", "c"]) == ["b", "a"]
    assert check.chosen("--types", None, ["a", "b"]) == ["a", "b"]
    with pytest.raises(typer.BadParameter, match="--types d not known: use a, b"):
        check.chosen("--types", "a,d", ["a", "b"])


def test_results_are_written_after_each_model_and_say_if_they_are_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = []

    def work(_measure: object, jobs: list[check.Job], _processes: int) -> Iterator[tuple[str, str]]:
        for job in jobs:
            yield job.kind, "skipped here"
            told.append(json.loads((tmp_path / "out.json").read_text())["complete"])

    monkeypatch.setattr(check, "build", lambda *_, **__: "llama-quantize")
    monkeypatch.setattr(check.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=USAGE))
    monkeypatch.setattr(check, "make_sources", lambda names, folder: dict.fromkeys(names, folder))
    monkeypatch.setattr(check.same_text, "in_processes", work)
    with pytest.raises(typer.Exit):
        check.main("IQ1_S,Q1_0", "dense", output=tmp_path / "out.json")
    assert told == [False, True]


def test_result_that_cannot_be_written_leaves_the_one_of_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write_half(path: Path, text: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError("no space left on device")

    path = tmp_path / "out.json"
    write_json(path, "a check", rows=1)
    before = path.read_text()
    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="no space"):
        write_json(path, "a check", rows=2)
    assert path.read_text() == before
