"""Short prompts for decode benches, of several kinds because the acceptance of drafts depends on the kind of text."""

from __future__ import annotations

from random import Random

from pymtp.chat import ChatTemplate
from pymtp.model.model import Model

_TEXTS = {
    "code": (
        'def merge(left, right):\n    """Merge two sorted lists into one."""\n    result = []\n',
        "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n",
        "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
    ),
    "prose": (
        "The lighthouse had been empty for eleven winters when the keeper's daughter came back to the island. She",
        "Rivers do not run straight. Where the ground is soft, the water on the outside of a bend moves faster and",
        "On market days the whole village smelled of bread and wet wool, and nobody asked why the old clock",
    ),
    "lists": (
        "The planets of the solar system, from the sun outwards:\n1. Mercury\n2. Venus\n3.",
        "Shopping list for the week:\n- apples, 1 kg\n- bread, 2 loaves\n- milk, 3 litres\n-",
        "| country | capital |\n|---|---|\n| France | Paris |\n| Japan | Tokyo |\n|",
    ),
    "chat": (
        "Can you explain in simple words why the sky is blue in the day and red in the evening?",
        "My bicycle chain keeps falling off when I change gear. What should I look at first?",
        "Write a short, friendly message to a neighbour, asking to borrow a ladder for the weekend.",
    ),
    "repetition": (
        "the cat sat on the mat and the dog sat on the log. " * 5,
        "one two three four five six seven eight nine ten\n" * 5,
        "x = x + 1\nprint(x)\n" * 8,
    ),
}
_WARM_UP = "Press the two halves together, wait until the glue is dry, and sand the edge with a fine paper"
RANDOM = "random"
KINDS = (*_TEXTS, RANDOM)
VARIANTS = 3
_RANDOM_TOKENS = 32


def warm_up(model: Model) -> list[int]:
    """Return the token ids of a prompt for the warm-up.

    It belongs to none of KINDS, so that an LLM that adapts to it gains nothing for the measured prompts.
    """
    return model.tokenize(_WARM_UP)


def prompt(model: Model, kind: str, variant: int) -> list[int]:
    """Return the token ids of a prompt.

    A prompt of kind "chat" is rendered with the model's chat template, if it has one. A prompt of kind RANDOM consists
    of random tokens that are not empty; for a variant they are always the same.

    kind: one of KINDS.
    variant: number of the prompt among those of its kind, modulo VARIANTS.
    """
    if kind == RANDOM:
        random = Random(variant % VARIANTS)
        tokens: list[int] = []
        while len(tokens) < _RANDOM_TOKENS:
            token = random.randrange(model.n_vocab)
            if model.token_bytes(token):
                tokens.append(token)
        return tokens
    text = _TEXTS[kind][variant % VARIANTS]
    if kind == "chat":
        if model.chat_template is None:
            text = f"User: {text}\nAssistant:"
        else:
            text = ChatTemplate(model).render([{"role": "user", "content": text}])
    return model.tokenize(text)
