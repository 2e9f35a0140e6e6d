"""Tests of build_info and the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sources import Paths, Pin

import pymtp
from pymtp import native
from pymtp.model.model import Model
from pymtp.native import build_info


def test_build_info_names_the_components() -> None:
    info = pymtp.build_info()
    assert info["llama_cpp_commit"] == Pin.read(Paths.default().requirements).commit
    assert info["patches"][0].startswith("0001-")
    assert "CPU" in info["backends"]
    assert info["cpu_features"]
    assert info["devices"][0]["memory_total"] > 0


def test_native_log_is_written_to_python_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "pymtp.native"):
        Model().close()
    assert any("qwen35" in record.message for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_build_info_lists_features_by_backend() -> None:
    told = "CUDA : ARCHS = 860,900 | USE_GRAPHS = 1 | FA_QUANTS = f16-f16;q8_0-q8_0 | CPU : SSE3 = 1 | AMX = 0 | "
    assert build_info._features(told) == {
        "CUDA": ["ARCHS=860,900", "USE_GRAPHS", "FA_QUANTS=f16-f16;q8_0-q8_0"],
        "CPU": ["SSE3"],
    }


def test_error_at_the_start_of_a_backend_is_kept_for_the_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "_started", False)
    monkeypatch.setattr(native, "startup_errors", [])
    native.pymtp_on_log(4, native.ffi.new("char[]", b"ggml_cuda_init: no driver\n"))
    assert native.startup_errors == ["ggml_cuda_init: no driver"]
    assert caplog.messages == []


@pytest.fixture
def built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a build with CUDA, on a machine with a driver that is too old."""
    monkeypatch.setattr(build_info, "_cuda_architectures", lambda: ["90"])
    monkeypatch.setattr(build_info, "_finds_gpu", lambda: False)
    monkeypatch.setattr(build_info, "startup_errors", ["the driver is too old"])
    build_info.warn_without_gpu.cache_clear()
    yield
    build_info.warn_without_gpu.cache_clear()


@pytest.mark.usefixtures("built_for_cuda")
def test_cuda_build_without_a_gpu_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pymtp.native"):
        Model(n_gpu_layers=0).close()
        Model(vocab_only=True).close()
        assert caplog.messages == []
        Model().close()
        Model(n_gpu_layers=1).close()
    assert caplog.messages == [
        "pymtp was built with CUDA, but finds no GPU (the driver is too old): models run on the CPU"
    ]


@pytest.mark.usefixtures("built_for_cuda")
def test_cuda_build_with_a_gpu_does_not_warn(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(build_info, "_finds_gpu", lambda: True)
    build_info.warn_without_gpu()
    assert caplog.messages == []


def test_cpu_build_does_not_warn_about_gpus(caplog: pytest.LogCaptureFixture) -> None:
    if build_info.build_info()["cuda_architectures"]:
        pytest.skip("built with CUDA")
    build_info.warn_without_gpu.cache_clear()
    with caplog.at_level(logging.WARNING, "pymtp.native"):
        Model(n_gpu_layers=99).close()
    assert caplog.messages == []
