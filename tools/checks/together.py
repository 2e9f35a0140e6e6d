"""Games of random requests on one LLM, each repeated alone: same_text.py --vary company, prefixes and images.

Requests arrive together by steps of the engine, one after the other, and from threads with an event loop; some are
cancelled, some fail. With a prefix cache, the host memory for prefixes is none, too little, or ample, and between two
plays prefixes are saved to files, which another LLM loads. Each request is then repeated on an LLM with one sequence
and no cache, in some of the games without drafts or with another n_ubatch. Tokens, log-probabilities (bit for bit),
text and finish reason must be the same, for a cancelled request the beginning; where each has room for its drafts, also
the drafted and accepted tokens. The host memory in the figures must stay within cache_bytes.

With images, prompts are those of image_requests.py, and every other game has a prefix cache. All LLMs number the images
alike, and each encodes them itself.

Games with threads, and games that choose depths by measured times, may run differently each time.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import mmproj_file, model_file
from image_requests import ImagePool, ImageRequestGenerator
from makers.new_texts import new_prompts
from random_requests import Outcome, RequestGenerator, RequestSpec
from run_requests import by_steps, by_threads, one_by_one

from pymtp import LLM, InvalidRequestError, Model, SamplingParams

PLAYS = 3  # per game
REQUESTS = 16  # per play
SPAN = 20  # steps within which requests arrive
BUDGETS = (0, 0.5, 1.5, 3, 6, 12, 25, None)  # cache_bytes in states of a sequence; None for the default
CACHES = ("f16", "f16", "f32", "f32", "bf16", "q8_0", "q4_0")
FIGURES = ("lookups", "hits", "found", "copied", "loaded", "saved", "evicted")  # of the prefix cache
COLUMNS = ("requests", "cancelled", "failed", "tokens", "logprobs", "drafts", "accepted", *FIGURES, "files")
COLUMNS += ("images", "differ")


@dataclass
class GameResults:
    """The results of a model's games: counts by the names of COLUMNS, "sequences" in all "rounds", and differences.

    "drafts" and "accepted" count requests whose drafts were compared; "differ" tokens, or 1 for another difference.
    """

    model: str
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Return a row of the table of results."""
        together = f"{self.counts['sequences'] / max(1, self.counts['rounds']):.1f}"
        return {name: self.counts[name] for name in COLUMNS} | {"together": together, "s": f"{self.seconds:.0f}"}


def any_settings(numbers: random.Random) -> dict[str, Any]:
    """Return random options of an LLM, except n_seq_max and those of the prefix cache."""
    type_k, other = numbers.choices(CACHES, k=2)
    type_v = numbers.choice((type_k, type_k, other))
    n_ubatch = numbers.choice((16, 32, 48, 64, 128, 512))
    settings = {
        "n_ctx": numbers.choice((256, 512, 512, 1024)),
        "n_batch": n_ubatch * numbers.choice((1, 1, 2)),
        "n_ubatch": n_ubatch,
        "n_threads": 1,
        "type_k": type_k,
        "type_v": type_v,
        "flash_attn": "on" if type_v.startswith("q") else numbers.choice(("auto", "on", "off")),
    }
    drafts = numbers.choice(("auto", *range(8)))
    # three in nine draft from text, too
    by_text: dict[Any, Any] = {"auto": "auto", 4: 7, 6: min(63, n_ubatch - 1)}
    return settings | {"draft_tokens": "auto" if drafts in by_text else drafts, "draft_text": by_text.get(drafts, 0)}


class Alone:
    """The outcomes of an LLM with one sequence and no prefix cache, each generated once."""

    def __init__(self, model: Model, settings: dict[str, Any]) -> None:
        self.llm = LLM(model, n_seq_max=1, cache_prompt=False, **settings)
        self.close = self.llm.close
        self._outcomes: dict[tuple[tuple[int, ...], str], Outcome] = {}
        self.state_bytes: int = self.llm.context.state.max_bytes

    def __call__(self, spec: RequestSpec, params: SamplingParams) -> Outcome:
        asked = (tuple(spec.prompt), repr(params))
        if asked not in self._outcomes:
            alone = replace(spec, params=params, cancel_after=None, branch_points=())
            (self._outcomes[asked],) = one_by_one(self.llm, [alone], random.Random(0)).values()
        return self._outcomes[asked]


class Game:
    """Requests that share prompts, and the LLMs that run them together.

    cached: with a prefix cache. mmproj: a projector of the model; the prompts then have images.
    """

    def __init__(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        seed: int,
        found: GameResults,
        *,
        cached: bool,
        mmproj: Path | None = None,
    ) -> None:
        self.model, self.found, self.seed, self.cached = model, found, seed, cached
        self.numbers = random.Random(seed)
        pieces = [model.detokenize(text[:400]) for text in texts] if mmproj else []
        self.pool = ImagePool(random.Random(seed), pieces) if mmproj else None
        self.loaded: dict[str, Any] = {"mmproj": mmproj} if mmproj else {}
        self.settings = any_settings(self.numbers)
        self.n_seq_max = self.numbers.randint(1, 6) if cached else self.numbers.randint(2, 8)
        make = ImageRequestGenerator if mmproj else RequestGenerator
        self.makes = make(model, self.numbers, texts, self.settings["n_ctx"], self.settings["n_ubatch"])

    def play(self) -> None:
        """Run all plays, each with the cache that the ones before left."""
        numbers = self.numbers
        others: Sequence[dict[str, Any]] = ({"n_batch": 512, "n_ubatch": 512},)
        others = others if self.cached else (*others, {"draft_tokens": 0, "draft_text": 0})
        apart = self.settings | numbers.choice(({}, *others))
        with closing(Alone(self.model, apart | self.loaded)) as alone, tempfile.TemporaryDirectory() as folder:
            if self.pool is not None and isinstance(self.makes, ImageRequestGenerator):
                self.makes.read(alone.llm, self.pool)
            budget = numbers.choice(BUDGETS)
            limit = None if budget is None else int(budget * alone.state_bytes)
            memory: dict[str, Any] = {"cache_bytes": limit} if self.cached else {"cache_prompt": False}
            files = list[Path]()
            left = PLAYS
            while left:
                here = min(left, numbers.randint(1, PLAYS - 1))
                left -= here
                options = memory | self.settings | self.loaded
                with LLM(self.model, n_seq_max=self.n_seq_max, **options) as llm:
                    if self.pool is not None:
                        self.pool.number(llm)
                    for path in files:
                        self._load(llm, path, limit)
                    for _ in range(here):
                        self._play(
                            llm, alone, limit, same_depths=apart["draft_tokens"] == self.settings["draft_tokens"]
                        )
                    files = self._save(llm, Path(folder)) if left and self.cached else []
                    self._count(llm)

    def _save(self, llm: LLM, folder: Path) -> list[Path]:
        """Save some prefixes of later prompts to files."""
        if self.pool is not None:
            path = folder / f"{self.numbers.getrandbits(64):x}"
            chat = self.numbers.choice(self.pool.chats)
            if len(llm.chat_prompts.prompt(chat).tokens) > self.settings["n_ctx"]:
                return []
            llm.save_prefix(chat, path)
            return [path]
        some = self.numbers.sample(self.makes.known, min(len(self.makes.known), self.numbers.randint(1, 3)))
        paths = [folder / f"{self.numbers.getrandbits(64):x}" for _ in some]
        for tokens, path in zip(some, paths, strict=True):
            llm.save_prefix(tokens[: self.settings["n_ctx"]], path)
        return paths

    def _load(self, llm: LLM, path: Path, limit: int | None) -> None:
        try:
            llm.load_prefix(path)
        except InvalidRequestError as error:  # if there is no room
            if limit is None or "cache_bytes" not in str(error):
                raise
        else:
            self.found.counts["files"] += 1

    def _count(self, llm: LLM) -> None:
        figures, counts = llm.figures(), self.found.counts
        counts["rounds"] += figures.rounds
        counts["sequences"] += sum(n * times for n, times in figures.sequences.items())
        if self.cached:
            counts.update({name: getattr(figures.prefixes, name) for name in FIGURES})

    def _play(self, llm: LLM, alone: Alone, limit: int | None, *, same_depths: bool) -> None:
        numbers = self.numbers
        specs = self.makes.make_many(REQUESTS, SPAN)
        way = numbers.choice((one_by_one if self.cached else by_steps, by_steps, by_steps, by_threads))
        self.found.counts[way.__name__] += 1
        played = way(llm, specs, numbers)
        nbytes = llm.figures().prefixes.nbytes
        if self.cached and limit is not None and nbytes > limit:
            self._differs(way.__name__, f"{nbytes} bytes are kept, {limit} may be")
        for (number, i), one in sorted(played.items()):
            spec = specs[number]
            whole = alone(spec, spec.completions_params[i])
            self.makes.answered(spec, whole)
            beside = [spec] if way is one_by_one else specs
            fixed = way is not by_threads and self.settings["draft_tokens"] != "auto"
            room = fixed and (len(beside) == spec.params.n == 1 or self._has_room(beside))
            self.found.counts["images"] += len(spec.images)
            where = f"{way.__name__}, request {number}.{i} of {len(spec.prompt)} tokens"
            self._compare(one, whole, where, same_drafts=same_depths and room)

    def _has_room(self, specs: Sequence[RequestSpec]) -> bool:
        """Tell whether all requests together have room for as many drafts as each of them alone."""
        settings = self.settings
        rows = 1 + settings["draft_tokens"]
        longest = max(len(spec.prompt) + (spec.params.max_tokens or settings["n_ctx"]) for spec in specs)
        return self.n_seq_max * rows <= settings["n_ubatch"] and longest + rows < settings["n_ctx"]

    def _compare(self, one: Outcome, whole: Outcome, where: str, *, same_drafts: bool) -> None:
        counts = self.found.counts
        counts.update({"requests": 1, one.reason: 1, "tokens": len(one.token_ids), "logprobs": len(one.logprobs or ())})
        if difference := one.difference(whole):
            pairs = zip(one.token_ids, whole.token_ids, strict=False)
            self._differs(where, difference, sum(a != b for a, b in pairs))
        elif same_drafts and one.stats and whole.stats and one.reason in ("stop", "length"):
            drafts, expected = ([s.drafted, s.accepted_per_position] for s in (one.stats, whole.stats))
            counts.update({"drafts": one.stats.drafted, "accepted": one.stats.accepted})
            if drafts != expected:
                self._differs(where, f"drafted, accepted: {drafts}, alone {expected}")

    def _differs(self, where: str, difference: str, tokens: int = 0) -> None:
        again = f"--seed {self.seed} --tokens 1, {self.n_seq_max} sequences, {self.settings}"
        self.found.counts["differ"] += max(1, tokens)
        self.found.differences.append(f"{again}, {where}: {difference}")


def play_games(job: tuple[str, Path, int, int, str]) -> GameResults:
    """Play games with one model until enough tokens are compared.

    job: the name of the model, the folder of models, how many tokens, the first seed, and what same_text.py varies.
    """
    name, folder, tokens, seed, kind = job
    found, started = GameResults(name), time.perf_counter()
    with closing(Model(model_file(name, folder))) as model:
        texts = [model.tokenize(text) for text in new_prompts(12, 3000)]
        mmproj = mmproj_file(name, folder) if kind == "images" else None
        while found.counts["tokens"] < tokens:
            cached = kind == "prefixes" or (kind == "images" and seed % 2 == 0)
            Game(model, texts, seed, found, cached=cached, mmproj=mmproj).play()
            seed += 1
    found.seconds = time.perf_counter() - started
    return found
