"""Tests of the reports in benchmarks/: `pymtp bench` shows each report that it can measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT
from markdown_it import MarkdownIt

from pymtp.bench.table import Column, Table, as_markdown
from pymtp.cli import app_main

RECORDS = {path: json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks").glob("*.json"))}
BENCH_OF = {path: record["bench"] for path, record in RECORDS.items() if isinstance(record, dict) and "bench" in record}
BENCHES = ("decode", "batch", "prefill", "prefix", "rows")


@pytest.mark.parametrize(
    "path", [path for path, bench in BENCH_OF.items() if bench in BENCHES], ids=lambda path: path.stem
)
def test_published_report_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app_main(["bench", BENCH_OF[path], "--from", str(path), "-o", "md"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    assert RECORDS[path]["settings"]["model"] in shown.out
    assert "\n|" in shown.out


@pytest.mark.parametrize("name", ["accepted", "decode_seconds", "depths"])
def test_report_with_a_missing_figure_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path, bench in BENCH_OF.items() if bench == "decode")
    record = json.loads(path.read_text())
    for measurement in record["measurements"]:
        del measurement["stats"][name]
    (tmp_path / "damaged.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit) as ended:
        app_main(["bench", "decode", "--from", str(tmp_path / "damaged.json")])
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


def test_markdown_title_escapes_markup() -> None:
    expression = r"blk\.[0-9]*\.ffn_.*=CPU,_exps|_shexp_=CPU,[0-9](ffn)=CPU,&lt;b>~x~`y`"
    shown = as_markdown([Table(expression, [Column("a", "a"), Column("b", "b")], [])], []).split("\n")[0]
    (inline,) = (token for token in MarkdownIt().parse(shown) if token.type == "inline")
    assert "".join(token.content for token in inline.children or ()) == expression
