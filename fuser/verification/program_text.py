"""A graph and its inputs as a program file that `fuserc` takes.

In: an FX graph and the tensors that it was called with. Out: Python text with a function
`make(device)`. The tensors are saved beside it, unless random ones of the same kind do as well.
"""

from __future__ import annotations

import builtins
import inspect
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

SEED = 0


def random_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Tensors of the same shapes, layouts and types, as a file without saved tensors makes them."""
    places = {str(value.device) for value in inputs if isinstance(value, torch.Tensor)}
    names = {"torch": torch, "device": next(iter(places), "cpu")}
    torch.manual_seed(SEED)
    return [eval(_made(value), names) for value in inputs]


def write_program(
    module: fx.GraphModule, inputs: Sequence[Any], path: Path, about: str, is_random: bool = False
) -> None:
    """Write the file. Unless `is_random`, or where the graph has constants, tensors are saved
    beside it, in the `.pt` file of the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    constants = _constants(module)
    if constants or not is_random:
        saved = {"constants": constants, "inputs": [_at_home(value) for value in inputs]}
        torch.save(saved, path.with_suffix(".pt"))
        made = (
            'saved = torch.load(Path(__file__).with_suffix(".pt"), map_location=device)\n'
            'return Program(saved["constants"]).to(device), [tuple(saved["inputs"])]'
        )
    else:
        lines = "".join(f"    {_made(value)},\n" for value in inputs)
        made = f"torch.manual_seed({SEED})\nreturn Program({{}}), [(\n{lines})]"
    path.write_text(_text(module, about, made), encoding="utf-8")


def _text(module: fx.GraphModule, about: str, made: str) -> str:
    code = module.graph.python_code("self")
    needed = {
        _imported(name, value)
        for name, value in code.globals.items()
        if re.search(rf"\b{name}\b", code.src)
    }
    needed |= {"from pathlib import Path"} if "Path(" in made else set()
    imports = sorted({"import torch", *needed})
    return "\n".join(
        [
            *(f"# {line}".rstrip() for line in about.splitlines()),
            *imports,
            "",
            "",
            "class Program(torch.nn.Module):",
            "    def __init__(self, constants):",
            "        super().__init__()",
            "        for name, value in constants.items():",
            "            self.register_buffer(name, value)",
            "",
            textwrap.indent(code.src.strip(), "    "),
            "",
            "",
            "def make(device):",
            textwrap.indent(made, "    "),
            "",
        ]
    )


def _imported(name: str, value: Any) -> str:
    """The line that makes a global of the graph's code."""
    if inspect.ismodule(value):
        return f"import {value.__name__}" + ("" if name in value.__name__ else f" as {name}")
    if isinstance(value, float):
        return f"from math import {name}"
    owner, _, own = getattr(value, "__qualname__", name).rpartition(".")
    module = getattr(value, "__module__", "builtins")
    if module == "builtins" and not hasattr(builtins, own):
        module = "types"  # such as NoneType, which says otherwise
    home = ".".join(filter(None, (module, owner)))
    return f"from {home} import {own}" + ("" if own == name else f" as {name}")


def _constants(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that the graph reads from the module, by the names that it has for them."""
    targets = [str(node.target) for node in module.graph.find_nodes(op="get_attr")]
    return {name: _at_home(getattr(module, name)) for name in targets}


def _at_home(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().cpu().requires_grad_(value.requires_grad)


def _made(value: Any) -> str:
    """An expression for a random tensor like this one, or for the number that it is."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    size, stride = list(value.shape), list(value.stride())
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    span = 0 if 0 in size else 1 + last
    if value.is_floating_point() or value.is_complex():
        flat = f"torch.randn({span}, dtype={value.dtype}, device=device)"
    elif value.dtype == torch.bool:
        flat = f"torch.randint(0, 2, ({span},), device=device).bool()"
    else:
        # What indexes something has to stay in range.
        least, most = (int(value.min()), int(value.max())) if span else (0, 0)
        kind = f"dtype={value.dtype}, device=device"
        flat = f"torch.randint({least}, {most + 1}, ({span},), {kind})"
    text = f"{flat}.as_strided({size}, {stride})"
    return f"{text}.detach().requires_grad_()" if value.requires_grad else text
