"""Tests of prefix files: prompts continue from files with the same bits; unfit or damaged files are refused."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.contexts import context, some_tokens
from helpers.moments import CACHES, MOMENTS, SAMPLED, continue_text, each_model_and_cache_type, without_drafts
from helpers.prefix_files import load_prefix, save_prefix, write_prefix
from makers.gguf_variants import rewrite
from makers.make_model import make_model
from safetensors.numpy import load_file, save_file

from pymtp import InvalidRequestError, Model
from pymtp.context.context import Context
from pymtp.prefix_cache.file import FORMAT, VERSION, PrefixFile, made_with


@each_model_and_cache_type(CACHES)
def test_sequence_loaded_from_a_prefix_file_continues_with_the_same_bits(
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
            tokens = c.tokens(1)
            other.set_sampling(SAMPLED, 2)
            assert load_prefix(other, path, 2) == tokens == other.tokens(2)
            assert continue_text(other, 2, token) == continue_text(c, 1, token)
            c.clear()
            token_again = without_drafts(moment)(c, 0)
            other.clear(2)
            load_prefix(other, path, 2)
            assert continue_text(other, 2, token) == continue_text(c, 0, token_again)


def test_prefix_file_has_the_logits_of_the_first_token(c: Context, path: Path) -> None:
    save_prefix(c, path)
    load_prefix(c, path, 1)
    c.set_sampling(SAMPLED, 1)
    assert c.first_token(1) == c.first_token(0)


def test_prefix_file_cells_are_read_from_any_position(dense: Model, path: Path) -> None:
    with context(dense, n_seq_max=2) as c:
        c.prefill(some_tokens(dense, 700))
        save_prefix(c, path)
        with PrefixFile(path, made_with(c)) as file:
            for first, n in ((0, 700), (80, 30), (690, 30), (699, 1)):
                np.testing.assert_array_equal(file.cells(first, n), c.state.save_cells(0, first, min(n, 700 - first)))


def test_prefix_file_has_states_of_several_checkpoints(c: Context, path: Path) -> None:
    tokens, cells = c.tokens(), c.state.save_cells(0, 0, len(c.tokens()))
    states = {len(tokens): c.state.save()}
    for position in (7, 30):
        c.clear(1)
        c.prefill(tokens[:position], 1)
        states[position] = c.state.save(1)
    write_prefix(path, made_with(c), tokens, states, cells)
    with PrefixFile(path, made_with(c)) as file:
        assert file.checkpoints == [7, 30, len(tokens)]
        assert file.nbytes == cells.nbytes + sum(state.nbytes for state in states.values())
        for position, state in states.items():
            np.testing.assert_array_equal(file.state(position), state)
            assert file.state_bytes(position) == len(state)
            assert c.state.check(tokens[:position], file.state(position))
            with pytest.raises(InvalidRequestError, match="not of these"):
                c.state.check(tokens[: position - 1], file.state(position))


# ── Refused files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check_refused(c: Context, path: Path, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        load_prefix(c, path, 1)
    assert str(path) in str(raised.value)
    assert c.tokens(1) == []


def check_loads(c: Context, path: Path) -> None:
    """Check that an intact file still loads after refused ones, and that its prefix continues with the same bits."""
    load_prefix(c, path, 1)
    np.testing.assert_array_equal(c.verify([1, 2], 1), c.verify([1, 2], 0))


def test_prefix_file_with_any_changed_byte_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    pick = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    offsets = [*pick.sample(range(header), header // 3), *pick.choices(range(header, len(whole)), k=60)]
    offsets += range(len(whole) - 20, len(whole))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(whole)
    with open(damaged, "r+b", buffering=0) as file:
        for offset in offsets:
            changed = whole[offset] ^ pick.randint(1, 255)
            os.pwrite(file.fileno(), bytes([changed]), offset)
            with pytest.raises(InvalidRequestError):
                load_prefix(c, damaged, 1)
            os.pwrite(file.fileno(), whole[offset : offset + 1], offset)
    assert c.tokens(1) == []
    check_loads(c, damaged)


def test_prefix_file_that_is_too_short_or_too_long_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    save_prefix(c, path)
    whole = path.read_bytes()
    pick = random.Random(1)
    damaged = tmp_path / "damaged"
    for size in (*range(16), *range(len(whole) - 8, len(whole)), *pick.choices(range(len(whole)), k=200)):
        damaged.write_bytes(whole[:size])
        check_refused(c, damaged, "cut short or damaged")
    damaged.write_bytes(whole + b"x")
    check_refused(c, damaged, "cut short or damaged")
    check_loads(c, path)


def test_prefix_file_mixed_from_two_files_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
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
        check_refused(c, damaged, "checksum")
    check_loads(c, path)


def test_file_that_is_not_a_prefix_file_is_refused(c: Context, path: Path, tmp_path: Path) -> None:
    for content in (b"", b"text", os.urandom(1000), c.model.path.read_bytes(), b"\xff" * 8 + b"{}"):
        path.write_bytes(content)
        check_refused(c, path, "is not a prefix file")
    with pytest.raises(FileNotFoundError):
        load_prefix(c, tmp_path / "missing", 1)
    with pytest.raises(OSError, match="directory"):
        load_prefix(c, tmp_path, 1)


def rewrite_prefix(c: Context, path: Path, tensors: dict[str, Any] | None = None, **metadata: str) -> None:
    """Save sequence 0 to the file, with some tensors and metadata replaced, and a checksum that fits."""
    save_prefix(c, path)
    contents = load_file(path) | (tensors or {})
    contents = {name: array for name, array in contents.items() if array is not None}
    contents["tokens"] = contents["tokens"].astype(np.int32)
    save_file(contents, path, {"format": FORMAT, "version": str(VERSION), **made_with(c), **metadata})
    whole = path.read_bytes()  # "sum" is the last tensor: save_file orders tensors by alignment, then by name
    path.write_bytes(whole[:-4] + zlib.crc32(whole[:-4]).to_bytes(4, "little"))


def test_intact_file_that_does_not_fit_is_refused_with_the_difference(c: Context, path: Path) -> None:
    for name in made_with(c).keys() - {"n_ubatch", "head"}:
        rewrite_prefix(c, path, **{name: "x"})
        check_refused(c, path, f"was made with another {name}: x in the file, {made_with(c)[name][:20]}")
    rewrite_prefix(c, path, head="x\0")
    check_refused(c, path, "was made x\ufffd, but would be loaded with drafts: ")
    rewrite_prefix(c, path, adapters="2b07")
    check_refused(c, path, "was made with other adapters")
    rewrite_prefix(c, path, color="blue")
    check_refused(c, path, "was made with another color: blue in the file, none here")
    rewrite_prefix(c, path, version="2")
    check_refused(c, path, "has format version 2, but this pymtp reads version 1")
    rewrite_prefix(c, path, format="other")
    check_refused(c, path, "is not a prefix file")
    n, width = c.state.save_cells(0, 0, len(c.tokens())).shape
    many, state = np.zeros((n, width), dtype=np.uint8), f"state.{n}"
    for tensors, message in (
        ({"tokens": np.full(n, c.model.n_vocab)}, "in a vocabulary of"),
        ({"tokens": np.full(n, -1)}, "its images do not fit its tokens"),
        ({"tokens": np.zeros(n - 1, dtype=int)}, f"has {n - 1} tokens, but the K and V of {n} tokens"),
        ({"tokens": np.zeros(n, dtype=int)}, "not of these"),
        ({"tokens": np.zeros(0, dtype=int), "cells": many[:0]}, f"has 0 tokens, but its last state is after {n}"),
        ({"cells": many[:-1]}, f"has {n} tokens, but the K and V of"),
        ({"cells": many[:, :-1].copy()}, f"rows of {width} bytes"),
        ({"cells": many.astype(np.float32)}, "its tensors are"),
        ({"cells": many.reshape(-1)}, "its tensors are"),
        ({state: many}, "its tensors are"),
        ({state: None}, "its tensors are"),
        *(({name: many[0]}, "its tensors are") for name in ("state", "state.", "state.0", "state.07", "state.-1", "x")),
        ({state: None, "state.5": many[0]}, f"has {n} tokens, but its last state is after 5"),
        ({f"state.{n + 1}": many[0]}, f"has {n} tokens, but its last state is after {n + 1}"),
        ({state: many[0]}, "no state"),
        ({state: np.zeros(0, dtype=np.uint8)}, "no state"),
    ):
        rewrite_prefix(c, path, tensors)
        with pytest.raises(InvalidRequestError, match=message):
            load_prefix(c, path, 1)
        assert c.tokens(1) == []
        with pytest.raises(InvalidRequestError, match="K and V of 0 tokens"):  # the sequence has no K and V
            c.state.load(1, c.tokens(), c.state.save())
    save_prefix(c, path)
    check_loads(c, path)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"type_k": "q8_0"}, "was made with another type_k:"),
        ({"type_v": "f32"}, "was made with another type_v:"),
        ({"flash_attn": "off"}, "was made with another flash_attn:"),
        ({"tap": "pre_norm"}, "was made with another tap:"),
        ({"draft_tokens": 0}, "was made with drafts, but would be loaded without drafts: loading it takes a head, and"),
        ({"mode": "host-copy"}, "was made with another prefill:"),
    ],
)
def test_prefix_file_made_with_other_options_is_refused(
    c: Context, path: Path, keywords: dict[str, Any], message: str
) -> None:
    save_prefix(c, path)
    with context(c.model, **({"n_seq_max": 2} | keywords)) as other:
        check_refused(other, path, message)


def test_prefix_file_loads_with_other_numbers_of_sequences_tokens_threads_and_drafts(c: Context, path: Path) -> None:
    save_prefix(c, path)
    with context(c.model, n_seq_max=5, n_ctx=512, n_threads=2, n_batch=1024, n_ubatch=64, draft_tokens=5) as other:
        assert load_prefix(other, path, 4) == c.tokens()


def test_prefix_file_of_another_model_is_refused(c: Context, path: Path, moe: Model, tmp_path: Path) -> None:
    save_prefix(c, path)
    source = c.model.path
    renamed, renamed_again, retrained = (
        tmp_path / f"{name}.gguf" for name in ("renamed", "renamed_again", "retrained")
    )
    rewrite(source, renamed, metadata={"general.name": "one"})
    rewrite(source, renamed_again, metadata={"general.name": "two"})
    with Model(renamed) as one, Model(renamed_again) as two:
        assert one.digest != two.digest
    weights = bytearray(source.read_bytes())
    weights[-4096:] = bytes(4096)
    retrained.write_bytes(weights)
    for model in (renamed, retrained):
        with Model(model) as loaded, context(loaded, n_seq_max=2) as other:
            check_refused(other, path, "was made with another model")
    with context(moe, n_seq_max=2) as other:
        check_refused(other, path, "was made with another model")
    copied = tmp_path / "copied.gguf"
    copied.write_bytes(source.read_bytes())
    with Model(copied) as loaded, context(loaded, n_seq_max=2) as other:
        assert load_prefix(other, path, 1) == c.tokens()


def test_model_digest_is_that_of_the_loaded_file_after_its_path_names_another_file(
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


def test_model_digest_covers_all_parts_of_a_split_model(tmp_path: Path) -> None:
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
