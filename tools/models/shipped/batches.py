"""Batches of whole cases, packed into rows of equal length."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from chats import answer_of, prompt_of
from stream import training_cases
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

_MISSES = 12  # cases that fit into no row before a batch counts as full


@dataclass
class Batch:
    """tokens, (batch, tokens); starts: where a case begins; kept: how much predicting the token after each counts."""

    tokens: Tensor
    starts: Tensor
    answers: Tensor
    prompts: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(t.to(device, non_blocking=True) for t in vars(self).values()))


def encoded_cases(
    tokenizer: Tokenizer, rng: random.Random, weights: Mapping[str, float]
) -> Iterator[tuple[list[int], int]]:
    """Yield the tokens of training cases, and how many of them are the prompt.

    Prompt and answer are encoded apart, as they are when the model runs.
    """
    for case in training_cases(rng, weights):
        prompt = tokenizer.encode(prompt_of(case)).ids
        yield prompt + tokenizer.encode(answer_of(case)).ids, len(prompt)


class _Packed(IterableDataset[Batch]):
    def __init__(self, tokenizer: Tokenizer, weights: Mapping[str, float], rows: int, length: int, seed: int) -> None:
        self.tokenizer, self.weights, self.rows, self.length, self.seed = tokenizer, weights, rows, length, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed} {worker.id if worker else 0}")
        cases = encoded_cases(self.tokenizer, rng, self.weights)
        waiting: list[tuple[list[int], int]] = []
        while True:
            rows: list[list[tuple[list[int], int]]] = [[] for _ in range(self.rows)]
            room = [self.length] * self.rows
            waiting, drawn = [], iter(waiting)
            while len(waiting) < _MISSES:
                case = next(drawn, None) or next(cases)
                fits = [i for i in range(self.rows) if room[i] >= len(case[0])]
                if fits:
                    at = min(fits, key=room.__getitem__)
                    rows[at].append(case)
                    room[at] -= len(case[0])
                elif len(case[0]) <= self.length:
                    waiting.append(case)
            waiting += drawn
            yield self._batch(rows)

    def _batch(self, rows: list[list[tuple[list[int], int]]]) -> Batch:
        size = (self.rows, self.length)
        batch = Batch(torch.zeros(size, dtype=torch.long), *(torch.zeros(size, dtype=torch.bool) for _ in range(3)))
        for i, row in enumerate(rows):
            at = 0
            for tokens, prompt in row:
                end = at + len(tokens)
                batch.tokens[i, at:end] = torch.tensor(tokens)
                batch.starts[i, at] = True
                batch.prompts[i, at : at + prompt - 1] = True
                batch.answers[i, at + prompt - 1 : end - 1] = True
                at = end
            if at < self.length:
                batch.starts[i, at] = True
        return batch


def batches(
    tokenizer: Tokenizer, weights: Mapping[str, float], rows: int, length: int, seed: int, workers: int
) -> Iterator[Batch]:
    """Yield batches without end; `workers` processes make them, 0 for this one."""
    packed = _Packed(tokenizer, weights, rows, length, seed)
    return iter(DataLoader(packed, batch_size=None, num_workers=workers, pin_memory=torch.cuda.is_available()))
