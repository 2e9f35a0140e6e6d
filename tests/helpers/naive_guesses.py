"""Guesses from a text as pymtp/native/runtime/text_index.h defines them, found by looking everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pymtp.drafting.text_index import SEPARATOR, Guess

GRAMS, CANDIDATES, VOTER_SHARE, LONGEST = (6, 3), 16, 0.85, 64  # as in native/runtime/tuning.h and text_index.h

Occurrence = tuple[list[int], int, int]  # the text with what follows it, the index of the next token, equal tokens


def common_end(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of equal tokens at the ends of two texts: at most LONGEST, and none beyond a separator."""
    n = 0
    while n < min(len(a), len(b), LONGEST) and a[-1 - n] == b[-1 - n] != SEPARATOR:
        n += 1
    return n


def ends_of(text: list[int], gram: list[int]) -> list[int]:
    """Return the end of each occurrence of an n-gram, the last first."""
    n = len(gram)
    return [end for end in range(len(text), n - 1, -1) if text[end - 1] == gram[-1] and text[end - n : end] == gram]


def occurrences(text: list[int], whole: list[int], followed: list[int]) -> list[Occurrence]:
    """Return the occurrences of the end of `whole` that are looked at. followed: `text` with the drafts after it."""
    for n in GRAMS:
        gram = whole[-n:]
        if len(gram) == n and SEPARATOR not in gram:
            found = [
                (followed, end, common_end(text[:end], whole))
                for end in ends_of(text, gram)[:CANDIDATES]
                if end < len(followed) and followed[end] != SEPARATOR
            ]
            if found:
                return found
    return []


def naive_guesses(text: list[int], other: list[int], drafts: list[int], n: int) -> Iterator[Guess]:
    """Yield the guesses after `text` and `drafts`."""
    followed = text + drafts  # and then the guesses
    voters = occurrences(text, text + drafts, followed) + occurrences(other, text + drafts, other)
    longest = max((length for *_, length in voters), default=0)
    voters = [voter for voter in voters if voter[2] >= VOTER_SHARE * longest]
    for i in range(n):
        voters = [voter for voter in voters if voter[1] + i < len(voter[0]) and voter[0][voter[1] + i] != SEPARATOR]
        if not voters:
            return
        tokens = [in_[end + i] for in_, end, _ in voters]
        votes = Counter(tokens)
        best = max(
            dict.fromkeys(tokens),
            key=lambda token: (votes[token], max(v[2] for v, t in zip(voters, tokens, strict=True) if t == token)),
        )
        yield Guess(best, max(length for *_, length in voters) + i, votes[best], len(voters))
        voters = [voter for voter, token in zip(voters, tokens, strict=True) if token == best]
        followed.append(best)
