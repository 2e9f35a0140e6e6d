"""The batch bench with forced texts: all prompts are prefilled, and then all requests decode together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pymtp.bench.batch import UBATCH, BatchMeasurement, BatchSettings, TrafficResult, groups, summarize
from pymtp.bench.decode import draft_options
from pymtp.bench.forced import ForcedLLM
from pymtp.bench.paired import Group, PairedBench
from pymtp.bench.text_pairs import TextPair, TokenPair, predicted_shares
from pymtp.bench.traffic import Traffic, prepare, run_on_engine_thread
from pymtp.llm import LLM
from pymtp.model.model import Model
from pymtp.sampling import SamplingParams


class ForcedBatchArms:
    """The arms of a batch bench with forced texts. All have the same requests in a bench round."""

    def __init__(self, model: Model, settings: BatchSettings, pairs: Sequence[TextPair]) -> None:
        self._model, self._settings = model, settings
        self._pairs = [TokenPair.of(model, pair).cut(settings.tokens) for pair in pairs]

    def measure(self, group: Group, arm: str) -> BatchMeasurement:
        """Measure an arm in a new LLM. Raises NativeError if there is too little memory for its contexts."""
        acceptance, n = group.cell
        with closing(self._new_llm(group, arm)) as llm:
            decode_together(llm, [pair.cut(self._settings.warm_up) for pair in self.requests(group.round + 1, n)])
            result = decode_together(llm, self.requests(group.round, n), self._settings.temperature)
        return BatchMeasurement(**vars(result), round=group.round, acceptance=acceptance, n=n, arm=arm, arriving=None)

    def requests(self, number: int, n: int) -> list[TokenPair]:
        """Return the requests of a bench round: of the settings' kinds in turn, and of each kind the next texts."""
        kinds = [self._settings.kinds[i % len(self._settings.kinds)] for i in range(n)]
        counts, requests = Counter(kinds), list[TokenPair]()
        for i, kind in enumerate(kinds):
            own = [pair for pair in self._pairs if pair.kind == kind]
            requests.append(own[(number * counts[kind] + kinds[:i].count(kind)) % len(own)])
        return requests

    def predicted(self) -> dict[str, float]:
        """Return, by kind, the share of the texts' tokens that a look-up predicts."""
        return predicted_shares(self._pairs)

    def _new_llm(self, group: Group, arm: str) -> LLM:
        settings = self._settings
        assert settings.synthetic is not None
        keywords: dict[str, Any] = {
            "n_ctx": max(len(pair.prompt) + len(pair.text) for pair in self._pairs),
            "n_ubatch": UBATCH,
            "n_seq_max": group.cell[1],
            **settings.keywords,
            **draft_options(arm),
            "draft_vocab": settings.draft_vocab,
            "cache_prompt": False,
        }
        return ForcedLLM(self._model, self._pairs, settings.synthetic, group.round, **keywords)


@contextmanager
def open_forced_bench(
    model: Model, settings: BatchSettings, pairs: Sequence[TextPair]
) -> Iterator[PairedBench[BatchMeasurement]]:
    """Make a batch bench of a model with forced texts."""
    arms = ForcedBatchArms(model, settings, pairs)
    yield PairedBench(groups(settings), arms.measure, fields={"predicted": arms.predicted()})


def decode_together(llm: LLM, requests: Sequence[TokenPair], temperature: float = 0.0) -> TrafficResult:
    """Prefill all prompts, then decode all requests together. The result covers the decoding, after the first tokens.

    The first tokens are in `tokens` of the result, and the prefill of all prompts in `first_token`. The LLM must have a
    sequence for each request.
    """
    submits = []
    for pair in requests:
        params = SamplingParams(len(pair.text), temperature=temperature, seed=0, ignore_eos=True)
        # the request pauses after its first token, until max_unread is None
        submits.append(prepare(llm, list(pair.prompt), params, max_unread=1))

    def run() -> TrafficResult:
        traffic = Traffic(llm._engine)
        timings = [traffic.add(submit()) for submit in submits]
        traffic.step_until(lambda: all(timing.pieces for timing in timings))
        traffic.step_seconds.clear()
        counters, figures, begin = llm.context.counters, llm.figures(), time.perf_counter()
        for timing in timings:
            timing.request.max_unread = None
            timing.pieces = [begin]  # gaps count from here
        traffic.step_until(lambda: False)
        seconds = time.perf_counter() - begin
        return summarize(traffic, seconds, (counters, llm.context.counters), (figures, llm.figures()))

    return run_on_engine_thread(llm, run)
