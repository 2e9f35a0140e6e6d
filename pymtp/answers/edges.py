"""Text without the whitespace at its edges, as it comes."""

from __future__ import annotations

Slice = tuple[str, int]  # a text, and where it begins


class Edges:
    """leading, trailing: characters that do not count before and behind the text."""

    def __init__(self, leading: str, trailing: str) -> None:
        self.leading, self.trailing = leading, trailing
        self._begun = self._given = False
        self._held: list[Slice] = []

    def push(self, text: str, start: int) -> list[Slice]:
        """What is certain by now to stand within the edges."""
        if not self._begun:
            rest = text.lstrip(self.leading)
            text, start = rest, start + len(text) - len(rest)
        if not text:
            return []
        self._begun = True
        body = text.rstrip(self.trailing) if self.trailing else text
        found: list[Slice] = []
        if body:
            self._given = True
            found, self._held = [*self._held, (body, start)], []
        if len(body) < len(text):
            self._held.append((text[len(body) :], start + len(body)))
        return found

    def interrupt(self) -> None:
        """Something else comes here. What stands at this edge counts where text came before and more comes."""
        self.leading = self.leading or "\n"
        if not self._given:
            self._begun, self._held = False, []

    def flush(self) -> list[Slice]:
        """What was held back."""
        found, self._held = self._held, []
        return found
