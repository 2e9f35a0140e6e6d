"""Checks the network that train.py trains: its parts against transformers, the whole against pymtp.

    pip install . torch transformers gguf jinja2 tokenizers
    python tools/models/shipped/check_network.py build/shipped/model-f32.gguf

Raises AssertionError for a difference.
"""

import argparse
from pathlib import Path

import model_file
import numpy as np
import torch
from convolution import convolve
from delta_rule import delta_rule
from network import Documents, Network
from torch import Tensor
from torch.nn.functional import normalize
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from pymtp import Model
from pymtp.context.context import Context

BOUND = 1e-4
TEXT = "<|im_start|>user\nWhat is 457 + 86?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\ndef f(n):\n    a"
FED = (300, 301, 302)  # tokens that the head is fed with, after the text


def check_delta_rule() -> None:
    """Compare with transformers, whose value heads stand in another order: those of one key head side by side."""
    tokens, order = 100, [0, 2, 1, 3]
    query, key = (normalize(torch.randn(2, tokens, 2, 64), dim=-1) for _ in range(2))
    value, decay, beta = torch.randn(2, tokens, 4, 64), -torch.rand(2, tokens, 4), torch.rand(2, tokens, 4)
    ordered = (x[:, :, order] for x in (value, decay, beta))
    theirs = torch_chunk_gated_delta_rule(query, key, *ordered, use_qk_l2norm_in_kernel=True)[0]
    _same("delta rule", delta_rule(query, key, value, decay, beta), theirs[:, :, order])


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


def check_pymtp(path: Path, network: Network, ids: list[int]) -> None:
    """Compare logits of the trunk, and of three chained drafts, with those of pymtp on the same F32 file."""
    starts = torch.zeros(1, len(ids) + len(FED), dtype=torch.bool)
    starts[0, 0] = True
    documents, tokens = Documents(starts, network.shape), torch.tensor([[*ids, *FED]])
    rows = network(tokens, documents)
    drafts = [h[0, len(ids) + i] for i, h in enumerate(network.drafts(tokens, rows, documents, len(FED)))]
    exact = {"n_ctx": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    with Model(path) as model, Context(model, draft_tokens=len(FED), tap="post_norm", **exact) as context:
        assert model.tokenize(TEXT) == ids, "pymtp cuts the text into other tokens"
        trunk = np.concatenate([context.verify(ids[i : i + 4]) for i in range(0, len(ids), 4)])
        _same("pymtp, trunk", network.logits(rows[0, : len(ids)]), torch.from_numpy(trunk), 2e-3)
        context.clear()
        context.prefill(ids)
        head = np.stack([context.draft(token) for token in FED])
        _same("pymtp, head", network.logits(torch.stack(drafts)), torch.from_numpy(head), 2e-3)


def _same(what: str, ours: Tensor, theirs: Tensor, bound: float = BOUND) -> None:
    difference = (ours - theirs).abs().max().item()
    print(f"{what}: difference {difference:.1e}")
    assert difference <= bound, what


@torch.no_grad()
def check_network(path: Path) -> None:
    network, vocabulary = model_file.read(path)
    check_documents(network)
    check_pymtp(path, network, vocabulary.tokenizer().encode(TEXT).ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="file of train.py, in F32")
    args = parser.parse_args()
    torch.manual_seed(0)
    check_delta_rule()
    check_convolution()
    check_network(args.model)


if __name__ == "__main__":
    main()
