"""Runs thousands of random rounds on one context, and checks its results and memory against new contexts.

    pip install . typer
    python tools/checks/soak.py --rounds 10000

Sequences take turns, round by round. Their texts start from empty or continue the held tokens, with prompts of any
length, at any temperature, with penalties and biases or without; every round has another depth and verifies another
number of its drafts; texts end within the accepted tokens, at a limit, at the end of the context, or are aborted
between two rounds. At regular intervals, and at the end, each sequence is checked in three ways:

- All calls since the sequence was last empty are repeated on a new context. Every call must return the same tokens; in
  the end, the logits of target and head and the head's cache must be the same bit for bit: the batches are the same, so
  rounding cannot differ. This finds leftovers of earlier texts, of other sequences and of reused memory.
- The same tokens are decoded on a new context without drafts: the prompts as they were, then token by token. So nothing
  was ever rewound. Here, batches differ, and with them the order of sums in a matmul: logits agree within rounding. The
  drift is the largest difference over the largest logit, of target and head; a wrong replay, a missing row or a
  misplaced token moves it to the order of 1.
- Resident memory is compared with that after the first check. The first two checks run in a forked child, on its copy
  of
  the context: new contexts would leave holes in the heap of the measured process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.engine.rounds import generate_single
from pymtp.errors import PymtpError
from pymtp.model.model import Model
from pymtp.sampling import Sampler
from pymtp.stats import DraftStats

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import held_out_prompts

Settings = dict[str, Any]  # options of a Context
Call = tuple[str, tuple[Any, ...], Any]  # method, arguments without the sequence, result
T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """The results of a check, over all sequences.

    replayed_calls, replay_differs: calls repeated on a new context, and those with another result, including states
    with other bits.
    target_drift, head_drift: the largest difference from token-by-token logits, over the largest logit.
    """

    replayed_calls: int
    replay_differs: int
    target_drift: float
    head_drift: float


class Recorded:
    """One sequence of a context for `generate_single`, which records its calls since it was last empty."""

    def __init__(self, context: Context, seq: int) -> None:
        self._context = context
        self.seq = seq
        self.n_ctx = context.n_ctx
        self.calls: list[Call] = []

    def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        result = method(*arguments, seq=self.seq)
        kept = None if isinstance(result, np.ndarray) else result  # logits are not compared
        self.calls.append((method.__name__, arguments, kept))
        return result

    @property
    def n_past(self) -> int:
        return self._context.tokens_held(self.seq)

    def tokens(self) -> list[int]:
        return self._context.tokens(self.seq)

    def tokens_held(self, seq: int = 0) -> int:
        return self.n_past

    def prefill(self, tokens: Sequence[int], seq: int = 0) -> object:
        return self._call(self._context.prefill, tokens)

    def set_sampling(self, sampler: Sampler) -> None:
        self._call(self._context.set_sampling, sampler)

    def first_token(self, seq: int = 0) -> int:
        return self._call(self._context.first_token)

    def draft_chains(self, tokens: Mapping[int, int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        (token,) = tokens.values()
        return {self.seq: self._call(self._context.draft_chain, token, n)}

    def drafts_over(self, token: int) -> bool:
        return self._context.drafts_over(token)

    def verify_chains(self, chains: Mapping[int, Sequence[int]]) -> dict[int, list[int] | PymtpError]:
        (chain,) = chains.values()
        return {self.seq: self._call(self._context.verify_chain, chain)}

    def rewind(self, n_keep: int, seq: int = 0) -> None:
        self._call(self._context.rewind, n_keep)

    def clear(self) -> None:
        self._context.clear(self.seq)
        self.calls.clear()


class RandomDepth:
    """A depth.DepthPolicy with random depths and numbers of drafts to verify."""

    def __init__(self, numbers: random.Random, most: int) -> None:
        self._numbers = numbers
        self._most = most

    def choose(self, room: int, n_past: int) -> int:
        return self._numbers.randint(0, min(self._most, room))

    def n_to_verify(self, confidences: Sequence[float]) -> int:
        return self._numbers.choice((len(confidences), self._numbers.randint(0, len(confidences))))

    def observe(self, *_: object) -> None:
        """Ignore the result of a round."""


class Life:
    """The random history of one sequence: text after text."""

    def __init__(self, sequence: Recorded, numbers: random.Random, prompts: Sequence[Sequence[int]], most: int) -> None:
        self.sequence = sequence
        self.token = 0  # the last sampled token, which the sequence does not hold
        self._numbers = numbers
        self._prompts = prompts
        self._most = most
        self._text: Generator[list[int], None, None] | None = None

    def step(self) -> bool:
        """Do the next step, and tell whether it was a round."""
        begins = self._text is None
        text = self._text = self._text or self._begin()
        try:
            self.token = next(text)[-1]
        except StopIteration:
            self._text = None
            return False
        if self._numbers.random() < 0.03:
            self.leave()
        return not begins

    def leave(self) -> None:
        """Abort the text."""
        if self._text is not None:
            self._text.close()
            self._text = None

    def _begin(self) -> Generator[list[int], None, None]:
        numbers, held = self._numbers, self.sequence.n_past
        start = numbers.choice(self._prompts)
        if held and numbers.random() < 0.85 and held + 10 < self.sequence.n_ctx:
            prompt = [self.token, *start[: numbers.choice((0, 0, 3, 9))]]
        else:
            self.sequence.clear()
            prompt = list(start[: numbers.randint(1, len(start))])
        self.sequence.set_sampling(Sampler(_any_params(numbers)))
        return generate_single(
            self.sequence,
            prompt,
            lambda _: numbers.random() < 0.02,
            DraftStats(),
            RandomDepth(numbers, self._most),
            max_tokens=numbers.randint(1, 120),
            seq=self.sequence.seq,
        )


def _any_params(numbers: random.Random) -> SamplingParams:
    penalized = numbers.random() < 0.3
    return SamplingParams(
        temperature=numbers.choice((0.0, 0.0, 0.7, 1.0)),
        top_k=numbers.choice((0, 8, 40)),
        seed=numbers.getrandbits(64),
        repetition_penalty=1.2 if penalized else 1.0,
        presence_penalty=0.3 if penalized else 0.0,
        logit_bias={numbers.randrange(1000): 2.0, numbers.randrange(1000): -4.0} if penalized else {},
    )


def _probe(context: Context, seq: int, token: int) -> tuple[NDArray[np.float32], NDArray[np.float32], bytes]:
    """Decode one more token: return the logits of head and target, and the head's state."""
    head = context.draft(token, seq)
    target = context.verify([token], seq)
    return head.reshape(-1), target.reshape(-1), context.head_state(seq)


def replay(calls: Sequence[Call], context: Context, seq: int) -> int:
    """Repeat the calls on a new context, and return the number of calls with another result."""
    differ = 0
    for name, arguments, expected in calls:
        result = getattr(context, name)(*arguments, seq=seq)
        differ += expected is not None and result != expected
    return differ


def feed(calls: Sequence[Call], tokens: Sequence[int], context: Context, seq: int) -> None:
    """Decode the held tokens of these calls on a new context: prompts as they were, all others one by one."""
    held = 0
    for name, arguments, _ in calls:
        if name == "prefill":
            _feed_singly(tokens[:held], context, seq)
            context.prefill(arguments[0], seq)
            held += len(arguments[0])
        elif name == "verify_chain":
            held += len(arguments[0])
        elif name == "rewind":
            held = arguments[0]
    _feed_singly(tokens, context, seq)


def _feed_singly(tokens: Sequence[int], context: Context, seq: int) -> None:
    for token in tokens[context.tokens_held(seq) :]:
        context.verify([token], seq)


def _drift(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def look(context: Context, lives: Sequence[Life], settings: Settings) -> Look:
    """Compare each sequence with new contexts. Adds a token to it."""
    replayed = differs = 0
    target_drift = head_drift = 0.0
    for seq, life in enumerate(lives):
        calls, tokens = life.sequence.calls, life.sequence.tokens()
        if not 0 < len(tokens) < context.n_ctx:
            continue
        head, target, state = _probe(context, seq, life.token)
        with Context(context.model, **settings) as fresh:
            differs += replay(calls, fresh, seq)
            again = _probe(fresh, seq, life.token)
        differs += not np.array_equal(head, again[0])
        differs += not np.array_equal(target, again[1])
        differs += state != again[2]
        replayed += len(calls)
        with Context(context.model, **settings) as fresh:
            feed(calls, tokens, fresh, seq)
            single = _probe(fresh, seq, life.token)
        head_drift = max(head_drift, _drift(head, single[0]))
        target_drift = max(target_drift, _drift(target, single[1]))
    return Look(replayed, differs, target_drift, head_drift)


def look_apart(context: Context, lives: Sequence[Life], settings: Settings) -> Look:
    """Run `look` in a forked child."""
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: send.send(look(context, lives, settings)))
    child.start()
    send.close()  # if the child dies, the wait ends with EOFError
    with receive:
        found: Look = receive.recv()
    child.join()
    return found


def resident() -> int:
    """Return the resident bytes of this process, without free memory of malloc. Needs Linux and glibc."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(
    model: Model,
    rounds: int,
    every: int,
    *,
    seed: int = 0,
    sequences: int = 3,
    draft_tokens: int = 8,
    apart: bool = False,
    **more: Any,
) -> Iterator[tuple[int, Look]]:
    """Yield the number of rounds and the result of a check, every so many rounds and at the end.

    The sequences are cleared after each check. apart: check in a forked child. more: options of the contexts.
    """
    numbers = random.Random(seed)
    settings: Settings = {"n_ctx": 512, "n_threads": 1, "n_seq_max": sequences, "draft_tokens": draft_tokens} | more
    prompts = [model.tokenize(text) for text in held_out_prompts(20, 500)]
    with closing(Context(model, **settings)) as context:
        lives = [Life(Recorded(context, seq), numbers, prompts, draft_tokens) for seq in range(sequences)]
        done = 0
        for target in [*range(every, rounds, every), rounds]:
            while done < target:
                done += numbers.choice(lives).step()
            for life in lives:
                life.leave()
            found = (look_apart if apart else look)(context, lives, settings)
            for life in lives:
                life.sequence.clear()
            yield done, found


def main(
    model: Annotated[Path | None, typer.Option("--model", "-m", exists=True, help="If not given, pymtp's own.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1)] = 10_000,
    every: Annotated[int, typer.Option(min=1, help="Rounds between looks; the first ones are the warm-up.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences that take turns.")] = 3,
    draft_tokens: Annotated[int, typer.Option("--drafts", "-d", min=1, help="The most drafts per round.")] = 8,
    cache_type: Annotated[str, typer.Option(help="Type of the K and V cache.")] = "f16",
    flash_attn: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    drift: Annotated[float, typer.Option(help="The most that logits may drift token by token.")] = 0.01,
    growth: Annotated[int, typer.Option(help="The most bytes that memory may grow after the first look.")] = 1_000_000,
    output: Annotated[Path | None, typer.Option("--json", help="Write every look to this file.")] = None,
) -> None:
    """Exit status 1 when anything is out of bounds."""
    console = Console(highlight=False)
    looks: list[dict[str, Any]] = []
    more = {"type_k": cache_type, "type_v": cache_type, "flash_attn": flash_attn}
    with Model(model) as loaded:
        for done, found in soak(
            loaded, rounds, every, seed=seed, sequences=sequences, draft_tokens=draft_tokens, apart=True, **more
        ):
            gc.collect()
            looks.append({"rounds": done, **asdict(found), "resident": resident()})
            grown = looks[-1]["resident"] - looks[0]["resident"]
            console.print(
                f"{done:>6} rounds: {found.replayed_calls} calls replayed, {found.replay_differs} differ; "
                f"drift {found.target_drift:.1e} (target), {found.head_drift:.1e} (head); {grown / 1e6:+.2f} MB",
                soft_wrap=True,
            )
    if output is not None:
        output.write_text(json.dumps(looks, indent=1) + "\n")
    drifts = max(max(found["target_drift"], found["head_drift"]) for found in looks)
    if any(found["replay_differs"] for found in looks) or drifts > drift or grown > growth:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
