"""Tests of placement options in benches: weights are placed in the given buffers, and warnings are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymtp import Model
from pymtp.cli import app_main

RUNS = {
    "bench decode": "--depths none --kinds code --tokens 2 --rounds 1",
    "bench batch": "--sequences 1 --depths none --prompt 8 --tokens 4 --warm-up 1 --rounds 1",
    "bench prefill": "--sizes 64 --depths 1 --gen 2 --rounds 1 --modes none",
    "bench prefix": "--traces alone --scale 0.1 --requests 2 --rounds 1 --n-seq-max 1",
    "bench rows": "--rows 2 --drafts 1 --rounds 1 --memory 1",
    "tap": "--tokens 2",
}


@pytest.mark.parametrize("command", RUNS)
def test_benches_place_weights_by_the_placement_options(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Model] = []
    init = Model.__init__

    def kept(self: Model, *arguments: Any, **keywords: Any) -> None:
        init(self, *arguments, **keywords)
        if not keywords.get("vocab_only"):
            loaded.append(self)

    monkeypatch.setattr(Model, "__init__", kept)
    how = "--json" if command == "tap" else "-o json"
    with pytest.raises(SystemExit) as ended:
        app_main(f"{command} {RUNS[command]} -t 1 --no-mmap -ot nothing=CPU {how}".split())
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    (model,) = loaded
    assert (model.options.override_tensor, model.options.use_mmap) == ((("nothing", "CPU"),), False)
    assert shown.err.count("warning: override_tensor: no tensor that is loaded has a name that matches nothing") == 1
    if command != "tap":
        file = tmp_path / "report.json"
        file.write_text(shown.out)
        with pytest.raises(SystemExit):
            app_main([*command.split(), "--from", str(file), "-o", "md"])
        assert "threads: 1, override_tensor: nothing=CPU, use_mmap: False" in capsys.readouterr().out
        assert json.loads(shown.out)["settings"]["placing"] == {
            "override_tensor": "nothing=CPU",
            "use_mmap": False,
        }
