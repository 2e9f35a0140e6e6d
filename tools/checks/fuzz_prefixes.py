"""Damaged prefix files, a hundred for each LLM. See fuzz.py.

Half of the files are damaged like by disks and networks, and must be refused. The others have a correct checksum of
their damaged content: they may be refused, or load; then a prompt that continues them succeeds or fails alone. Anything
else is a finding, such as another exception than PymtpError and OSError, or a sound prefix with other logits
afterwards.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import common  # noqa: F401 — sets the path of the makers
from makers.gguf_damage import damage_bytes
from makers.make_model import make_model

from pymtp import LLM, PymtpError, SamplingParams
from pymtp.prefix_cache.file import CHECKSUM_BYTES, PrefixFile

PARAMS = SamplingParams(max_tokens=4, logprobs=2)
ODD = (0, 1, -1, 4, 255, 2**31, 2**32, 2**63, -(2**63), 10**30, 0.5, None, "", "x", [], {}, [[0]])
TYPES = ("BOOL", "U8", "I8", "F8_E4M3", "I16", "F16", "BF16", "I32", "F32", "F64", "I64", "X")


def odd_header(rng: Random, data: bytes) -> bytes:
    """Change values in the header, which stays valid JSON."""
    n = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + n])
    except ValueError:  # it is damaged already
        return data
    for _ in range(rng.choice((1, 1, 3))):
        place: Any = header
        while keys := list(place.keys() if isinstance(place, dict) else range(len(place))):
            key = rng.choice(keys)
            if isinstance(place[key], (dict, list)) and rng.random() < 0.9:
                place = place[key]
                continue
            odd = deepcopy(rng.choice(ODD))
            if isinstance(place[key], int) and rng.random() < 0.5:
                odd = place[key] + rng.choice((-1, 1, 8, -8))
            place[key] = rng.choice(TYPES) if key == "dtype" else odd
            if isinstance(place, dict) and rng.random() < 0.1:
                place[rng.choice(("x", "tokens", "cells", "state.32", "state.40", "sum"))] = place.pop(key)
            break
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + n :]


def damaged(rng: Random, whole: bytes, *, sealed: bool) -> tuple[bytes, str]:
    """Return damaged bytes of a file, sealed with a checksum or not, and a description."""
    data, words = whole, []
    for _ in range(rng.choice((1, 1, 2))):
        if len(data) > 16 and rng.random() < 0.2:
            data, what = odd_header(rng, data), "odd header"
        elif len(data) > 16:
            data, what = damage_bytes(rng, data, len(data) if rng.random() < 0.7 else 64)
        words.append(what)
    if sealed and len(data) > CHECKSUM_BYTES:
        content = data[:-CHECKSUM_BYTES]
        data = content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little")
    return data, f"{' and '.join(words)}, {'sealed' if sealed else 'not sealed'}"


class Trial:
    """An LLM, a sound prefix in a file, and damaged files that it loads."""

    def __init__(self, llm: LLM, folder: Path) -> None:
        self.llm, self.sound, self.damaged = llm, folder / "sound", folder / "damaged"
        self.tokens = [i * 37 % llm.model.n_vocab for i in range(40)]
        llm.save_prefix(self.tokens, self.sound)
        self.whole = self.sound.read_bytes()
        self.forget()
        self.expected = self.continuation()
        self.forget()
        self.counts: Counter[str] = Counter()

    def forget(self) -> None:
        """Drop all cached prefixes."""
        store = self.llm._engine.prefix_cache.store
        self.llm.generate([0], PARAMS)  # replaces the tokens of the sequence
        while store.tree.checkpoints:
            store.tree.remove_checkpoint(next(iter(store.tree.checkpoints)))

    def continuation(self, tokens: Sequence[int] = ()) -> object:
        """Return the tokens and log-probabilities after a prompt."""
        found = self.llm.generate([*(tokens or self.tokens), 5], PARAMS)
        return found.token_ids, found.logprobs

    def check_sound(self) -> None:
        """Raise AssertionError unless the sound prefix gives the same tokens and log-probabilities as at first."""
        self.forget()
        self.llm.load_prefix(self.sound)
        read = self.llm.figures().read
        assert self.continuation() == self.expected, "a sound prefix has other logits"
        assert self.llm.figures().read == read + 1, "a sound prefix is read again"
        self.forget()

    def try_bytes(self, data: bytes, *, sealed: bool) -> None:
        """Load a damaged file, and continue it. Raise AssertionError for a finding."""
        self.damaged.write_bytes(data)
        try:
            self.llm.load_prefix(self.damaged)
        except (PymtpError, OSError):
            self.counts["files refused"] += 1
            assert not self.llm.figures().prefixes.nbytes, "a part of a refused file was loaded"
            return
        self.counts["files loaded"] += 1
        assert sealed or data == self.whole, "a damaged file was not refused"
        with PrefixFile(self.damaged, None) as file, suppress(PymtpError):  # for example, nonfinite logits
            self.continuation(file.tokens)
        self.forget()


class Fuzzed:
    """A small model. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 100, 120, 2 << 30

    def __init__(self, folder: Path) -> None:
        (self.path,) = make_model("tiny", folder / "tiny.gguf", weight_type="f32")

    def sound(self, place: Path) -> None:
        with LLM(self.path, n_ctx=256, n_threads=1, draft_tokens=3) as llm:
            Trial(llm, place).check_sound()

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        def attempt(note: Any) -> dict[str, int]:
            with LLM(self.path, n_ctx=256, n_threads=1, draft_tokens=3) as llm:
                trial = Trial(llm, place)
                for number in range(self.UNITS):
                    sealed = number % 2 == 1
                    data, words = damaged(rng, trial.whole, sealed=sealed)
                    note(f"file {number}: {words}")
                    trial.try_bytes(data, sealed=sealed)
                note("all files were tried")
                trial.check_sound()
                return trial.counts

        return [], attempt
