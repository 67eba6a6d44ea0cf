"""Ways of computing the same are raced on the GPU, on memory of their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fuser.choice import Way
from fuser.codegen.generate import generate
from fuser.device import present_target
from fuser.passes.library import as_calls
from fuser.passes.pipeline import plan_graph
from fuser.runtime.race import race
from support.graphs import graph_of


@pytest.mark.gpu
def test_a_kernel_and_a_call_are_raced() -> None:
    args = (torch.empty(512, 256), torch.empty(1024, 256), torch.empty(1024))
    graph = graph_of(
        lambda x, w, b: F.relu(F.linear(x, w, b)), *(a.bfloat16().cuda() for a in args)
    )
    plan = plan_graph(graph, present_target())
    (entry,) = generate(plan)
    apart = plan_graph(as_calls(graph, {"addmm": "raced"}), present_target())
    (rest,) = generate(apart)
    ways = [
        Way(plan.graph, entry.kernels),
        Way(apart.graph, (apart.graph.by_name["addmm"], *rest.kernels)),
    ]
    held = torch.full((64 << 20,), 7, dtype=torch.int8, device="cuda")
    times = race(ways)
    assert all(time is not None and time > 0 for time in times)
    assert bool((held == 7).all())
