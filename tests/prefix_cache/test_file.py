"""Claims about prefixes in files: they go on with the same bits, and what does not fit is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import BOTH, context, some_tokens
from helpers.moments import CACHES, MOMENTS, SAMPLED, each_cache, goes_on, without_drafts
from helpers.prefix_files import load_prefix, save_prefix, write
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from safetensors.numpy import load_file, save_file

from pymtp import InvalidRequestError, Model
from pymtp.context.context import Context
from pymtp.prefix_cache.file import FORMAT, VERSION, PrefixFile, made_with

FUZZER = Path(__file__).parent.parent.parent / "tools" / "checks" / "fuzz_prefixes.py"


@BOTH
@each_cache(CACHES)
def test_a_prefix_from_a_file_goes_on_with_the_bits_of_the_original(
    model: Model, path: Path, caches: dict[str, Any], mode: str
) -> None:
    with (
        context(model, mode, n_seq_max=2, **caches) as c,
        context(model, mode, n_seq_max=3, **caches) as other,
    ):
        other.prefill(some_tokens(model, 20), 1)
        for moment in MOMENTS[:1] if caches else MOMENTS:
            c.clear()
            other.clear(2)
            token = moment(c, 1)
            save_prefix(c, path, 1)
            wanted_tokens = c.tokens(1)
            other.set_sampling(SAMPLED, 2)
            assert load_prefix(other, path, 2) == wanted_tokens == other.tokens(2)
            assert goes_on(other, 2, token) == goes_on(c, 1, token)
            c.clear()
            begin_again = without_drafts(moment)(c, 0)
            other.clear(2)
            load_prefix(other, path, 2)
            assert goes_on(other, 2, token) == goes_on(c, 0, begin_again)


def test_a_loaded_prefix_has_its_first_token(c: Context, path: Path) -> None:
    save_prefix(c, path)
    load_prefix(c, path, 1)
    c.set_sampling(SAMPLED, 1)
    assert c.first_token(1) == c.first_token(0)


def test_cells_are_read_from_anywhere(dense: Model, path: Path) -> None:
    with context(dense, n_seq_max=2) as c:
        c.prefill(some_tokens(dense, 700))
        save_prefix(c, path)
        with PrefixFile(path, made_with(c)) as file:
            for first, n in ((0, 700), (80, 30), (690, 30), (699, 1)):
                np.testing.assert_array_equal(file.cells(first, n), c.save_cells(0, first, min(n, 700 - first)))


def test_a_file_has_the_states_of_several_places(c: Context, path: Path) -> None:
    tokens, cells = c.tokens(), c.save_cells(0, 0, len(c.tokens()))
    states = {len(tokens): c.save_state()}
    for place in (7, 30):
        c.clear(1)
        c.prefill(tokens[:place], 1)
        states[place] = c.save_state(1)
    write(path, made_with(c), tokens, states, cells)
    with PrefixFile(path, made_with(c)) as file:
        assert file.places == [7, 30, len(tokens)]
        assert file.nbytes == cells.nbytes + sum(state.nbytes for state in states.values())
        for place, state in states.items():
            np.testing.assert_array_equal(file.state(place), state)
            assert file.state_bytes(place) == len(state)
            assert c.check_state(tokens[:place], file.state(place))
            with pytest.raises(InvalidRequestError, match="not of these"):
                c.check_state(tokens[: place - 1], file.state(place))


# ── What is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def refused(c: Context, path: Path, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as raised:
        load_prefix(c, path, 1)
    assert str(path) in str(raised.value)
    assert c.tokens(1) == []


def goes_on_as_ever(c: Context, path: Path) -> None:
    """After all that was refused."""
    load_prefix(c, path, 1)
    np.testing.assert_array_equal(c.verify([1, 2], 1), c.verify([1, 2], 0))


def test_a_file_with_any_byte_changed_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    pick = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [*range(header), *range(len(whole) - 40, len(whole)), *pick.choices(range(header, len(whole)), k=150)]
    damaged = tmp_path / "damaged"
    damaged.write_bytes(whole)
    with open(damaged, "r+b", buffering=0) as file:
        for place in places:
            changed = whole[place] ^ pick.randint(1, 255)
            os.pwrite(file.fileno(), bytes([changed]), place)
            with pytest.raises(InvalidRequestError):
                load_prefix(c, damaged, 1)
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert c.tokens(1) == []
    goes_on_as_ever(c, damaged)


def test_damaged_files_of_any_kind_end_no_process() -> None:
    """tools/checks/fuzz_prefixes.py in short."""
    run = subprocess.run(
        [sys.executable, str(FUZZER), "--files", "600", "--seed", "3"], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 findings" in run.stdout


def test_a_file_that_is_cut_short_or_goes_on_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    pick = random.Random(1)
    damaged = tmp_path / "damaged"
    for size in (*range(16), *range(len(whole) - 8, len(whole)), *pick.choices(range(len(whole)), k=200)):
        damaged.write_bytes(whole[:size])
        refused(c, damaged, "cut short or damaged")
    damaged.write_bytes(whole + b"x")
    refused(c, damaged, "cut short or damaged")
    goes_on_as_ever(c, path)


def test_the_header_of_one_file_on_the_content_of_another_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    other = tmp_path / "other"
    with context(c.model) as d:
        d.prefill(some_tokens(c.model, 40, seed=8))
        save_prefix(d, other)
    one, two = path.read_bytes(), other.read_bytes()
    assert len(one) == len(two)
    header = 8 + int.from_bytes(one[:8], "little")
    damaged = tmp_path / "damaged"
    for mixed in (
        one[: header + 160] + two[header + 160 :],
        one[:-4] + two[-4:],
        two[: len(two) // 2] + one[len(one) // 2 :],
    ):
        damaged.write_bytes(mixed)
        refused(c, damaged, "checksum")
    goes_on_as_ever(c, path)


def test_what_is_no_prefix_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    for content in (b"", b"text", os.urandom(1000), c.model.path.read_bytes(), b"\xff" * 8 + b"{}"):
        path.write_bytes(content)
        refused(c, path, "is no prefix")
    with pytest.raises(FileNotFoundError):
        load_prefix(c, tmp_path / "missing", 1)
    with pytest.raises(OSError, match="directory"):
        load_prefix(c, tmp_path, 1)


def rewritten(c: Context, path: Path, tensors: dict[str, Any] | None = None, **metadata: str) -> None:
    """The file of sequence 0, with another content and a checksum that is right."""
    save_prefix(c, path)
    found = load_file(path) | (tensors or {})
    found = {name: array for name, array in found.items() if array is not None}
    found["tokens"] = found["tokens"].astype(np.int32)
    save_file(found, path, {"format": FORMAT, "version": str(VERSION), **made_with(c), **metadata})
    whole = path.read_bytes()  # of all tensors "sum" is the last: they are in the order of alignment, then of names
    path.write_bytes(whole[:-4] + zlib.crc32(whole[:-4]).to_bytes(4, "little"))


def test_whole_files_that_do_not_fit_are_refused_with_what_does_not(c: Context, path: Path) -> None:
    for name in made_with(c).keys() - {"n_ubatch", "head"}:
        rewritten(c, path, **{name: "x"})
        refused(c, path, f"is of another {name}: x, here it is {made_with(c)[name][:20]}")
    rewritten(c, path, head="x\0")
    refused(c, path, "was made x\ufffd, here it is with drafts: ")
    rewritten(c, path, adapters="2b07")
    refused(c, path, "was made with other adapters")
    rewritten(c, path, color="blue")
    refused(c, path, "is of another color: blue, here it is not said")
    rewritten(c, path, version="2")
    refused(c, path, "is of format 2, this pymtp reads 1")
    rewritten(c, path, format="other")
    refused(c, path, "is no prefix")
    n, width = c.save_cells(0, 0, len(c.tokens())).shape
    many, state = np.zeros((n, width), dtype=np.uint8), f"state.{n}"
    for tensors, why in (
        ({"tokens": np.full(n, c.model.n_vocab)}, "in a vocabulary of"),
        ({"tokens": np.full(n, -1)}, "in a vocabulary of"),
        ({"tokens": np.zeros(n - 1, dtype=int)}, f"for {n - 1} tokens"),
        ({"tokens": np.zeros(n, dtype=int)}, "not of these"),
        ({"tokens": np.zeros(0, dtype=int), "cells": many[:0]}, f"last state after {n} tokens, and 0 tokens"),
        ({"cells": many[:-1]}, f"for {n} tokens"),
        ({"cells": many[:, :-1].copy()}, f"rows of {width} bytes"),
        ({"cells": many.astype(np.float32)}, "other tensors"),
        ({"cells": many.reshape(-1)}, "other tensors"),
        ({state: many}, "other tensors"),
        ({state: None}, "other tensors"),
        *(({name: many[0]}, "other tensors") for name in ("state", "state.", "state.0", "state.07", "state.-1", "x")),
        ({state: None, "state.5": many[0]}, f"last state after 5 tokens, and {n} tokens"),
        ({f"state.{n + 1}": many[0]}, f"last state after {n + 1} tokens, and {n} tokens"),
        ({state: many[0]}, "no state"),
        ({state: np.zeros(0, dtype=np.uint8)}, "no state"),
    ):
        rewritten(c, path, tensors)
        with pytest.raises(InvalidRequestError, match=why):
            load_prefix(c, path, 1)
        assert c.tokens(1) == []
        with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):  # nor is anything left to go on from
            c.load_state(1, c.tokens(), c.save_state())
    save_prefix(c, path)
    goes_on_as_ever(c, path)


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"type_k": "q8_0"}, "is of another type_k:"),
        ({"type_v": "f32"}, "is of another type_v:"),
        ({"flash_attn": "off"}, "is of another flash_attn:"),
        ({"tap": "pre_norm"}, "is of another tap:"),
        ({"draft_tokens": 0}, "was made with drafts, here it is without drafts: it takes a head, and"),
        ({"mode": "host-copy"}, "is of another prefill:"),
    ],
)
def test_a_prefix_of_other_options_is_refused(c: Context, path: Path, keywords: dict[str, Any], why: str) -> None:
    save_prefix(c, path)
    with context(c.model, **({"n_seq_max": 2} | keywords)) as other:
        refused(other, path, why)


def test_a_prefix_does_not_depend_on_how_many_sequences_tokens_threads_and_drafts_there_are(
    c: Context, path: Path
) -> None:
    save_prefix(c, path)
    with context(c.model, n_seq_max=5, n_ctx=512, n_threads=2, n_batch=1024, n_ubatch=64, draft_tokens=5) as other:
        assert load_prefix(other, path, 4) == c.tokens()


def test_a_prefix_of_another_model_is_refused(c: Context, path: Path, moe: Model, tmp_path: Path) -> None:
    save_prefix(c, path)
    source = c.model.path
    renamed, again, retrained = (tmp_path / f"{name}.gguf" for name in ("renamed", "again", "retrained"))
    rewrite(source, renamed, metadata={"general.name": "one"})
    rewrite(source, again, metadata={"general.name": "two"})
    with Model(renamed) as one, Model(again) as two:
        assert one.digest != two.digest
    weights = bytearray(source.read_bytes())
    weights[-4096:] = bytes(4096)
    retrained.write_bytes(weights)
    for model in (renamed, retrained):
        with Model(model) as loaded, context(loaded, n_seq_max=2) as other:
            refused(other, path, "is of another model")
    with context(moe, n_seq_max=2) as other:
        refused(other, path, "is of another model")
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(source.read_bytes())
    with Model(copied) as loaded, context(loaded, n_seq_max=2) as other:
        assert load_prefix(other, path, 1) == c.tokens()


def test_a_model_is_the_file_that_was_loaded_whatever_its_path_means_by_now(
    demo: Path, headless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current.gguf"
    current.symlink_to(demo)
    monkeypatch.chdir(tmp_path)
    with Model("current.gguf") as model, Model(demo) as same, Model(headless) as other:
        current.unlink()
        current.symlink_to(headless)
        assert model.digest == same.digest != other.digest
        monkeypatch.chdir(tmp_path.parent)
        assert model.digest == same.digest


def test_a_split_model_is_known_by_all_its_parts(tmp_path: Path) -> None:
    first, *rest = make_model("tiny-moe", tmp_path / "model.gguf", weight_type="f32", split_max_tensors=20)
    assert rest
    with Model(first) as model:
        digest = model.digest
    for part in (first, *rest):
        whole = part.read_bytes()
        part.write_bytes(whole[:-64] + bytes(64))
        with Model(first) as model:
            assert model.digest != digest
        part.write_bytes(whole)
    with Model(first) as model:
        assert model.digest == digest
