"""What `fuser.compile` returns behaves as the model: attributes, modes, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fuser
from fuser.errors import InvalidArgument


class Net(nn.Module):
    """A module with a buffer, a submodule and an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.temperature = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x))) / self.temperature


def test_checkpoints_do_not_depend_on_compilation() -> None:
    plain, other = Net().eval(), Net().eval()
    fast = fuser.compile(plain)
    x = torch.randn(5, 4)
    fast(x)
    assert list(fast.state_dict()) == list(plain.state_dict())
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(x), other(x))
    Net().load_state_dict(fast.state_dict())


def test_checkpoints_of_a_model_that_holds_a_compiled_one() -> None:
    outer = nn.Sequential(fuser.compile(Net()), nn.Linear(3, 2))
    expected = nn.Sequential(Net(), nn.Linear(3, 2))
    assert list(outer.state_dict()) == list(expected.state_dict())
    outer.load_state_dict(expected.state_dict())
    torch.testing.assert_close(outer[0].linear.weight, expected[0].linear.weight)


def test_attributes_and_modes_are_the_models() -> None:
    model = Net()
    fast = fuser.compile(model)
    assert fast.temperature == 2.0
    assert fast.linear is model.linear
    fast.eval()
    assert not model.norm.training
    fast.train()
    assert model.norm.training


def test_a_deep_copy_is_independent() -> None:
    fast = fuser.compile(Net().eval())
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        twin.linear.weight.add_(1.0)
    x = torch.randn(5, 4)
    assert not torch.equal(fast(x), twin(x))


@pytest.mark.parametrize(
    "wrong", [None, 3, "model.pt", Net], ids=["none", "number", "text", "class"]
)
def test_what_is_not_a_model_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="model"):
        fuser.compile(wrong)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="precision"):
        fuser.compile(Net(), precison="eager")
