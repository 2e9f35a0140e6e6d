"""The delta net's causal convolution over batches of documents, without temporary arrays of shifted rows."""

from typing import Any

import torch
from torch import Tensor

Places = list[tuple[Tensor, Tensor]]


def convolve(x: Tensor, weight: Tensor, reaching: Places) -> Tensor:
    """Convolve each channel of x, (batch, tokens, channels), with its taps, (channels, taps); the last is the token's.

    reaching: for each distance back from 1 on, rows and columns (of the earlier token) of the pairs of tokens that are
        of different documents. Their products do not count.
    """
    return _Convolution.apply(x, weight, reaching)


class _Convolution(torch.autograd.Function):
    """Convolves as if a row of the batch was one document, then takes off the few products that reach over a start."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, reaching: Places) -> Tensor:
        taps = weight.shape[1]
        y = x * weight[:, -1]
        for by, (row, at) in enumerate(reaching, 1):
            y[:, by:].addcmul_(x[:, :-by], weight[:, taps - 1 - by])
            y[row, at + by] -= x[row, at] * weight[:, taps - 1 - by]
        ctx.save_for_backward(x, weight)
        ctx.reaching = reaching
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        taps = weight.shape[1]
        grad_x = grad * weight[:, -1]
        grad_weight = torch.empty_like(weight)
        grad_weight[:, -1] = (grad * x).sum((0, 1))
        for by, (row, at) in enumerate(ctx.reaching, 1):
            tap = taps - 1 - by
            grad_x[:, :-by].addcmul_(grad[:, by:], weight[:, tap])
            grad_x[row, at] -= grad[row, at + by] * weight[:, tap]
            over = (grad[row, at + by] * x[row, at]).sum(0)
            grad_weight[:, tap] = (grad[:, by:] * x[:, :-by]).sum((0, 1)) - over
        return grad_x, grad_weight, None
