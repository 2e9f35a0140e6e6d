"""Tests of projectors: which files load, which images they take, and what they refuse.

tests/exactness/test_image_oracle.py compares their rows with transformers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import shipped
from gguf import GGUFReader, GGUFValueType
from makers.gguf_parts import Key, parse
from makers.make_mmproj import WEIGHTS, make_mmproj
from makers.vision_shapes import PROJECTORS

from pymtp import ClosedError, InvalidRequestError, ModelLoadError, NativeError
from pymtp.model.model import Model
from pymtp.model.projector import Projector

SHAPE = PROJECTORS["demo"]


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mmproj("demo", tmp_path_factory.mktemp("models") / "mmproj.gguf")


@pytest.fixture(scope="module")
def projector(mmproj: Path) -> Iterator[Projector]:
    projector = Projector(shipped(), mmproj, n_threads=1)
    yield projector
    projector.close()


def pixels(width: int, height: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("weight_type", WEIGHTS)
def test_a_projector_of_each_type_encodes_rows_of_the_models_width(tmp_path: Path, weight_type: str) -> None:
    projector = Projector(shipped(), make_mmproj("demo", tmp_path / "m.gguf", weight_type=weight_type), n_threads=2)
    rows = projector.encode(pixels(160, 96))
    assert rows.shape == (5 * 3, shipped().n_embd)
    assert np.isfinite(rows).all()
    assert rows.std(axis=0).max() > 0.01  # the tokens differ
    projector.close()


def test_equal_images_have_equal_bits_whatever_was_encoded_before(projector: Projector, mmproj: Path) -> None:
    image = pixels(200, 150)
    first = projector.encode(image)
    for width, height in ((64, 64), (640, 320)):
        projector.encode(pixels(width, height))
    assert projector.encode(image).tobytes() == first.tobytes()
    other = Projector(shipped(), mmproj, n_threads=2)
    assert other.encode(image).tobytes() == first.tobytes()
    other.close()


@pytest.mark.parametrize(
    ("size", "grid"),
    [((1, 1), (3, 3)), ((32, 32), (3, 3)), ((320, 64), (10, 2)), ((100, 70), (4, 3)), ((4000, 4000), (64, 64))],
)
def test_images_keep_their_ratio_between_the_least_and_most_tokens(
    projector: Projector, size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert projector.grid(*size) == grid


def test_limits_of_tokens_are_kept(mmproj: Path) -> None:
    projector = Projector(shipped(), mmproj, n_threads=1, min_tokens=20, max_tokens=40)
    for size in ((32, 32), (3000, 1000), (50, 800)):
        nx, ny = projector.grid(*size)
        assert 20 <= nx * ny <= 40, size
        assert projector.encode(pixels(*size)).shape[0] == nx * ny
    projector.close()
    projector = Projector(shipped(), mmproj, n_threads=1, max_tokens=40)
    for size in ((20, 4000), (2000, 10)):
        with pytest.raises(InvalidRequestError, match=r"too narrow: it would have [0-9]+ tokens, and may have 40"):
            projector.grid(*size)
    projector.close()
    for least, most in ((5000, None), (None, 4)):
        projector = Projector(shipped(), mmproj, n_threads=1, min_tokens=least, max_tokens=most)
        nx, ny = projector.grid(640, 640)
        assert (nx * ny >= 5000) if least else (nx * ny <= 4)
        projector.close()
    for least, most, what in ((0, None, "image_min_tokens"), (None, 2**20, "image_max_tokens"), (9, 8, "more than")):
        with pytest.raises(InvalidRequestError, match=what):
            Projector(shipped(), mmproj, n_threads=1, min_tokens=least, max_tokens=most)


def test_impossible_images_are_refused_with_the_reason(projector: Projector) -> None:
    for width, height, what in (
        (0, 5, "empty"),
        (-1, 5, "empty"),
        (1, 201, "narrow"),
        (40000, 4000, "32768 pixels"),
        (2**40, 1, "too large"),
    ):
        with pytest.raises(InvalidRequestError, match=what):
            projector.grid(width, height)
    for array in (pixels(8, 8).astype(np.float32), pixels(8, 8)[..., :2], pixels(8, 8)[0], [[1]]):
        with pytest.raises(InvalidRequestError, match="uint8"):
            projector.encode(array)


def test_projector_given_as_the_model_is_refused(mmproj: Path) -> None:
    with pytest.raises(ModelLoadError, match="it is a projector, which goes with a model: mmproj"):
        Model(mmproj)


def test_a_projector_of_another_model_is_refused(dense: Model, mmproj: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"of another model: it makes rows of {shipped().n_embd}"):
        Projector(dense, mmproj, n_threads=1)
    with pytest.raises(ModelLoadError, match="no projector, its architecture is 'qwen35'"):
        Projector(shipped(), shipped().path, n_threads=1)
    (tmp_path / "text.gguf").write_text("nothing")
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        Projector(shipped(), tmp_path / "text.gguf", n_threads=1)
    with pytest.raises(FileNotFoundError):
        Projector(shipped(), tmp_path / "none.gguf", n_threads=1)


def renamed(old: str, new: str) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-5000], "cut off"),
        (lambda data: data[:3000], "not a readable GGUF file|cut off"),
        (renamed("v.blk.0.ln1.weight", "v.blk.0.ln9.weight"), "'v.blk.0.ln1.weight' is missing"),
        (renamed("qwen3vl_merger", "qwen9vl_merger"), "of kind 'qwen9vl_merger'"),
        (renamed("clip.has_vision_encoder", "clip.has_visiom_encoder"), "not for images"),
        (renamed("clip.vision.block_count", "clip.vision.block_xount"), "no clip.vision.block_count"),
    ],
)
def test_a_damaged_projector_is_refused_with_what_is_wrong(
    mmproj: Path, tmp_path: Path, damage: Callable[[bytes], bytes], what: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(damage(mmproj.read_bytes()))
    with pytest.raises(ModelLoadError, match=what):
        Projector(shipped(), tmp_path / "m.gguf", n_threads=1)


@pytest.mark.parametrize(
    "key", ["general.name", "general.description", "clip.vision.mm_patch_merge_type", "clip.vision.n_wa_pattern"]
)
def test_key_of_another_type_is_refused_by_name(mmproj: Path, tmp_path: Path, key: str) -> None:
    file = parse(mmproj.read_bytes())
    others = [one for one in file.keys if one.name != key.encode()]
    damaged = replace(file, keys=[*others, Key(key.encode(), int(GGUFValueType.BOOL), [b"\1"])])
    (tmp_path / "m.gguf").write_bytes(damaged.encoded())
    with pytest.raises(ModelLoadError, match=f"{key} is of type bool, it must be"):
        Projector(shipped(), tmp_path / "m.gguf", n_threads=1)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"n_embd": 60}, "multiple of 8"),
        ({"merge": 1}, "spatial_merge_size is 1"),
        ({"std": (0.5, 0.0, 0.5)}, "image_std"),
        ({"mean": (0.5, float("nan"), 0.5)}, "image_mean"),
    ],
)
def test_a_projector_of_an_impossible_shape_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    path = make_mmproj(replace(SHAPE, **changes), tmp_path / "m.gguf")
    with pytest.raises(ModelLoadError, match=what):
        Projector(shipped(), path, n_threads=1)


def test_values_that_are_not_finite_are_no_rows(mmproj: Path, tmp_path: Path) -> None:
    data = bytearray(mmproj.read_bytes())
    bias = next(tensor for tensor in GGUFReader(mmproj).tensors if tensor.name == "mm.2.bias")
    data[bias.data_offset : bias.data_offset + 4] = np.float32("nan").tobytes()
    (tmp_path / "m.gguf").write_bytes(data)
    projector = Projector(shipped(), tmp_path / "m.gguf", n_threads=1)
    with pytest.raises(Exception, match="not finite"):
        projector.encode(pixels(64, 64))
    projector.close()


def test_an_image_is_encoded_in_turns_with_the_same_bits(projector: Projector) -> None:
    image = pixels(320, 320)
    expected, turns = projector.encode(image).tobytes(), 0
    projector.begin(image)
    while (rows := projector.advance(0.0)) is None:
        turns += 1
    assert rows.tobytes() == expected
    assert turns >= SHAPE.n_layer


def test_an_image_that_is_given_up_between_two_layers_ends_there(projector: Projector) -> None:
    image = pixels(320, 320)
    expected = projector.encode(image).tobytes()
    for n_turns in range(1, SHAPE.n_layer):
        before = projector.n_layers
        projector.begin(image)
        while projector.n_layers < before + n_turns:
            assert projector.advance(0.0) is None
        projector.end()
        projector.end()
        assert projector.n_layers == before + n_turns
    with pytest.raises(InvalidRequestError, match="encodes no image"):
        projector.advance(0.0)
    assert projector.encode(image).tobytes() == expected


def test_one_image_is_encoded_at_a_time(projector: Projector) -> None:
    projector.begin(pixels(64, 64))
    with pytest.raises(InvalidRequestError, match="another image"):
        projector.begin(pixels(64, 64))
    projector.end()
    assert np.isfinite(projector.encode(pixels(64, 64))).all()


def test_a_projector_closed_while_it_encodes_ends_that(mmproj: Path) -> None:
    for close_in_call in (False, True):
        projector = Projector(shipped(), mmproj, n_threads=1)
        projector.begin(pixels(320, 320))
        projector.advance(0.0)
        if close_in_call:  # as a signal handler does
            with projector._handle.lock:
                projector._handle.caller = threading.get_ident()
                projector.close()
                projector._handle.caller, projector._handle.pointer = 0, None
        else:
            projector.close()
        assert projector._handle.pointer is None
        with pytest.raises(ClosedError):
            projector.advance(0.0)


def test_interrupted_encoding_can_begin_anew(projector: Projector, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = projector.advance

    def interrupt(seconds: float) -> Any:
        monkeypatch.undo()
        advance(0.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(projector, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        projector.encode(pixels(320, 320))
    assert np.isfinite(projector.encode(pixels(64, 64))).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_can_only_free_a_projector_that_its_parent_uses(mmproj: Path) -> None:
    used = Projector(shipped(), mmproj, n_threads=1)
    used.begin(pixels(320, 320))
    used.advance(0.0)
    child = os.fork()
    if child == 0:
        try:
            used.advance(0.0)
        except NativeError:
            used.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    while used.advance(1.0) is None:
        pass
    used.close()


def test_threads_share_a_projector(projector: Projector) -> None:
    images = [pixels(96 + 32 * i, 64, i) for i in range(4)]
    expected = [projector.encode(image).tobytes() for image in images]
    found: dict[int, bytes] = {}

    def encode(i: int) -> None:
        projector.grid(500, 400)
        found[i] = projector.encode(images[i]).tobytes()

    threads = [threading.Thread(target=encode, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


def test_a_closed_projector_refuses_calls(mmproj: Path) -> None:
    projector = Projector(shipped(), mmproj, n_threads=1)
    assert projector.nbytes > SHAPE.n_params
    projector.close()
    projector.close()
    for call in (lambda: projector.grid(64, 64), lambda: projector.encode(pixels(64, 64))):
        with pytest.raises(ClosedError):
            call()
