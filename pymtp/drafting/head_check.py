"""Notices a head that does not fit its model, and says so once: the text is right all the same, and nothing else shows
why drafts bring nothing."""

from __future__ import annotations

import logging

_logger = logging.getLogger("pymtp.drafts")

# A head that fits is right in the first draft of a round 50 to 90% of the time, a poor one 30%, and one with random
# weights as often as a guess among the vocabulary. One that is right 15% of the time is below 3% in 256 first drafts
# once in 10^11 times. "auto" soon drafts once in 100 tokens or less where drafts bring nothing: a poor head is never
# right in 16 of these once in 300 times.
FIRST_DRAFTS = 256
SHARE = 0.03
ROUNDS = 1024  # after which FEW_DRAFTS are enough
FEW_DRAFTS = 16
HOTTEST = 1.0  # a temperature above which the drafts of any head are seldom right
MUTE = 3  # texts in a row without a number: the next one will have none either


class DraftWatch:
    """The first drafts of an LLM's rounds, and what came of them."""

    def __init__(self, model: str = "the model", remedy: str = "draft_tokens=0") -> None:
        """
        model: its file's name. remedy: what may help where drafts are hardly ever right.
        """
        self._model, self._remedy = model, remedy
        self._rounds = self._first = self._right = 0
        self._judged = self._told_of_numbers = False
        self._mute = 0

    @property
    def gives_up(self) -> bool:
        """Whether the head gave no finite logits in the last texts: further drafts are for nothing."""
        return self._mute >= MUTE

    def add(self, made: int, right: int, mute: bool, temperature: float = 0.0) -> None:
        """Count a sequence's part of a round.

        made, right: its drafts, and those before the first wrong one. mute: they ended where the head's logits were no
            finite numbers.
        """
        if mute:
            self._hear_nothing()
        elif made:
            self._mute = 0
        if self._judged or temperature > HOTTEST:
            return
        self._rounds += 1
        self._first += made > 0
        self._right += right > 0
        if self._first >= FIRST_DRAFTS or (self._rounds >= ROUNDS and self._first >= FEW_DRAFTS):
            self._judged = True
            if self._right < SHARE * self._first:
                _logger.warning(
                    "%s: of the first %d drafts %d were accepted: this head does not fit the model. The text is right "
                    "all the same. Try %s; `pymtp tap` measures it",
                    self._model,
                    self._first,
                    self._right,
                    self._remedy,
                )

    def _hear_nothing(self) -> None:
        self._mute += 1
        if not self._told_of_numbers:
            self._told_of_numbers = True
            _logger.warning(
                "%s: the head's logits are no finite numbers (NaN or infinity): its drafts are dropped, and the text "
                "is written without them. Try another file, or draft_tokens=0",
                self._model,
            )
