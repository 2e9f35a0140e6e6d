"""Tests of an install without extras: all commands except serve and pull work with the packages of `pip install .`."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Code for a child process: it reads names of modules from stdin, and makes their import fail.
WITHOUT = """
import sys

class Without:
    absent = set(sys.stdin.read().split())

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.absent:
            return self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
MAIN = "from pymtp_command import main; main()"
HELP = """
from pymtp.cli import app_main
for command in sys.argv[1:]:
    try:
        app_main([command, "--help"])
    except SystemExit as end:
        print(f"{command} ended with {end.code}")
"""
COMMANDS = ("info", "chat", "batch", "prefix", "bench", "tap", "serve", "pull")


def needed(package: str, known: set[str]) -> set[str]:
    """Collect the names of a package and of all packages that it needs without extras."""
    package = canonicalize_name(package)
    if package not in known:
        known.add(package)
        try:
            requirements = requires(package) or []
        except PackageNotFoundError:
            requirements = []
        for line in requirements:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, known)
    return known


@cache
def absent() -> list[str]:
    """List the modules of this environment that an install without extras would not have."""
    bare = needed("pymtp", set())
    return [
        module
        for module, packages in packages_distributions().items()
        if not bare & {canonicalize_name(package) for package in packages}
    ]


def run(*arguments: str, program: str = MAIN) -> subprocess.CompletedProcess[str]:
    given = "\n".join(absent())
    command = [sys.executable, "-I", "-c", WITHOUT + program, *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)


def test_install_without_extras_lacks_the_packages_of_extras() -> None:
    left_out = absent()
    extras = {
        "fastapi",
        "uvicorn",
        "prometheus_client",
        "huggingface_hub",
        "prompt_toolkit",
        "ray",
        "matplotlib",
        "gguf",
        "safetensors",
    }
    assert extras <= set(left_out)
    assert not {"pymtp", "numpy", "cffi", "jinja2", "rich", "typer"} & set(left_out)


def test_generate_works_without_extras() -> None:
    done = run("generate", "Once upon a time", "--max-tokens", "5", "--seed", "1")
    assert (done.returncode, done.stderr.count("Error")) == (0, 0), done.stderr
    assert done.stdout.strip()


def test_help_works_without_extras() -> None:
    done = run(*COMMANDS, program=HELP)
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if " ended with " in line] == [
        f"{command} ended with 0" for command in COMMANDS
    ]
    assert done.stdout.count("--help") >= len(COMMANDS)


def test_serve_without_extras_names_the_packages_that_it_needs() -> None:
    done = run("serve")
    assert done.returncode != 0
    assert "fastapi" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("pull", "owner/name"), ("info", "hf:owner/name")])
def test_hub_model_without_extras_is_refused_with_the_name_of_the_package(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "pip install huggingface-hub" in done.stderr
    assert "Traceback" not in done.stderr
