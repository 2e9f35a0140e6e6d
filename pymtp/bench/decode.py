"""The decode bench: decoding without drafts, with fixed depths and with automatic depth, on several kinds of prompts.

An arm is one of the compared variants, such as `none`, "3" or `auto`, see ARMS. A group is one prompt at one
temperature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pymtp.bench.paired import BenchSettings, Group, PairedBench
from pymtp.bench.prompts import VARIANTS, prompt, warm_up
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.bench.traffic import run_single
from pymtp.context.inspect import Counters
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

NONE, AUTO = "none", "auto"
MAX_DEPTH = 8
HOST_COPY = ":host-copy"  # suffix of an arm: hidden states are copied through the host, as in llama.cpp
NEW = ":new"  # suffix of an arm: each completion gets a new LLM, which has not adapted its depth yet
DEPTHS = tuple(map(str, range(1, MAX_DEPTH + 1)))
ARMS = (NONE, *DEPTHS, *(depth + HOST_COPY for depth in DEPTHS), AUTO, *(arm + NEW for arm in (NONE, *DEPTHS, AUTO)))
PHASES = ("draft", "verify", "rewind", "python")
WARM_UP = 16  # tokens to generate in the warm-up of an LLM


def draft_tokens(arm: str) -> Any:
    """Return the value of LLM's draft_tokens for an arm: 0, a number or "auto"."""
    arm = arm.removesuffix(HOST_COPY).removesuffix(NEW)
    return AUTO if arm == AUTO else 0 if arm == NONE else int(arm)


def prefill_mode(arm: str) -> str:
    """Return the prefill mode of an arm: one of PREFILL_MODES."""
    return "host-copy" if arm.endswith(HOST_COPY) else "fused"


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(BenchSettings):
    """Settings of a decode bench.

    arms: variants to compare, from ARMS.
    kinds: kinds of prompts, from KINDS.
    tokens: number of tokens to generate after each prompt.
    synthetic: rates of synthetic acceptance, see SyntheticContext; None for real acceptance.
    """

    arms: tuple[str, ...]
    kinds: tuple[str, ...]
    temperatures: tuple[float, ...]
    tokens: int
    synthetic: tuple[float, ...] | None
    draft_vocab: int | Literal["auto", "all"] = "auto"


@dataclass(frozen=True, kw_only=True)
class DecodeMeasurement:
    """The measurement of one arm on one prompt: a completion that continues after end tokens.

    token_ids: the generated tokens; empty if the measurement was loaded from a file.
    phase_seconds: time of each phase of decoding, without the prefill and the first token. PHASES add up to the total
        time, where "python" is the time outside of native calls; "sample" is a part of "draft" and "verify".
    target_launches, draft_launches: llama_decode calls of the target and of the head while decoding.
    digest: hash of token_ids.
    round: index of the bench round.
    kind: kind of the prompt, from KINDS.
    """

    token_ids: list[int] = field(compare=False)
    stats: Stats
    phase_seconds: dict[str, float]
    target_launches: int
    draft_launches: int
    digest: str = ""
    round: int
    kind: str
    temperature: float
    arm: str

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", digest(self.token_ids))

    @property
    def group(self) -> tuple[int, str, float]:
        """Return the bench round, the kind and the temperature. Measurements that share them are compared."""
        return self.round, self.kind, self.temperature


def digest(token_ids: Sequence[int]) -> str:
    """Return a hash of the tokens of a completion."""
    return hashlib.sha256(" ".join(map(str, token_ids)).encode()).hexdigest()[:16]


def groups(settings: DecodeSettings) -> list[Group]:
    """List all groups in the order in which they are measured. A cell is a kind of prompt and a temperature."""
    return settings.plan(settings.arms, [(kind, t) for t in settings.temperatures for kind in settings.kinds])


def phase_seconds(total: float, before: Counters, after: Counters) -> dict[str, float]:
    """Split `total` seconds of decoding into phases, see DecodeMeasurement."""
    native = {
        name: getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds")
        for name in ("draft", "verify", "rewind", "sample")
    }
    return native | {"python": total - native["draft"] - native["verify"] - native["rewind"]}


class DecodeArms:
    """The arms of a decode bench on one model: one LLM for each arm, all with the same weights.

    An LLM is made when its arm is first measured. It stays open, and so keeps its adapted depth. For an arm that ends
    with NEW, each measurement makes a new LLM.
    """

    def __init__(self, model: Model, settings: DecodeSettings) -> None:
        self._model, self._settings = model, settings
        self._prompts = {(kind, i): prompt(model, kind, i) for kind in settings.kinds for i in range(VARIANTS)}
        self._llms: dict[str, LLM] = {}

    def measure(self, group: Group, arm: str) -> DecodeMeasurement:
        """Measure one arm: generate after the prompt of a group. Raises NativeError if memory is too small."""
        kind, temperature = group.cell
        tokens = self._prompts[kind, group.round % VARIANTS]
        params = self._params(self._settings.tokens, temperature, group.round)
        if arm.endswith(NEW):
            with closing(self._new_llm(arm, seed=group.round)) as llm:
                run = run_single(llm, tokens, params)
        else:
            if arm not in self._llms:
                self._llms[arm] = self._new_llm(arm)
                self._warm_up(self._llms[arm])
            run = run_single(self._llms[arm], tokens, params)
        before, after, completion = run.prefilled, run.ended, run.completion
        return DecodeMeasurement(
            token_ids=completion.token_ids,
            stats=completion.stats,
            phase_seconds=phase_seconds(completion.stats.decode_seconds, before, after),
            target_launches=after.target_decodes - before.target_decodes,
            draft_launches=after.draft_decodes - before.draft_decodes,
            round=group.round,
            kind=kind,
            temperature=temperature,
            arm=arm,
        )

    @staticmethod
    def _params(tokens: int, temperature: float, seed: int) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed, ignore_eos=True)

    def _new_llm(self, arm: str, seed: int = 0) -> LLM:
        settings = self._settings
        keywords: dict[str, Any] = {
            "n_ctx": max(map(len, self._prompts.values())) + settings.tokens,
            **settings.keywords,
            "draft_tokens": draft_tokens(arm),
            "draft_vocab": settings.draft_vocab,
            "prefill": prefill_mode(arm),
            "cache_prompt": False,
        }
        if settings.synthetic is None:
            return LLM(self._model, **keywords)
        return SyntheticLLM(self._model, settings.synthetic, seed, **keywords)

    def _warm_up(self, llm: LLM) -> None:
        """Generate once at each temperature, so that the first measurement does not pay for new memory and graphs."""
        for temperature in self._settings.temperatures:
            llm.generate(warm_up(self._model), self._params(min(WARM_UP, self._settings.tokens), temperature, 0))

    def close(self) -> None:
        """Free all contexts."""
        for llm in self._llms.values():
            llm.close()


@contextmanager
def open_bench(model: Model, settings: DecodeSettings) -> Iterator[PairedBench[DecodeMeasurement]]:
    """Make a decode bench of a model, and free its contexts at the end."""
    with closing(DecodeArms(model, settings)) as arms:
        yield PairedBench(groups(settings), arms.measure)


def describe_prompts(kind: str, temperature: float) -> str:
    """Describe a kind of prompt and a temperature."""
    return f"{kind}, {format_temperature(temperature)}"


def format_temperature(temperature: float) -> str:
    """Format a temperature: 0.7 → "T=0.7", 0 → "greedy"."""
    return f"T={temperature:g}" if temperature else "greedy"
