"""The decode bench: decoding without drafts, with fixed depths and with automatic depth, on several kinds of prompts.

An arm is one of the compared variants, such as `none`, "3" or `auto`, see ARMS. A group is one prompt at one
temperature. With forced text, the text after each prompt is given, see forced.ForcedContext.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pymtp.bench.forced import ForcedLLM
from pymtp.bench.paired import BenchSettings, Group, PairedBench
from pymtp.bench.prompts import VARIANTS, prompt, warm_up
from pymtp.bench.synthetic import SyntheticLLM
from pymtp.bench.text_pairs import TextPair, TokenPair, predicted_shares
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
HEAD = AUTO + ":head"  # an arm: automatic depth, with drafts of the head alone
DEPTHS = tuple(map(str, range(1, MAX_DEPTH + 1)))
ARMS = (
    *(NONE, *DEPTHS, *(depth + HOST_COPY for depth in DEPTHS), HEAD, AUTO),
    *(arm + NEW for arm in (NONE, *DEPTHS, AUTO)),
)
PHASES = ("draft", "verify", "rewind", "python")
WARM_UP = 16  # tokens to generate in the warm-up of an LLM


def draft_options(arm: str) -> dict[str, Any]:
    """Return the keywords of LLM that set the drafts of an arm."""
    if arm == HEAD:
        return {"draft_tokens": AUTO, "draft_text": 0}
    arm = arm.removesuffix(HOST_COPY).removesuffix(NEW)
    return {"draft_tokens": AUTO if arm == AUTO else 0 if arm == NONE else int(arm)}


def prefill_mode(arm: str) -> str:
    """Return the prefill mode of an arm: one of PREFILL_MODES."""
    return "host-copy" if arm.endswith(HOST_COPY) else "fused"


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(BenchSettings):
    """Settings of a decode bench.

    arms: variants to compare, from ARMS.
    kinds: kinds of prompts, from KINDS, or those of the forced texts.
    tokens: number of tokens to generate after each prompt, or the most of each forced text.
    synthetic: rates of synthetic acceptance, see SyntheticContext and ForcedContext; None for real acceptance.
    forced_text: where the forced texts come from; None for text that the target chooses.
    """

    arms: tuple[str, ...]
    kinds: tuple[str, ...]
    temperatures: tuple[float, ...]
    tokens: int
    synthetic: tuple[float, ...] | None
    forced_text: str | None = None
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
    kind: kind of the prompt.
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

    def __init__(self, model: Model, settings: DecodeSettings, pairs: Sequence[TextPair] = ()) -> None:
        """Make the arms. pairs: the forced texts; none for text that the target chooses."""
        self._model, self._settings = model, settings
        self._pairs = [TokenPair.of(model, pair).cut(settings.tokens) for pair in pairs]
        # by kind, the prompts with the number of tokens to generate after each
        self._prompts: dict[str, list[tuple[list[int], int]]] = {kind: [] for kind in settings.kinds}
        for pair in self._pairs:
            self._prompts[pair.kind].append((list(pair.prompt), len(pair.text)))
        if not pairs:
            for kind, prompts in self._prompts.items():
                prompts += [(prompt(model, kind, i), settings.tokens) for i in range(VARIANTS)]
        self._llms: dict[str, LLM] = {}

    def measure(self, group: Group, arm: str) -> DecodeMeasurement:
        """Measure one arm: generate after the prompt of a group. Raises NativeError if memory is too small."""
        kind, temperature = group.cell
        tokens, n_tokens = self._prompts[kind][group.round % len(self._prompts[kind])]
        params = self._params(n_tokens, temperature, group.round)
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
            "n_ctx": max(len(tokens) + n for prompts in self._prompts.values() for tokens, n in prompts),
            **settings.keywords,
            **draft_options(arm),
            "draft_vocab": settings.draft_vocab,
            "prefill": prefill_mode(arm),
            "cache_prompt": False,
        }
        if settings.synthetic is None:
            return LLM(self._model, **keywords)
        if self._pairs:
            return ForcedLLM(self._model, self._pairs, settings.synthetic, seed, **keywords)
        return SyntheticLLM(self._model, settings.synthetic, seed, **keywords)

    def _warm_up(self, llm: LLM) -> None:
        """Generate once at each temperature, so that the first measurement does not pay for new memory and graphs.

        With forced text, the warm-up begins one of the texts: after another prompt all drafts would be wrong.
        """
        tokens = self._pairs[0].prompt if self._pairs else warm_up(self._model)
        for temperature in self._settings.temperatures:
            llm.generate(list(tokens), self._params(min(WARM_UP, self._settings.tokens), temperature, 0))

    def predicted(self) -> dict[str, float]:
        """Return, by kind, the mean share of the forced texts' tokens that a look-up predicts, see predicted_share."""
        return predicted_shares(self._pairs)

    def close(self) -> None:
        """Free all contexts."""
        for llm in self._llms.values():
            llm.close()


@contextmanager
def open_bench(
    model: Model, settings: DecodeSettings, pairs: Sequence[TextPair] = ()
) -> Iterator[PairedBench[DecodeMeasurement]]:
    """Make a decode bench of a model, and free its contexts at the end. pairs: see DecodeArms."""
    with closing(DecodeArms(model, settings, pairs)) as arms:
        yield PairedBench(groups(settings), arms.measure, fields={"predicted": arms.predicted()})


def describe_prompts(kind: str, temperature: float) -> str:
    """Describe a kind of prompt and a temperature."""
    return f"{kind}, {format_temperature(temperature)}"


def format_temperature(temperature: float) -> str:
    """Format a temperature: 0.7 → "T=0.7", 0 → "greedy"."""
    return f"T={temperature:g}" if temperature else "greedy"
