"""Detection of a head that does not fit its model.

The generated text is right with any head. Without this check's warning, a user would not learn why few drafts are
accepted.
"""

from __future__ import annotations

import logging

_logger = logging.getLogger("pymtp.drafts")

# The check counts in how many rounds the first draft was accepted: in 50 to 90% of the rounds with a head that fits, in
# 30% with a poor head, and as seldom as a random token with random weights. Even if the true share were 15%, the chance
# to see less than 3% in 256 rounds with drafts would be 1e-11. Where drafts are useless, "auto" soon drafts only once
# in 100 tokens; then 16 rounds with drafts are enough. With a poor head, the chance that none of 16 drafts is accepted
# is 1 in 300.
MANY_DRAFTS = 256  # after this many rounds with drafts, the head is judged
MIN_ACCEPTANCE = 0.03
ROUNDS = 1024  # after this many rounds in all, FEW_DRAFTS rounds with drafts are enough
FEW_DRAFTS = 16
MAX_TEMPERATURE = 1.0  # at higher temperatures, the drafts of any head are seldom accepted
MAX_TEXTS_WITHOUT_LOGITS = 3  # after this many texts in a row without finite logits, the head is not used any more


class HeadCheck:
    """A check whether an LLM's head fits its model, by the share of rounds in which the first draft is accepted.

    It logs one warning if that share is far too low, and one if the head's logits are not finite.
    """

    def __init__(self, model: str = "the model", remedy: str = "draft_tokens=0") -> None:
        """
        Start a check that has not seen any rounds.

        model: the name of the model's file, for warnings.
        remedy: the advice in the warning about drafts that are hardly ever accepted.
        """
        self._model, self._remedy = model, remedy
        self._rounds = 0  # number of rounds
        self._with_drafts = 0  # number of rounds with drafts
        self._accepted = 0  # number of rounds whose first draft was accepted
        self._judged = self._warned_of_logits = False
        self._texts_without_logits = 0

    @property
    def head_failed(self) -> bool:
        """Return whether the head's logits were not finite in the last few texts, so that it must not be used again."""
        return self._texts_without_logits >= MAX_TEXTS_WITHOUT_LOGITS

    def add(self, made: int, n_correct: int, not_finite: bool, temperature: float = 0.0) -> None:
        """Record a sequence's drafts in one round. Logs a warning once it is clear that the head does not fit.

        made: the number of drafts that were made.
        n_correct: the number of drafts before the first wrong one.
        not_finite: whether drafting ended because the head's logits were NaN or infinite.
        temperature: the temperature of the request.
        """
        if not_finite:
            self._add_text_without_logits()
        elif made:
            self._texts_without_logits = 0
        if self._judged or temperature > MAX_TEMPERATURE:
            return
        self._rounds += 1
        self._with_drafts += made > 0
        self._accepted += n_correct > 0
        if self._with_drafts >= MANY_DRAFTS or (self._rounds >= ROUNDS and self._with_drafts >= FEW_DRAFTS):
            self._judged = True
            if self._accepted < MIN_ACCEPTANCE * self._with_drafts:
                _logger.warning(
                    "%s: the first draft was accepted in only %d of %d rounds: this head does not fit the model. The "
                    "generated text is right all the same. Try %s; `pymtp tap` measures the acceptance",
                    self._model,
                    self._accepted,
                    self._with_drafts,
                    self._remedy,
                )

    def _add_text_without_logits(self) -> None:
        self._texts_without_logits += 1
        if not self._warned_of_logits:
            self._warned_of_logits = True
            _logger.warning(
                "%s: the head's logits are not finite (NaN or infinity): its drafts are dropped, and text is generated "
                "without drafts. Try another file, or draft_tokens=0",
                self._model,
            )
