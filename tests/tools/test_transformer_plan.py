"""The JSON plan of a transformer block accounts for every op and every edge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuser.cli import main

PROGRAM = """
import torch
from torch import nn

def make(device):
    block = nn.TransformerEncoderLayer(64, 4, 256, activation="gelu", batch_first=True)
    return block.eval().to(device), [(torch.randn(2, 10, 64, device=device),)]

def make_training(device):
    block, calls = make(device)
    return block.train(), calls
"""


@pytest.mark.parametrize("name", ["make", "make_training"])
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_every_op_and_every_edge_is_accounted_for(tmp_path: Path, name: str, target: str) -> None:
    program, output = tmp_path / "block.py", tmp_path / "plan.json"
    program.write_text(PROGRAM)
    words = ["plan", f"{program}:{name}", "--target", target, "--format", "json"]
    assert main([*words, "--device", "cpu", "-o", str(output)]) == 0
    plan = json.loads(output.read_text())
    assert plan["target"] == target
    owned = [op["name"] for region in plan["regions"] for op in region["ops"]]
    owned += [call["name"] for call in plan["opaque"]]
    assert len(owned) == len(set(owned)) == plan["totals"]["ops"]
    assert plan["edges"]
    known = set(owned)
    for edge in plan["edges"]:
        assert {edge["producer"], edge["consumer"]} <= known
        assert edge["reason"]
    assert {region["kind"] for region in plan["regions"]} == {"contraction", "reduction"}
