"""The optimizer: Muon for the blocks' matrices, AdamW for all else."""

from collections import defaultdict
from typing import Any

import torch
from network import Network
from torch import Tensor

# Five steps of a quintic iteration that drives all singular values near 1 (Jordan et al., 2024, "Muon")
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update of a matrix is made orthogonal. Matrices of one shape are updated together."""

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[tuple(sorted(p.shape))].append(p)
            for same in alike.values():
                self._step_alike(same, group)

    def _step_alike(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        updates = []
        for p in parameters:
            average = self.state[p].setdefault("average", torch.zeros_like(p))
            average.lerp_(p.grad, 1 - group["momentum"])
            update = p.grad.lerp(average, group["momentum"])
            updates.append(update if p.shape[0] <= p.shape[1] else update.T)
        for p, update in zip(parameters, orthogonal(torch.stack(updates)), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
            p.sub_(update if p.shape[0] <= p.shape[1] else update.T, alpha=group["lr"] * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest matrices with singular values near 1; (…, rows, columns) with rows ≤ columns."""
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.to(matrices.dtype)


def optimizers(network: Network, lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the blocks' matrices, with learning rate `lr`, and AdamW for all else, with a sixth of it."""
    named = dict(network.named_parameters())
    matrices = [n for n, p in named.items() if n.startswith("blk.") and p.ndim == 2 and min(p.shape) > 4]
    rest = [p for n, p in named.items() if n not in matrices]
    adam = torch.optim.AdamW(rest, lr=lr / 6, betas=(0.9, 0.97), weight_decay=0.0)
    return [Muon([named[n] for n in matrices], lr), adam]
