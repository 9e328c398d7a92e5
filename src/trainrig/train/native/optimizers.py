"""The optimizers that an experiment can name, and what each needs.

adamw        torch's AdamW, one kernel for each operation
adamw-fused  torch's AdamW in its fused kernel: one pass over weights, gradients and moments
adamw-8bit   moments in 8 bits (torchao)
sgd          no moments: weight − rate · gradient, which hides no wrong scale of a gradient
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from trainrig.errors import UnavailableError
from trainrig.train.config import Experiment

Groups = list[dict[str, Any]]


def make_optimizer(experiment: Experiment, groups: Groups) -> torch.optim.Optimizer:
    """The experiment's optimizer of ``groups``.  Raises UnavailableError where one is missing."""
    kind, rate = experiment.optimizer, experiment.lr
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    betas, eps = (experiment.beta1, experiment.beta2), experiment.eps
    if kind == "adamw-8bit":
        if find_spec("torchao") is None:
            raise UnavailableError("adamw-8bit needs torchao", "pip install torchao")
        make: Callable[..., torch.optim.Optimizer] = import_module("torchao.optim").AdamW8bit
        return make(groups, lr=rate, betas=betas, eps=eps)
    fused = True if kind == "adamw-fused" else None
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=eps, fused=fused)
