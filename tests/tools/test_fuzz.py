"""Tests of tools/checks/fuzz.py: each kind of finding is found, short runs have none, and faults of pymtp are found."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fuzz
import fuzz_grammars
import fuzz_heads
import fuzz_images
import fuzz_models
import fuzz_prefixes
import fuzz_projectors
import fuzz_requests
import numpy as np
import pytest
from fuzz_heads import RECIPES, Base, generate_tokens

from pymtp import LLM, PymtpError
from pymtp.context.context import Context
from pymtp.images import Image
from pymtp.prefix_cache.file import PrefixFile
from pymtp.sampling import Sampler

# with attempts
SUBJECTS = {"models": 8, "heads": 4, "projectors": 8, "prefixes": 1, "requests": 1, "grammars": 1, "images": 1}
FILES = ("models", "heads", "projectors")  # an attempt has one


def made(subject: Callable[[Path], Any], attempts: int, folder: Path, seed: int = 0) -> fuzz.Results:
    results = fuzz.Results()
    for one in map(fuzz.Attempts(subject, seed, folder), range(attempts)):
        results.add(one)
    return results


def refuses(note: fuzz.Note) -> None:
    raise PymtpError("the file 'x' has 7 faults")


def meets_an_assertion(note: fuzz.Note) -> None:
    raise PymtpError("GGML_ASSERT(a) failed")


def dies(note: fuzz.Note) -> None:
    note("the last request")
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(note: fuzz.Note) -> None:
    time.sleep(30)


def raises(note: fuzz.Note) -> None:
    raise ValueError("not one of pymtp's")


def prints(note: fuzz.Note) -> None:
    os.write(2, b"a warning")


def exits(note: fuzz.Note) -> None:
    os._exit(7)


class Scripted:
    """An attempt of each kind, after another that works. See fuzz.Subject."""

    UNITS, SECONDS, MEMORY = 1, 1, 2 << 30
    sound_works = True

    def __init__(self, folder: Path) -> None:
        self.attempts = [lambda note: {"files": 3}, refuses, meets_an_assertion, dies, hangs, raises, prints, exits]

    def sound(self, place: Path) -> None:
        if not self.sound_works:
            raise RuntimeError("the process is damaged")

    def prepare(self, rng: Random, index: int, place: Path) -> tuple[list[str], Any]:
        return [f"attempt {index}"], self.attempts[index]


def test_each_wrong_end_of_an_attempt_is_a_finding(tmp_path: Path) -> None:
    results = made(Scripted, 8, tmp_path)
    found = [(finding.index, finding.what) for finding in results.findings]
    assert found == [(3, "SIGKILL"), (4, "too slow"), (5, "an exception"), (6, "stderr"), (7, "exit code 7")]
    said = {finding.index: finding.said for finding in results.findings}
    assert "the last request" in said[3]
    assert "not one of pymtp's" in said[5]
    assert "a warning" in said[6]
    assert results.counts == Counter(tried=8, files=3, worked=1, refused=2)
    assert results.reasons == Counter({"the file … has … faults": 1})
    assert results.assertions == Counter({"GGML_ASSERT(a) failed": 1})


def test_assertion_after_which_a_sound_attempt_fails_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "sound_works", False)
    (finding,) = made(Scripted, 3, tmp_path).findings
    assert (finding.index, finding.what) == (2, "an exception")
    assert "the process is damaged" in finding.said


@pytest.mark.parametrize("subject", SUBJECTS)
def test_odd_input_is_refused_or_works(subject: str, tmp_path: Path) -> None:
    make = {
        "models": fuzz_models.Fuzzed,
        "heads": fuzz_heads.Fuzzed,
        "projectors": fuzz_projectors.Fuzzed,
        "prefixes": fuzz_prefixes.Fuzzed,
        "requests": fuzz_requests.Fuzzed,
        "grammars": fuzz_grammars.Fuzzed,
        "images": fuzz_images.Fuzzed,
    }[subject]
    results = made(make, SUBJECTS[subject], tmp_path)
    assert results.findings == []
    assert results.counts["worked"] + results.counts["refused"] == SUBJECTS[subject]
    if subject in FILES:
        assert min(results.counts["worked"], results.counts["refused"]) > SUBJECTS[subject] / 20
    else:
        refused = {name: n for name, n in results.counts.items() if name.endswith(" refused")}
        assert all(n > 8 for n in refused.values())
        assert refused


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> fuzz_heads.Fuzzed:
    return fuzz_heads.Fuzzed(tmp_path_factory.mktemp("bases"))


def test_pairs_of_a_model_and_its_own_head_are_not_refused(heads: fuzz_heads.Fuzzed, tmp_path: Path) -> None:
    for base in heads.bases:
        generate_tokens(base.trunk, sound_head(base, tmp_path))


def test_pairs_of_a_seed_are_reproducible_and_of_every_kind(heads: fuzz_heads.Fuzzed, tmp_path: Path) -> None:
    kinds = set()
    for index in range(24):
        found = []
        for name in "ab":
            (place := tmp_path / f"{index}{name}").mkdir()
            _, damage = heads.make_pair(Random(f"31:{index}"), index, place)
            found.append((damage, {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}))
        assert found[0] == found[1]
        kinds.add(damage[0].split(",")[0])
    assert kinds == {recipe.__name__ for recipe in RECIPES}


def sound_head(base: Base, place: Path) -> Path:
    head = place / "mtp.gguf"
    head.write_bytes(base.head.read_bytes())
    return head


def ends_the_process(llm: LLM) -> list[int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def fails(llm: LLM) -> PymtpError:
    return PymtpError("the head gives NaN")


def writes_another_text(llm: LLM) -> list[int]:
    return [llm.context.draft_tokens]


@pytest.mark.parametrize(
    ("broken", "what"),
    [(ends_the_process, "SIGKILL"), (fails, "an exception"), (writes_another_text, "an exception")],
)
def test_fuzzer_finds_a_pair_whose_head_changes_the_result(
    tmp_path: Path,
    heads: fuzz_heads.Fuzzed,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[LLM], object],
    what: str,
) -> None:
    sound = fuzz_heads._tokens_of
    monkeypatch.setattr(fuzz_heads, "_tokens_of", lambda llm: broken(llm) if llm.model.mtp else sound(llm))
    head = sound_head(heads.bases[0], tmp_path)
    results = fuzz.ForkRunner(heads).results(
        lambda note: generate_tokens(heads.bases[0].trunk, head), 0, ["sound"], tmp_path
    )
    assert [finding.what for finding in results.findings] == [what]


def test_fuzzer_finds_a_damaged_prefix_file_that_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixFile, "_checksum", lambda self, _: self._read("sum").tobytes())
    (finding,) = made(fuzz_prefixes.Fuzzed, 1, tmp_path).findings
    assert "a damaged file was not refused" in finding.said


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda image: 1 / 0, "ZeroDivisionError"),
        (lambda image: np.zeros((image.height, image.width, 4), np.uint8), "AssertionError"),
        (
            lambda image: np.random.default_rng().integers(0, 256, (image.height, image.width, 3), np.uint8),
            "another end",
        ),
    ],
)
def test_fuzzer_finds_an_image_that_is_decoded_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Image], Any], said: str
) -> None:
    monkeypatch.setattr(Image, "pixels", broken)
    (finding,) = made(fuzz_images.Fuzzed, 1, tmp_path).findings
    assert said in finding.said


def test_fuzzer_finds_memory_that_images_leave_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, kept = Image.pixels, list[Any]()

    def leaking(image: Image) -> Any:
        kept.append(bytearray(2**20))
        return pixels(image)

    monkeypatch.setattr(Image, "pixels", leaking)
    (finding,) = made(fuzz_images.Fuzzed, 1, tmp_path).findings
    assert "memory grew by" in finding.said


def test_fuzzer_finds_a_context_that_a_request_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_token, calls = Context.first_token, [0]

    def other(self: Context, seq: int = 0) -> int:
        calls[0] += 1
        return first_token(self, seq) + (calls[0] > 8)

    monkeypatch.setattr(Context, "first_token", other)
    (finding,) = made(fuzz_requests.Fuzzed, 1, tmp_path).findings
    assert "another" in finding.said


def test_fuzzer_finds_an_error_of_another_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_grammar(*_: Any) -> Any:
        raise RuntimeError("not refused")

    monkeypatch.setattr(Sampler, "compiled", no_grammar)
    (finding,) = made(fuzz_grammars.Fuzzed, 1, tmp_path).findings
    assert "text " in finding.said
    assert "RuntimeError: not refused" in finding.said
