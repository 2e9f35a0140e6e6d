"""Tests of tools/checks/interrupts.py: it finds nothing, and tells a wrong text of another request."""

from __future__ import annotations

import interrupts
import pytest
from typer.testing import CliRunner

from pymtp import LLM, Model


@pytest.fixture
def app() -> object:
    import typer

    app = typer.Typer()
    app.command()(interrupts.main)
    return app


def test_check_of_interrupts_finds_no_faults(app: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "LIMIT", 10.0)  # seconds: on a busy machine, an end waits for its turn
    result = CliRunner().invoke(app, ["--moments", "2", "--only", "ctrl-c,cancel,close,del,fork"])  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    assert result.output.count("0 faults") == 10


def test_check_of_interrupts_tells_wrong_texts_of_other_requests() -> None:
    with Model() as model:
        with LLM(model, **interrupts.OPTIONS) as llm:
            expected = [llm.generate(prompt, interrupts.PARAMS).token_ids for prompt in interrupts.PROMPTS]
        faults = interrupts.try_moments(model, "ctrl-c", 2, [expected[0], [], []], 2)
    assert len(faults) == 1
    assert "other texts are wrong" in faults[0]


def test_check_of_interrupts_tells_a_late_end_and_a_wrong_text_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "LIMIT", -1.0)
    with Model() as model:
        faults = interrupts.try_moments(model, "cancel", 0, [[7]] * 8, 1)
    assert [fault.split(":")[0] for fault in faults] == ["cancel 0", "cancel"]
