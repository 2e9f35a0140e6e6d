"""Detection of a head that does not fit its model.

The text is right with any head. Without this check's warning, nothing would show why drafts are not accepted.
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("pymtp.drafts")

# The first draft of a round is accepted 50 to 90% of the time with a head that fits, 30% with a poor head, and as often
# as a random token with random weights. With an acceptance of 15%, the chance of less than 3% in 256 first drafts is
# 1e-11. Where drafts are useless, "auto" soon drafts once in 100 tokens or less. With a poor head, the chance that none
# of 16 such drafts is accepted is 1 in 300.
FIRST_DRAFTS = 256
MIN_ACCEPTANCE = 0.03
ROUNDS = 1024  # after this many rounds, FEW_DRAFTS are enough
FEW_DRAFTS = 16
MAX_TEMPERATURE = 1.0  # above it, the drafts of any head are seldom accepted
MAX_TEXTS_WITHOUT_LOGITS = 3  # after this many texts in a row without finite logits, the head is not used any more


class HeadCheck:
    """The acceptance of the first drafts of an LLM's rounds, for one warning about a head that does not fit."""

    def __init__(self, model: str = "the model", remedy: str = "draft_tokens=0") -> None:
        """
        Begin without drafts.

        model: the name of the model's file, for warnings.
        remedy: the advice of the warning when drafts are hardly ever accepted.
        """
        self._model, self._remedy = model, remedy
        # rounds, those with drafts, and those whose first draft was right
        self._rounds = self._first = self._right = 0
        self._judged = self._warned_of_logits = False
        self._texts_without_logits = 0

    @property
    def head_failed(self) -> bool:
        """Return whether the head gave no finite logits in the last texts: it makes no drafts from now on."""
        return self._texts_without_logits >= MAX_TEXTS_WITHOUT_LOGITS

    def add(self, made: int, right: int, mute: bool, temperature: float = 0.0) -> None:
        """Count a sequence's part of a round.

        made, right: the number of its drafts, and of those before the first wrong one.
        mute: whether its drafts ended because the head's logits were NaN or infinite.
        temperature: that of the request.
        """
        if mute:
            self._add_text_without_logits()
        elif made:
            self._texts_without_logits = 0
        if self._judged or temperature > MAX_TEMPERATURE:
            return
        self._rounds += 1
        self._first += made > 0
        self._right += right > 0
        if self._first >= FIRST_DRAFTS or (self._rounds >= ROUNDS and self._first >= FEW_DRAFTS):
            self._judged = True
            if self._right < MIN_ACCEPTANCE * self._first:
                _logger.warning(
                    "%s: of the first %d drafts %d were accepted: this head does not fit the model. The text is right "
                    "all the same. Try %s; `pymtp tap` measures it",
                    self._model,
                    self._first,
                    self._right,
                    self._remedy,
                )

    def _add_text_without_logits(self) -> None:
        self._texts_without_logits += 1
        if not self._warned_of_logits:
            self._warned_of_logits = True
            _logger.warning(
                "%s: the head's logits are no finite numbers (NaN or infinity): its drafts are dropped, and the text "
                "is written without them. Try another file, or draft_tokens=0",
                self._model,
            )
