"""Tests of build_wheel.py: invalid options are refused before the build."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NoReturn

import build_wheel
import pytest
import typer


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*command: Any, **options: Any) -> NoReturn:
        pytest.fail(f"it runs {command}")

    monkeypatch.setattr(build_wheel.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(build_wheel, "_tools", start)


@pytest.mark.parametrize("variants", ["", "v9", "v2,,v3", "v2, v3", "v3,v3", "i8mm", "all,v2"])
def test_unknown_variants_are_refused_before_the_build(variants: str, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="must be all, or different ones of v2, v3,"):
        build_wheel.main(variants=variants, processor="x86_64", output=tmp_path)


def test_variants_are_those_of_the_processor_family(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="must be all, or different ones of armv8, dotprod, i8mm"):
        build_wheel.main(variants="v3", processor="aarch64", output=tmp_path)


def test_family_without_variants_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build_wheel.platform, "machine", lambda: "riscv64")
    for processor in ("riscv64", "arm64"):
        with pytest.raises(typer.BadParameter, match=f"--processor {processor} is not known"):
            build_wheel.main(variants="all", processor=processor, output=tmp_path)


def test_missing_compiler_is_reported_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_wheel.shutil, "which", lambda name: None)
    with pytest.raises(typer.BadParameter, match=r"no aarch64-linux-gnu-gcc, .*: apt install g\+\+-aarch64-linux-gnu"):
        build_wheel.main(variants="all", processor="aarch64", output=tmp_path)


@pytest.mark.parametrize("variants", ["all", "v2", "v4,v2"])
def test_known_variants_are_built(variants: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variants_built = []
    monkeypatch.setattr(build_wheel, "_tools", lambda: tmp_path)

    class StartedError(Exception):
        pass

    def start(command: Any, env: dict[str, str], **options: Any) -> NoReturn:
        variants_built.append(env["PYMTP_VARIANTS"])
        raise StartedError

    monkeypatch.setattr(subprocess, "run", start)
    with pytest.raises(StartedError):
        build_wheel.main(variants=variants, processor="x86_64", output=tmp_path)
    assert variants_built == [variants]
