"""Drafts from text: what followed where the end of a request's text occurred before, and the choice of their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pymtp.drafting.depth import RoundCosts, SequenceDepth
from pymtp.drafting.text_index import TextIndex
from pymtp.errors import NativeError
from pymtp.native import ffi, lib
from pymtp.native.process import refuse_copies


def _made(native: Any, free: Any) -> Any:
    """Let Python free a native object. Raises NativeError if there was no memory for it."""
    if native == ffi.NULL:
        raise NativeError("no memory for drafts from text")
    return ffi.gc(native, free)


class GuessRates:
    """How often guesses are right, learnt from all texts of an LLM, see native/runtime/guess_rates.h."""

    def __init__(self) -> None:
        self.native: Any = _made(lib.pymtp_guess_rates_init(), lib.pymtp_guess_rates_free)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class TextDrafts:
    """The text of a request, and the guesses about its next tokens, see native/runtime/text_drafts.h."""

    def __init__(self, rates: GuessRates, earlier: TextIndex | None = None) -> None:
        """Begin a text without tokens.

        earlier: the outputs of earlier requests, which may hold the end of this text, too.
        """
        self._rates, self._earlier = rates, earlier  # keeps the natives alive
        self.generated: tuple[int, ...] = ()  # tokens that TextChoice has not read yet
        self.failed = False  # whether there was no memory for tokens: no more drafts come from this text
        self.native: Any = _made(
            lib.pymtp_text_drafts_init(rates.native, ffi.NULL if earlier is None else earlier.native),
            lib.pymtp_text_drafts_free,
        )

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens of the prompt, and of the output before a restart. Raises NativeError without memory."""
        if lib.pymtp_text_drafts_add(self.native, tokens, len(tokens)) < 0:
            raise NativeError("no memory for the text's index")

    def generate(self, tokens: Sequence[int]) -> None:
        """Append tokens of the output, which the next `TextChoice.choose` reads."""
        self.generated = (*self.generated, *tokens)  # a copy: a stream's reader gets the list, and may change it

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)


class DraftChoice(NamedTuple):
    """The drafts of a round in which some sequences verify drafts from text.

    by_text: the drafts from text of each sequence; empty for those that get drafts of the head.
    depth: the number of drafts of the head for each of the other sequences.
    split: whether neighbours with drafts from text are verified together, and the others by themselves.
    """

    by_text: list[list[int]]
    depth: int
    split: bool


class TextChoice:
    """Chooses between drafts from text and drafts of the head, see native/runtime/text_choice.h."""

    def __init__(self, costs: RoundCosts, *, n_seq_max: int, max_text: int, max_head: int, max_rows: int) -> None:
        """Make the choice of a context.

        costs: the costs of rounds in the context.
        n_seq_max: the number of sequences.
        max_text, max_head: the largest numbers of drafts of a sequence from text, and of the head.
        max_rows: the largest number of rows in a decode, of all sequences together.
        """
        self._costs, self.max_text = costs, max_text
        self._limits = ffi.new("struct pymtp_draft_limits *", (max_text, max_head, max_rows))
        self._lengths = ffi.new("int32_t[]", n_seq_max)
        self._tokens = ffi.new("llama_token[]", n_seq_max * max_text)
        self._choice = ffi.new("struct pymtp_draft_choice *")

    def choose(
        self, texts: Sequence[TextDrafts | None], heads: Sequence[SequenceDepth], limits: Sequence[int]
    ) -> DraftChoice | None:
        """Read what was generated, and choose the drafts of the next round; None for no drafts from text.

        texts: the text of each sequence, in the order of their numbers; None for no drafts from text.
        heads: what is known of the head's drafts for each sequence.
        limits: the most drafts that each sequence can use.
        """
        n = len(texts)
        natives, n_generated = [], []
        generated: list[int] = []
        for text in texts:
            if text is None or text.failed:
                natives.append(ffi.NULL)
                n_generated.append(0)
            else:
                natives.append(text.native)
                n_generated.append(len(text.generated))
                generated += text.generated
                text.generated = ()
        chosen = lib.pymtp_choose_text_drafts(
            self._costs.native,
            n,
            natives,
            [head.acceptance.native for head in heads],
            n_generated,
            generated,
            limits,
            self._limits,
            self._lengths,
            self._tokens,
            self._choice,
        )
        if chosen < 0:
            for text, length in zip(texts, ffi.unpack(self._lengths, n), strict=True):
                if text is not None and length < 0:
                    text.failed = True
        if chosen <= 0:
            return None
        starts = range(0, n * self.max_text, self.max_text)
        by_text = [
            ffi.unpack(self._tokens + start, length) if length else []
            for start, length in zip(starts, ffi.unpack(self._lengths, n), strict=True)
        ]
        return DraftChoice(by_text, self._choice.depth, self._choice.split)

    def extend(
        self, text: TextDrafts, head: SequenceDepth, limit: int, drafts: Sequence[int], confidences: Sequence[float]
    ) -> list[int]:
        """Return drafts from text to verify after drafts of the head, in a round of one sequence.

        limit: the most drafts that the sequence can use.
        confidences: the head's probability of each draft.
        """
        n = lib.pymtp_extend_drafts(
            self._costs.native,
            text.native,
            head.acceptance.native,
            limit,
            self._limits,
            drafts,
            confidences,
            len(drafts),
            self._tokens,
        )
        return list(ffi.unpack(self._tokens, n)) if n else []

    def observe(self, n_seqs: int, verified: int, verify_seconds: float) -> None:
        """Learn the time of a verification with drafts from text: n_seqs sequences with `verified` drafts of each."""
        lib.pymtp_costs_observe_verify(self._costs.native, n_seqs, verified, verify_seconds)

    def __reduce__(self) -> NoReturn:
        refuse_copies(self)
