"""Workloads that are a step of an optimiser: one small program for each of many tensors.

In: how many times fewer rows than the usual number. Out: the workloads, in float32, which change
their arguments in place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.workload import Workload, random

LEARNING_RATE, DECAY, EPSILON, STEP = 1e-3, 1e-2, 1e-8, 10
FIRST_BETA, SECOND_BETA = 0.9, 0.999


def optimisers(divisor: int = 1) -> tuple[Workload, ...]:
    """All of them, with `1 / divisor` of the rows (at least one)."""
    return (_adamw(96, max(1, 2048 // divisor), 1024),)


def adamw(
    parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]
) -> None:
    """One step in place, written out as in the paper."""
    step_size = LEARNING_RATE / (1 - FIRST_BETA**STEP)
    correction = math.sqrt(1 - SECOND_BETA**STEP)
    lists = zip(parameters, gradients, means, squares, strict=True)
    for parameter, gradient, mean, square in lists:
        parameter.mul_(1 - LEARNING_RATE * DECAY)
        mean.lerp_(gradient, 1 - FIRST_BETA)
        square.mul_(SECOND_BETA).addcmul_(gradient, gradient, value=1 - SECOND_BETA)
        parameter.addcdiv_(mean, square.sqrt() / correction + EPSILON, value=-step_size)


def _adamw(tensors: int, rows: int, columns: int) -> Workload:
    def make(device: str) -> tuple[list[Tensor], ...]:
        draw = random(*[(rows, columns)] * tensors, dtype=torch.float32)
        parameters, gradients, means, squares = (list(draw(device)) for _ in range(4))
        return parameters, gradients, means, [square.abs() for square in squares]

    # Four lists are read, all but the gradients are written.
    one_list = 4 * tensors * rows * columns
    return Workload("adamw", adamw, make, 4 * one_list, 3 * one_list)
