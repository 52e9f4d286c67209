"""Train a small model: Adam, and a learning rate that rises and falls once."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def fit(model: nn.Module, loss: Callable[[], Tensor], *, steps: int, rate: float) -> None:
    """Train a model in place.

    Args:
        model: Its parameters are trained.
        loss: Called before every step; returns the model's loss, a scalar, on a batch of its own.
        steps: How many steps to take.
        rate: The highest learning rate, reached after a tenth of the steps ("one cycle": Smith & Topin 2017).
    """
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=True)  # one kernel for all parameters
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
        schedule.step()
