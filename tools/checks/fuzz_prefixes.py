"""Loads damaged prefix files in one process, and counts findings.

    python tools/checks/fuzz_prefixes.py --files 20000

Half of the files are damaged like by disks and networks, and must be refused. The others have a correct checksum of
their damaged content: they may be refused, or load; then a prompt that continues them succeeds or fails alone. Anything
else is a finding, such as another exception than PymtpError and OSError, or a sound prefix with other logits
afterwards. A signal ends the run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.make_model import make_model

from pymtp import LLM, PymtpError, SamplingParams
from pymtp.prefix_cache.file import CHECKSUM_BYTES, PrefixFile

PARAMS = SamplingParams(max_tokens=4, logprobs=2)
CHECKED = 500  # files between two checks of a sound prefix
ODD = (0, 1, -1, 4, 255, 2**31, 2**32, 2**63, -(2**63), 10**30, 0.5, None, "", "x", [], {}, [[0]])
TYPES = ("BOOL", "U8", "I8", "F8_E4M3", "I16", "F16", "BF16", "I32", "F32", "F64", "I64", "X")


def flipped(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def written_over(data: bytearray, rng: Random) -> None:
    at = rng.choice((0, rng.randrange(64), rng.randrange(len(data))))
    n = min(rng.choice((1, 4, 8, 100, 4096)), len(data) - at)
    data[at : at + n] = rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))


def cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def without_a_piece(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 512, 4096))]


def with_a_piece(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 4, 512)))


def swapped(data: bytearray, rng: Random) -> None:
    n = rng.choice((4, 512, 4096))
    one, two = (rng.randrange(max(1, len(data) - n)) for _ in range(2))
    data[one : one + n], data[two : two + n] = data[two : two + n], data[one : one + n]


def with_an_odd_header(data: bytearray, rng: Random) -> None:
    """Change values in the header, which stays valid JSON."""
    n = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + n])
    except ValueError:  # it is damaged already
        return
    for _ in range(rng.choice((1, 1, 3))):
        place: Any = header
        while True:
            keys = list(place.keys() if isinstance(place, dict) else range(len(place)))
            if not keys:
                break
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
    data[: 8 + n] = len(text).to_bytes(8, "little") + text


DAMAGE: tuple[Callable[[bytearray, Random], None], ...] = (
    flipped,
    written_over,
    cut,
    without_a_piece,
    with_a_piece,
    swapped,
    with_an_odd_header,
)


def seal(data: bytearray) -> None:
    if len(data) > CHECKSUM_BYTES:
        data[-CHECKSUM_BYTES:] = zlib.crc32(data[:-CHECKSUM_BYTES]).to_bytes(CHECKSUM_BYTES, "little")


class Trial:
    """An LLM, a sound prefix in a file, and the damaged files that it loads."""

    def __init__(self, llm: LLM, folder: Path) -> None:
        self.llm = llm
        self.sound, self.damaged = folder / "sound", folder / "damaged"
        self.tokens = [i * 37 % llm.model.n_vocab for i in range(40)]
        llm.save_prefix(self.tokens, self.sound)
        self.whole = self.sound.read_bytes()
        self.forget()
        self.wanted = self.goes_on()
        self.forget()
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []

    def forget(self) -> None:
        """Drop all cached prefixes."""
        store = self.llm._engine.prefix_cache.store
        self.llm.generate([0], PARAMS)  # replaces the tokens of the sequence
        while store.tree.checkpoints:
            store.tree.remove_checkpoint(next(iter(store.tree.checkpoints)))

    def goes_on(self, tokens: Sequence[int] = ()) -> object:
        """Return the tokens and log-probabilities after a prompt."""
        found = self.llm.generate([*(tokens or self.tokens), 5], PARAMS)
        return found.token_ids, found.logprobs

    def sound_goes_on(self) -> bool:
        """Tell whether the sound prefix still gives the same tokens and log-probabilities."""
        self.forget()
        self.llm.load_prefix(self.sound)
        read = self.llm.figures().read
        same = self.goes_on() == self.wanted and self.llm.figures().read == read + 1
        self.forget()
        return same

    def try_file(self, index: int, seed: int) -> None:
        rng = Random(f"{seed}:{index}")
        data, sealed = bytearray(self.whole), index % 2 == 1
        names = [damage.__name__ for damage in rng.choices(DAMAGE, k=rng.choice((1, 1, 2)))]
        for name in names:
            if len(data) > 16:
                globals()[name](data, rng)
        if sealed:
            seal(data)
        self.damaged.write_bytes(data)
        what = f"file {index}, {' and '.join(names)}, {'sealed' if sealed else 'not sealed'}"
        try:
            self.llm.load_prefix(self.damaged)
        except (PymtpError, OSError):
            self.counts["refused"] += 1
            if self.llm.figures().prefixes.nbytes:
                self.findings.append(f"{what}: something of it was loaded")
        except Exception as error:
            self.findings.append(f"{what}: {type(error).__name__}: {error}")
        else:
            self.counts["loaded"] += 1
            if not sealed and data != self.whole:
                self.findings.append(f"{what}: it was not refused")
            try:
                with (
                    PrefixFile(self.damaged, None) as file,
                    suppress(PymtpError),
                ):  # for example, nonfinite logits
                    self.goes_on(file.tokens)
            except Exception as error:
                self.findings.append(f"{what}: going on from it: {type(error).__name__}: {error}")
            self.forget()
        if index % CHECKED == CHECKED - 1 and not self.sound_goes_on():
            self.findings.append(f"{what}: a sound prefix has other logits after it")


def main(
    files: Annotated[int, typer.Option(help="How many files.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the damage.")] = 0,
) -> None:
    """Load damaged prefix files; exit with status 1 on any finding."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = make_model("tiny", Path(folder) / "tiny.gguf", weight_type="f32")
        with LLM(path, n_ctx=256, n_threads=1, draft_tokens=3) as llm:
            trial = Trial(llm, Path(folder))
            for index in range(files):
                trial.try_file(index, seed)
            if not trial.sound_goes_on():
                trial.findings.append("a sound prefix has other logits at the end")
    for finding in trial.findings:
        print(finding)
    counts = trial.counts
    print(f"{files} files, seed {seed}: {counts['refused']} refused, {counts['loaded']} loaded, ", end="")
    print(f"{len(trial.findings)} findings")
    raise typer.Exit(1 if trial.findings else 0)


if __name__ == "__main__":
    typer.run(main)
