"""Claims about the reports in benchmarks/: a command shows each of a bench of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

from pymtp.cli import app_main

RECORDS = {path: json.loads(path.read_text()) for path in sorted((ROOT / "benchmarks").glob("*.json"))}
OURS = {path: record["bench"] for path, record in RECORDS.items() if isinstance(record, dict) and "bench" in record}
BENCHES = ("decode", "batch", "prefill", "prefix", "rows")


@pytest.mark.parametrize("path", [path for path, bench in OURS.items() if bench in BENCHES], ids=lambda path: path.stem)
def test_a_published_report_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app_main(["bench", OURS[path], "--from", str(path), "-o", "md"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    assert RECORDS[path]["settings"]["model"] in shown.out
    assert "\n|" in shown.out
