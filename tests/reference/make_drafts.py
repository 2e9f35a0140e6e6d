"""Records, at every position of some texts, how far the shipped model's head would have been right.

    pip install .
    python tests/reference/make_drafts.py

pymtp continues pieces of held-out standard library source. At each position the head drafts DEPTH tokens, the target
verifies them, and all but one token is taken back, so that the next position is seen too. What a depth policy would
have met on these texts can then be told exactly, whatever depths it chooses.

drafts.json holds, for each text:

    temperature    of target and head
    right          for each position, how many of the drafts made there were right before the first wrong one
    percent        for each position, the head's probability of each draft (see Context.draft_chain), in whole percent
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model
from pymtp.sampling import Sampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from makers.demo_corpus import documents  # noqa: E402

DEPTH = 8
POSITIONS = 400
TEMPERATURES = (0.0, 0.5, 0.7, 1.0)  # of the texts, in order


def record(context: Context, prompt: list[int], temperature: float) -> dict[str, Any]:
    """What the head's drafts come to at each of POSITIONS positions after the prompt."""
    context.clear()
    context.set_sampling(Sampler(SamplingParams(temperature=temperature)))
    context.prefill(prompt)
    token = context.first_token()
    right: list[int] = []
    percent: list[list[int]] = []
    for _ in range(POSITIONS):
        n_past = context.n_past
        drafts, confidences = context.draft_chain(token, DEPTH)
        drawn = context.verify_chain([token, *drafts])
        context.rewind(n_past + 1)
        right.append(len(drawn) - 1)
        percent.append([round(100 * confidence) for confidence in confidences])
        token = drawn[0]
    return {"temperature": temperature, "right": right, "percent": percent}


def main() -> None:
    path = demo_model()
    texts = [text for text in documents(held_out=True) if len(text) > 3000][: len(TEMPERATURES)]
    with Model(path) as model, Context(model, n_ctx=1024, n_threads=1, draft_tokens=DEPTH) as context:
        recorded = [
            record(context, model.tokenize(text[len(text) // 2 :][:300]), temperature)
            for text, temperature in zip(texts, TEMPERATURES, strict=True)
        ]
    out = Path(__file__).parent / "drafts.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = {"model_sha256": digest, "depth": DEPTH, "texts": recorded}
    out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
