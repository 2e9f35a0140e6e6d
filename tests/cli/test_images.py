"""Tests of images and projectors on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import PIL.Image
import pytest
from helpers.command import run
from helpers.images import picture
from makers.make_mmproj import make_mmproj


@pytest.fixture(scope="module")
def folder(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the shipped model, its projector, and a picture."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(demo, folder / "model.gguf")
    make_mmproj("demo", folder / "mmproj-model-f16.gguf")
    PIL.Image.fromarray(picture(0, 160, 96)).save(folder / "a.png")
    return folder


GENERATE = ("generate", "def f(x):", "-n", "4", "-t", "1", "--ctx", "256", "-d", "0", "--json")


def test_generate_shows_the_model_an_image_with_the_projector_beside_the_model(folder: Path) -> None:
    image = ("--image", str(folder / "a.png"))
    found = json.loads(run(*GENERATE, *image, *image, "-m", str(folder / "model.gguf")).stdout)
    named = ("--mmproj", str(folder / "mmproj-model-f16.gguf"))
    assert json.loads(run(*GENERATE, *image, *image, *named).stdout)["text"] == found["text"]
    assert found["stats"]["prompt_tokens"] > 2 * 5 * 3


def test_generate_without_a_projector_says_how_to_get_one(folder: Path) -> None:
    done = run(*GENERATE, "--image", str(folder / "a.png"), "-m", str(folder / "model.gguf"), "--no-mmproj")
    assert (done.returncode, done.stdout) == (2, "")
    assert "without a projector" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mmproj", "a.gguf", "--no-mmproj"), "--mmproj and --no-mmproj exclude each other"),
        (("--mmproj", "nowhere.gguf"), "no such projector: nowhere.gguf"),
        (("--image-min-tokens", "9", "--image-max-tokens", "8"), "--image-min-tokens 9 is more than"),
        (("--image", "https://example.com/a.png"), "--image takes files: URLs are not fetched"),
        (("--image-max-tokens", "0"), "--image-max-tokens 0 must be a whole number from 1"),
    ],
)
def test_wrong_options_of_images_are_refused(options: tuple[str, ...], words: str) -> None:
    done = run(*GENERATE, *options)
    assert done.returncode == 2 or "no such" in words
    assert words in done.stderr.splitlines()[-1]


def test_of_several_projectors_beside_a_model_none_is_taken(folder: Path, tmp_path: Path) -> None:
    for name in ("model.gguf", "mmproj-model-f16.gguf"):
        shutil.copy(folder / name, tmp_path / name)
    shutil.copy(folder / "mmproj-model-f16.gguf", tmp_path / "mmproj-b.gguf")
    done = run(*GENERATE, "-m", str(tmp_path / "model.gguf"), "--image", str(folder / "a.png"))
    assert "note: there are 2 projectors beside" in done.stderr
    assert "without a projector" in done.stderr.splitlines()[-1]


def test_info_names_the_projector_beside_the_model(folder: Path) -> None:
    about = json.loads(run("info", str(folder / "model.gguf"), "--json").stdout)["model"]
    assert about["projector_file"] == str(folder / "mmproj-model-f16.gguf")
    without = json.loads(run("info", str(folder / "model.gguf"), "--no-mmproj", "--memory", "--json").stdout)
    assert without["projector_bytes"] == 0


def test_memory_plan_counts_the_projector(folder: Path) -> None:
    size = (folder / "mmproj-model-f16.gguf").stat().st_size
    shown = run("info", str(folder / "model.gguf"), "--memory").stdout
    assert f"The projector takes {size / 2**20:,.1f} MiB more of host memory" in " ".join(shown.split())
    assert json.loads(run("info", str(folder / "model.gguf"), "--memory", "--json").stdout)["projector_bytes"] == size
    assert json.loads(run("info", "--memory", "--json").stdout)["projector_bytes"] == 0
