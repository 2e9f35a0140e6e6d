"""Claims about build_info and the log."""

from __future__ import annotations

import logging

import pytest

import pymtp
from pymtp.model import Model


def test_build_info_names_what_is_inside() -> None:
    info = pymtp.build_info()
    assert info["llama_cpp_commit"] == "0c1e57098"
    assert info["patches"][0].startswith("0001-")
    assert "CPU" in info["backends"]
    assert info["cpu_features"]
    assert info["devices"][0]["memory_total"] > 0


def test_the_native_log_is_pythons(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, "pymtp.native"):
        Model().close()
    assert any("qwen35" in record.message for record in caplog.records)
    assert capfd.readouterr() == ("", "")
