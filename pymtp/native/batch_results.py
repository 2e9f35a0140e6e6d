"""Results of native calls that serve several sequences, one outcome per sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pymtp.errors import PymtpError
from pymtp.native import check, ffi, lib

T = TypeVar("T")


class Outcomes:
    """Buffers for the tokens of each sequence of a round.

    They are allocated once, because a round of a small model takes only a few hundred microseconds.
    """

    def __init__(self, n_seqs: int, n_tokens: int) -> None:
        """Allocate buffers for n_tokens tokens of each of n_seqs sequences."""
        self.native = ffi.new("struct pymtp_outcome[]", n_seqs)
        self.tokens = ffi.new("llama_token[]", n_seqs * n_tokens)
        self.confidences = ffi.new("float[]", n_seqs * n_tokens)

    def drafts(self, seqs: Sequence[int], n: int) -> dict[int, tuple[list[int], list[float]]]:
        """Read the drafts and confidences of a call that drafted up to n tokens per sequence."""
        tokens, confidences = ffi.unpack(self.tokens, len(seqs) * n), ffi.unpack(self.confidences, len(seqs) * n)
        found: dict[int, tuple[list[int], list[float]]] = {}
        for k, seq in enumerate(seqs):
            i, j = k * n, k * n + self.native[k].n
            found[seq] = tokens[i:j], confidences[i:j]
        return found

    def sampled(self, seqs: Sequence[int], lengths: Sequence[int]) -> dict[int, list[int] | PymtpError]:
        """Read the tokens of a call that sampled up to `lengths` tokens per sequence.

        If a grammar allows some tokens and then no further one, these tokens are returned without an error. The next
        call raises the error, unless the text ends with these tokens.
        """
        tokens = ffi.unpack(self.tokens, sum(lengths))
        found: dict[int, list[int] | PymtpError] = {}
        start = 0
        for k, seq in enumerate(seqs):
            outcome = self.native[k]
            some = outcome.status == lib.PYMTP_OK or (outcome.status == lib.PYMTP_DEAD_END and outcome.n > 0)
            found[seq] = tokens[start : start + outcome.n] if some else self._error(k)
            start += lengths[k]
        return found

    def _error(self, k: int) -> PymtpError:
        """Return the error of the k-th sequence, which has no tokens."""
        try:
            check(lib.pymtp_outcome_error(self.native + k))
        except PymtpError as error:
            return error
        raise AssertionError("a failed outcome has an error")


def only(found: Mapping[int, T | PymtpError]) -> T:
    """Return the single value of a result for one sequence, or raise the error that is there instead."""
    (outcome,) = found.values()
    if isinstance(outcome, PymtpError):
        raise outcome
    return outcome


def read_logprobs(pair: Any, seq: int) -> list[tuple[int, float]]:
    """Read the (token, log-probability) pairs of the tokens that were sampled last in a sequence."""
    found = ffi.new("const struct pymtp_logprob **")
    n = lib.pymtp_pair_logprobs(pair, seq, found)
    return [(p.token, p.logprob) for p in found[0][0:n]]
