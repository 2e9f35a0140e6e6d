"""Trains the demo model's head on the text that its trunk generates: the last stage, after train_demo_model.py.

    pip install . torch==2.13.0 transformers gguf sentencepiece
    python tools/models/polish_demo_head.py --out build/demo --minutes 15

Drafts are verified on the trunk's own greedy text, which differs from the corpus. So the trunk, which is frozen now,
continues pieces of the corpus (through pymtp, with the GGUF that will ship), and the head learns to predict its tokens
over three chained draft steps.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np
import torch
from export_gguf import TYPES, export
from torch import Tensor
from torch.nn import functional
from train_demo_model import fit, head_losses, load, save

from pymtp import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from makers.demo_corpus import documents


def write_texts(model: Path, count: int, prompt: int, tokens: int, rng: random.Random) -> np.ndarray:
    """Return `count` rows of token ids: `prompt` tokens of a training document, and `tokens` of greedy continuation."""
    rows = []
    with LLM(model, n_ctx=prompt + tokens, n_threads=1) as llm:
        ids = [llm.model.tokenize(text) for text in documents(held_out=False)]
        ids = [i for i in ids if len(i) > prompt]
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for done in range(count):
            source = rng.choices(ids, weights=[len(i) for i in ids])[0]
            at = rng.randrange(len(source) - prompt)
            start = source[at : at + prompt]
            rows.append(start + llm.generate(start, params).token_ids)
            if done % 500 == 0:
                print(f"{done} of {count} texts", flush=True)
    return np.asarray(rows, dtype=np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that train_demo_model.py wrote")
    parser.add_argument("--minutes", type=float, default=15, help="training time, the writing of texts not counted")
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--prompt", type=int, default=96, help="tokens of the corpus that a text begins with")
    parser.add_argument("--tokens", type=int, default=160, help="tokens that the trunk writes after them")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    texts = write_texts(args.out / "demo-q8_0.gguf", args.texts, args.prompt, args.tokens, random.Random(args.seed))
    model, head = load(args.out)
    model.requires_grad_(False)
    rng = np.random.default_rng(args.seed)

    def step_loss() -> tuple[Tensor, str]:
        batch = torch.from_numpy(texts[rng.integers(0, len(texts), args.batch)])
        inputs, targets = batch[:, :-1], batch[:, 1:]
        with torch.no_grad():
            hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        chosen = functional.one_hot(targets, model.config.vocab_size).float()
        loss, agreement = head_losses(model, head, inputs, hidden, chosen, first=args.prompt - 1)
        return loss, "agree " + " ".join(f"{a:.2f}" for a in agreement)

    fit(list(head.parameters()), step_loss, args.minutes, args.lr, lambda: save(model, head, args.out))
    for outtype in TYPES:
        export(args.out, args.out / f"demo-{outtype}.gguf", outtype)


if __name__ == "__main__":
    main()
