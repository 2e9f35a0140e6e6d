"""Checks the network that train.py trains: its logits and drafts against transformers and pymtp.

    pip install . torch transformers gguf jinja2 tokenizers
    python tools/models/shipped/check_network.py build/shipped/model-f32.gguf

Raises AssertionError for a difference.
"""

import argparse
import sys
from pathlib import Path

import model_file
import numpy as np
import torch
from convolution import convolve
from network import Documents, Network
from torch import Tensor

from pymtp import Model
from pymtp.context.context import Context

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "reference"))

import make_golden  # isort: skip  # reads the file as transformers' model, and imports the reference head

BOUND = 1e-4
TEXT = "<|im_start|>user\nWhat is 457 + 86?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\ndef f(n):\n    a"
FED = (300, 301, 302)  # tokens that the head is fed with, after the text


def check_convolution() -> None:
    position = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2]])
    x, weight = torch.randn(1, 10, 3).double().requires_grad_(), torch.randn(3, 4).double().requires_grad_()
    reaching = [(position[:, by:] < by).nonzero(as_tuple=True) for by in range(1, 4)]
    padded = [torch.nn.functional.pad(part, (0, 0, 3, 0)) for part in x.split([5, 2, 3], 1)]
    slow = [sum(part[:, i : part.shape[1] - 3 + i] * weight[:, i] for i in range(4)) for part in padded]
    _same("convolution", convolve(x, weight, reaching), torch.cat(slow, 1))
    torch.autograd.gradcheck(lambda x, weight: convolve(x, weight, reaching), (x, weight))


def check_documents(network: Network) -> None:
    """Check that a document's rows and drafts do not depend on the document before it in the batch."""
    tokens = torch.randint(network.shape.vocab, (2, 90))
    both, second = torch.zeros(2, 90, dtype=torch.bool), torch.zeros(2, 50, dtype=torch.bool)
    both[:, [0, 40]] = second[:, 0] = True
    together, alone = Documents(both, network.shape), Documents(second, network.shape)
    rows, own = network(tokens, together), network(tokens[:, 40:], alone)
    _same("documents", rows[:, 40:], own, 1e-2)
    drafts = zip(network.drafts(tokens, rows, together, 3), network.drafts(tokens[:, 40:], own, alone, 3), strict=True)
    for step, (here, there) in enumerate(drafts):
        _same(f"documents, draft {step + 1}", here[:, 40 + step :], there[:, step:], 1e-2)


def network_logits(network: Network, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return the trunk's logits of a text's tokens, and the head's of three chained drafts that are fed with FED."""
    starts = torch.zeros(1, len(ids) + len(FED), dtype=torch.bool)
    starts[0, 0] = True
    documents, tokens = Documents(starts, network.shape), torch.tensor([[*ids, *FED]])
    rows = network(tokens, documents)
    drafts = [h[0, len(ids) + i] for i, h in enumerate(network.drafts(tokens, rows, documents, len(FED)))]
    return network.logits(rows[0, : len(ids)]), network.logits(torch.stack(drafts))


def transformers_logits(path: Path, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return the same from transformers and the reference head, the way the golden outputs are made."""
    trunk, head = make_golden.load(path)
    logits, rows = make_golden.run_trunk(trunk, ids)
    tokens, hidden, drafts = list(ids), torch.nn.functional.pad(rows["post_norm"], (0, 0, 1, 0)), []
    for token in FED:
        tokens.append(token)
        embedding = trunk.model.embed_tokens(torch.tensor([tokens]))
        _, normed = head(embedding, hidden[None], trunk.model.rotary_emb(embedding, torch.arange(len(tokens))[None]))
        drafts.append(trunk.lm_head(normed[0, -1]))
        hidden = torch.cat([hidden, normed[0, -1:]])
    return logits, torch.stack(drafts)


def pymtp_logits(path: Path, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return the same from pymtp."""
    exact = {"n_ctx": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    with Model(path) as model, Context(model, draft_tokens=len(FED), tap="post_norm", **exact) as context:
        assert model.tokenize(TEXT) == ids, "pymtp cuts the text into other tokens"
        trunk = np.concatenate([context.verify(ids[i : i + 4]) for i in range(0, len(ids), 4)])
        context.clear()
        context.prefill(ids)
        drafts = np.stack([context.draft(token) for token in FED])
    return torch.from_numpy(trunk), torch.from_numpy(drafts)


def _same(what: str, ours: Tensor, theirs: Tensor, bound: float = BOUND) -> None:
    difference = (ours - theirs).abs().max().item()
    print(f"{what}: difference {difference:.1e}")
    assert difference <= bound, what


@torch.no_grad()
def check_network(path: Path) -> None:
    network, vocabulary = model_file.read(path)
    check_documents(network)
    ids = vocabulary.tokenizer().encode(TEXT).ids
    ours = network_logits(network, ids)
    for name, logits in (("transformers", transformers_logits), ("pymtp", pymtp_logits)):
        for part, own, theirs in zip(("trunk", "head"), ours, logits(path, ids), strict=True):
            _same(f"{name}, {part}", own, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="file of train.py, in F32")
    args = parser.parse_args()
    torch.manual_seed(0)
    check_convolution()
    check_network(args.model)


if __name__ == "__main__":
    main()
