"""Records, at every position of some texts, how far a model's head would have been right.

    pip install .
    python tests/reference/make_drafts.py [FILE]

The shipped model continues random modules, the next one where it ends. At each position the head drafts DEPTH tokens,
the target verifies them, and all but one token is taken back, so that the next position is seen too. What a depth
policy would have met on these texts can then be told exactly, whatever depths it chooses.

drafts.json is of the model that shipped before this one, which continued source of the standard library; `model_sha256`
is of its file. The tests need likely numbers, not those of the latest model, so it need not be made again.

For each temperature it holds:

    temperature    of target and head
    right          for each position, how many of the drafts made there were right before the first wrong one
    percent        for each position, the head's probability of each draft (see Context.draft_chain), in whole percent
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pymtp import SamplingParams
from pymtp.context.context import Context
from pymtp.model.model import Model, demo_model
from pymtp.sampling import Sampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from makers.new_texts import new_prompts  # noqa: E402

DEPTH = 8
POSITIONS = 400
TEMPERATURES = (0.0, 0.5, 0.7, 1.0)  # of the texts, in order


def record(context: Context, prompts: Iterator[str], temperature: float) -> dict[str, Any]:
    """Count the right drafts at POSITIONS positions after prompts, each of which is continued to its end."""
    model, token = context.model, None
    right: list[int] = []
    percent: list[list[int]] = []
    for _ in range(POSITIONS):
        while token is None or model.ends_generation(token):
            context.clear()
            context.set_sampling(Sampler(SamplingParams(temperature=temperature)))
            context.prefill(model.tokenize(next(prompts)))
            token = context.first_token()
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
    prompts = iter(new_prompts(len(TEMPERATURES) * POSITIONS))
    with Model(path) as model, Context(model, n_ctx=1024, n_threads=1, draft_tokens=DEPTH) as context:
        recorded = [record(context, prompts, temperature) for temperature in TEMPERATURES]
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("drafts.json")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = {"model_sha256": digest, "depth": DEPTH, "texts": recorded}
    out.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
