"""Which calls are pointwise, reductions, views, indexing or products, and which are not.

In: the names of the original calls that a program was left with. Out: whether one of them is of
another kind, so that the program is none that generated kernels are meant to cover whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["OTHER_FAMILIES", "is_of_another_family"]

OTHER_FAMILIES = {
    "convolution": r"conv|im2col|col2im",
    "pooling and resampling": r"pool|unpool|upsample|grid_sampler|affine_grid",
    "linear algebra": r"linalg_|cholesky|lu_unpack|ormqr|geqrf|triangular_solve|_ldl|ldl_",
    "Fourier transform": r"_fft_|stft",
    "attention": r"attention",
    "sort and selection": r"sort|topk|kthvalue|median|mode\.|unique|searchsorted|bucketize",
    "scan": r"cumsum|cumprod|cummax|cummin|logcumsumexp",
    "histogram": r"hist|bincount",
    "random": r"rand|multinomial|bernoulli|normal|cauchy|exponential|geometric|uniform|poisson",
    "sizes from data": r"nonzero|masked_select|argwhere",
    "distance and bags": r"cdist|pdist|embedding_bag|_segment_reduce|ctc_loss",
    "memory without values": r"\.empty|empty_|resize",
    "scaled product": r"_scaled_mm",
}
"""Kinds of calls that are none of the five, by what is found in their names."""

_OTHER = re.compile("|".join(OTHER_FAMILIES.values()))


def is_of_another_family(calls: Iterable[str]) -> bool:
    return any(_OTHER.search(call) for call in calls)
