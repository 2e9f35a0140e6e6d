"""The decode bench: plain decoding, fixed depths and depths chosen on the way, over prompts of several kinds.

What is compared stands side by side: a group, which is one prompt at one temperature, runs every arm once, one right
after the other. What the machine does meanwhile meets all alike, and ratios are taken within a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pymtp.bench.order import in_turn
from pymtp.bench.paired import PairedBench
from pymtp.bench.prompts import VARIANTS, prompt, warm_up
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.context.inspect import Counters
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams
from pymtp.stats import Stats

NONE, AUTO = "none", "auto"
MAX_DEPTH = 8
HOST_COPY = ":host-copy"  # hidden states through the host, as llama.cpp has them: to compare with
NEW = ":new"  # in a new LLM for each completion, from its first token on
DEPTHS = tuple(map(str, range(1, MAX_DEPTH + 1)))
ARMS = (NONE, *DEPTHS, *(depth + HOST_COPY for depth in DEPTHS), AUTO, *(arm + NEW for arm in (NONE, *DEPTHS, AUTO)))
PHASES = ("draft", "verify", "rewind", "python")
WARM_UP = 16  # tokens


def draft_tokens(arm: str) -> Any:
    """What an LLM calls it: 0, a number or "auto"."""
    arm = arm.removesuffix(HOST_COPY).removesuffix(NEW)
    return AUTO if arm == AUTO else 0 if arm == NONE else int(arm)


def prefill_mode(arm: str) -> str:
    """How hidden states reach the head in this arm: one of PREFILL_MODES."""
    return "host-copy" if arm.endswith(HOST_COPY) else "fused"


@dataclass(frozen=True)
class Settings:
    """What is measured. arms: of ARMS. tokens: to generate after each prompt. model: its name, for the record.
    synthetic: the rates of made-up acceptance, see SyntheticContext; None for what the target says. placing: further
    keywords of Model."""

    model: str
    arms: tuple[str, ...]
    kinds: tuple[str, ...]
    temperatures: tuple[float, ...]
    tokens: int
    rounds: int
    synthetic: tuple[float, ...] | None
    threads: int
    gpu_layers: int
    cache_type: str
    draft_vocab: int | Literal["auto", "all"] = "auto"
    placing: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoded:
    """A completion, which ignores the model's end.

    token_ids: not there when it comes from a file. digest: of them.
    phase_seconds: of decoding alone, the prompt and the first token excluded: PHASES, which add up to it, where python
        is all that is not in a native call; and sample, within draft and verify.
    target_launches, draft_launches: batches handed to either while decoding.
    """

    token_ids: list[int] = field(compare=False)
    stats: Stats
    phase_seconds: dict[str, float]
    target_launches: int
    draft_launches: int
    digest: str = ""

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", digest(self.token_ids))


@dataclass(frozen=True)
class Measurement(Decoded):
    """One arm on one prompt. round: from 0."""

    round: int = field(kw_only=True)
    kind: str = field(kw_only=True)
    temperature: float = field(kw_only=True)
    arm: str = field(kw_only=True)

    @property
    def group(self) -> tuple[int, str, float]:
        """What it is compared within."""
        return self.round, self.kind, self.temperature


@dataclass(frozen=True)
class Group:
    """One prompt at one temperature in one round: what is compared with each other."""

    round: int
    kind: str
    temperature: float
    arms: tuple[str, ...]


def digest(token_ids: Sequence[int]) -> str:
    """What tells a text from others."""
    return hashlib.sha256(" ".join(map(str, token_ids)).encode()).hexdigest()[:16]


def groups(settings: Settings) -> list[Group]:
    """All groups in order."""
    cells = [(kind, temperature) for temperature in settings.temperatures for kind in settings.kinds]
    return [
        Group(turn, kind, temperature, in_turn(settings.arms, turn + i))
        for turn in range(settings.rounds)
        for i, (kind, temperature) in enumerate(cells)
    ]


def decode(llm: LLM, tokens: Sequence[int], params: SamplingParams) -> Decoded:
    """Generates from a prompt."""
    with llm.stream(list(tokens), params) as stream:
        next(stream)  # the prefill and one draw, nothing else
        before = llm.context.counters
        for _ in stream:
            pass
        after = llm.context.counters
    done = stream.completion
    phases = phase_seconds(done.stats.decode_seconds, before, after)
    launches = (
        after.target_decodes - before.target_decodes,
        after.draft_decodes - before.draft_decodes,
    )
    return Decoded(done.token_ids, done.stats, phases, *launches)


def phase_seconds(whole: float, before: Counters, after: Counters) -> dict[str, float]:
    """See Decoded, for `whole` seconds of decoding."""
    native = {
        name: getattr(after, f"{name}_seconds") - getattr(before, f"{name}_seconds")
        for name in ("draft", "verify", "rewind", "sample")
    }
    return native | {"python": whole - native["draft"] - native["verify"] - native["rewind"]}


class Arms:
    """The arms of a run over one model: an LLM for each, all with the same weights. They stay open, warm, with what
    they learnt, but for those of NEW; each is made when it is first asked for."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._prompts = {(kind, i): prompt(model, kind, i) for kind in settings.kinds for i in range(VARIANTS)}
        self._llms: dict[str, LLM] = {}

    def run(self, group: Group, arm: str) -> Decoded:
        """Raises NativeError when there is no memory for its contexts."""
        tokens = self._prompts[group.kind, group.round % VARIANTS]
        params = self._params(self._settings.tokens, group.temperature, group.round)
        if arm.endswith(NEW):
            with closing(self._open(arm, seed=group.round)) as llm:
                return decode(llm, tokens, params)
        if arm not in self._llms:
            self._llms[arm] = self._open(arm)
            self._warm_up(self._llms[arm])
        return decode(self._llms[arm], tokens, params)

    @staticmethod
    def _params(tokens: int, temperature: float, seed: int) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed, ignore_eos=True)

    def _open(self, arm: str, seed: int = 0) -> LLM:
        settings = self._settings
        keywords: dict[str, Any] = {
            "n_ctx": max(map(len, self._prompts.values())) + settings.tokens,
            "n_threads": settings.threads,
            "type_k": settings.cache_type,
            "type_v": settings.cache_type,
            "draft_tokens": draft_tokens(arm),
            "draft_vocab": settings.draft_vocab,
            "prefill": prefill_mode(arm),
            "cache_prompt": False,
        }
        if settings.synthetic is None:
            return LLM(self._model, **keywords)
        return SyntheticLLM(self._model, settings.synthetic, seed, **keywords)

    def _warm_up(self, llm: LLM) -> None:
        """Memory that is touched first, graphs that are built first: not to be the first measurement's cost."""
        for temperature in self._settings.temperatures:
            llm.generate(warm_up(self._model), self._params(min(WARM_UP, self._settings.tokens), temperature, 0))

    def close(self) -> None:
        """Frees all contexts."""
        for llm in self._llms.values():
            llm.close()


def decode_bench(
    settings: Settings, run_arm: Callable[[Group, str], Decoded], **more: Any
) -> PairedBench[Group, Measurement]:
    """The bench of these settings. run_arm: generates in one arm, see Arms.run. more: of PairedBench."""

    def measure(group: Group, arm: str) -> Measurement:
        decoded = run_arm(group, arm)
        return Measurement(**vars(decoded), round=group.round, kind=group.kind, temperature=group.temperature, arm=arm)

    return PairedBench(groups(settings), measure, **more)


class _Continued(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def temperature(self) -> float: ...


def described(of: _Continued) -> str:
    """The kind of prompt, and how it is continued."""
    return f"{of.kind}, {at(of.temperature)}"


def at(temperature: float) -> str:
    """0.7 → "T=0.7"."""
    return f"T={temperature:g}" if temperature else "greedy"
