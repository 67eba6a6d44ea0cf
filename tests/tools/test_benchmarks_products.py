"""The benchmarks' programs with a matrix product, in eager with small operands."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from support.benchmarks import load


@pytest.mark.parametrize(
    ("maker", "arguments"),
    [
        ("_product", (3, 256, 40)),
        ("_linear_gelu", ("", 3, 256, 40)),
        ("_linear_residual", (3, 256, 40)),
        ("_swiglu", ("", 3, 256, 40)),
        ("_packed_swiglu", (3, 256, 40)),
        ("_qkv", (3, 256, 40)),
        ("_rms_norm_linear", ("", 3, 256, 40)),
        ("_rms_norm_qkv", ("", 3, 256, 40)),
        ("_linear_residual_layer_norm", (3, 256)),
        ("_few_tokens", ("", 3, 256, 40)),
        ("_scaled_masked_product", (2, 3, 256, 40)),
        ("_swiglu_mlp_training", (3, 256, 40)),
    ],
)
def test_programs_with_products_run_with_narrow_operands(maker: str, arguments: Any) -> None:
    workload = getattr(load("products"), maker)(*arguments)
    given = workload.make("cpu")
    call = workload.call(workload.run, given)
    results = pytree.tree_leaves(call())
    assert all(bool(torch.isfinite(x.double()).all()) for x in results)
    # Neither vanishing nor so large that activations are straight lines.
    assert all(0.05 < x.double().std() < 8 for x in results)
    # Two for each multiply-add, as torch's own counter has it.
    with FlopCounterMode(display=False) as counted:
        call()
    assert workload.flops == counted.get_total_flops()


def test_the_two_forms_of_swiglu_are_one_function() -> None:
    products = load("products")
    x, gate, up = products._swiglu("", 3, 64, 40).make("cpu")
    packed = products.packed_swiglu(x, torch.cat((gate, up)))
    torch.testing.assert_close(packed, products.swiglu(x, gate, up))


def test_one_pattern_selects_the_programs_with_products() -> None:
    pattern = re.compile(load("__main__").PRODUCTS)
    request = load("request").Request("kernels", pattern)
    selected = request.selected(list(load("workloads").workloads()))
    assert selected == [workload.name for workload in load("products").products()]
