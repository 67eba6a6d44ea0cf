"""Workloads of an optimiser's step: one small program for each of many tensors.

In: how many times fewer rows than the usual number. Out: the workloads, in float32, which change
their arguments in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.workload import Workload, random

LEARNING_RATE, DECAY, EPSILON, STEP = 1e-3, 1e-2, 1e-8, 10
FIRST_BETA, SECOND_BETA = 0.9, 0.999
LARGEST_NORM = 1.0


def optimisers(divisor: int = 1) -> tuple[Workload, ...]:
    """All of them, with `1 / divisor` of the rows (at least one)."""
    alike = [(max(1, 2048 // divisor), 1024)] * 96
    return (
        _adamw("adamw", alike),
        _adamw("adamw_transformer", transformer(divisor)),
        _clipping("clip_gradients", transformer(divisor)),
    )


def transformer(divisor: int = 1) -> list[tuple[int, ...]]:
    """The parameters of six layers with biases and norms: most tensors are small, and a few of
    them hold most of the numbers."""
    width = max(1, 512 // divisor)
    vector, inner = (512,), (2048,)
    shapes: list[tuple[int, ...]] = [(16 * width, 512), (width, 512)]
    for _ in range(6):
        shapes += [vector, vector, (3 * width, 512), (1536,), (width, 512), vector]
        shapes += [vector, vector, (4 * width, 512), inner, (width, 2048), vector]
    return [*shapes, vector, vector]


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


def clip(gradients: list[Tensor]) -> None:
    """What torch.nn.utils.clip_grad_norm_ does to gradients, in place."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = (LARGEST_NORM / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)


def _adamw(name: str, shapes: Sequence[tuple[int, ...]]) -> Workload:
    def make(device: str) -> tuple[list[Tensor], ...]:
        draw = random(*shapes, dtype=torch.float32)
        parameters, gradients, means, squares = (list(draw(device)) for _ in range(4))
        return parameters, gradients, means, [square.abs() for square in squares]

    # Four lists are read, all but the gradients are written.
    one_list = 4 * sum(map(math.prod, shapes))
    return Workload(name, adamw, make, 4 * one_list, 3 * one_list)


def _clipping(name: str, shapes: Sequence[tuple[int, ...]]) -> Workload:
    def make(device: str) -> tuple[list[Tensor], ...]:
        return (list(random(*shapes, dtype=torch.float32)(device)),)

    one_list = 4 * sum(map(math.prod, shapes))
    return Workload(name, clip, make, one_list, one_list)
