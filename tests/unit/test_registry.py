"""Whose plans are whose: `plans(compiled)` for models and functions.

Most share one backend object, as all do that name the backend in `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends import registry as dynamo_backends

from fuser.capture.registry import plans
from fuser.errors import InvalidArgument
from support.capture import Net, Other, Recorder, phases

pytestmark = [
    # Dynamo silences it by replacing `showwarning`, which a filter set to "error" comes before.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # On a machine with a GPU, Dynamo's reset imports modules of torch that raise it.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend known to Dynamo by name, one object for all models."""
    monkeypatch.setitem(dynamo_backends._BACKENDS, "fuser_test", None)
    monkeypatch.setitem(dynamo_backends._COMPILER_FNS, "fuser_test", Recorder().backend)
    return "fuser_test"


def test_models_with_one_named_backend_do_not_mix(named: str) -> None:
    first, second = torch.compile(Net(), backend=named), torch.compile(Other(), backend=named)
    x = torch.randn(5, 4)
    first(x)["out"][0].sum().backward()
    assert phases(first) == [("forward", 0), ("backward", 0)]
    assert phases(second) == []
    second(x).sum().backward()
    assert phases(first) == [("forward", 0), ("backward", 0)]
    assert phases(second) == [("forward", 1), ("backward", 1)]


def test_models_of_one_class_share_what_dynamo_shares(named: str) -> None:
    first, second = torch.compile(Other(), backend=named), torch.compile(Other(), backend=named)
    x = torch.randn(5, 4)
    first(x)
    assert phases(second) == []
    second(x)  # runs the code compiled for the first
    assert phases(second) == phases(first) == [("forward", 0)]
    plain = [torch.compile(nn.GELU(), backend=named) for _ in range(2)]
    for compiled in plain:
        compiled(x)
        assert phases(compiled) == [("inference", 1)]


def test_functions_do_not_mix_with_each_other(named: str) -> None:
    double = torch.compile(lambda x: x * 2, backend=named)
    triple = torch.compile(lambda x: x * 3, backend=named)
    double(torch.ones(2))
    assert (len(plans(double)), len(plans(triple))) == (1, 0)
    triple(torch.ones(2))
    assert phases(double) + phases(triple) == [("inference", 0), ("inference", 1)]


def test_other_options_are_another_compilation(named: str) -> None:
    model = Other()
    fast = torch.compile(model, backend=named, options={"precision": "fast"})
    exact = torch.compile(model, backend=named, options={"precision": "eager"})
    fast(torch.ones(4))
    assert (len(plans(fast)), len(plans(exact))) == (1, 0)
    exact(torch.ones(4))
    assert plans(fast)[0].options != plans(exact)[0].options


def test_graph_breaks_below_the_compiled_module(named: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = Net(broken=True), Other()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x)["out"][0]) + 1

    compiled, other = (torch.compile(Outer(), backend=named) for _ in range(2))
    with torch.no_grad():
        compiled(torch.randn(5, 4))
        assert len(plans(compiled)) >= 2
        assert plans(other) == []


def test_modules_compiled_in_place_and_inside_others(named: str) -> None:
    model = nn.Sequential(Other(), nn.Sequential(Other()))
    model[0].compile(backend=named)
    model[1] = torch.compile(model[1], backend=named)
    model(torch.randn(5, 4))
    assert len(plans(model[0])) == 1
    assert len(plans(model)) == 2


@pytest.mark.parametrize("thing", [Other(), len, 3, lambda x: x])
def test_plans_of_what_is_not_compiled(thing: Any) -> None:
    with pytest.raises(InvalidArgument, match="fix: pass what"):
        plans(thing)
