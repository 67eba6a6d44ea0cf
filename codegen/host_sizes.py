"""Lines of a host program that find the sizes that change from call to call.

In: a graph and the names of its inputs. Out: a line for each size symbol that is no input itself.
"""

from __future__ import annotations

from fuser.codegen.host_text import HostNames
from fuser.errors import InvalidPlan
from fuser.ir.dim import Dim, symbols_of
from fuser.ir.graph import Graph

__all__ = ["size_lines"]


def size_lines(graph: Graph, names: HostNames) -> list[str]:
    """Each size symbol from the number, size or stride of an input that shows it."""
    shown: list[tuple[str, Dim]] = []
    known = set()
    for item in graph.inputs:
        if item.number is not None:
            if not isinstance(item.number, int) and item.number.is_Symbol:
                known.add(str(item.number))
        elif item.value is not None:
            name = names.value(item.name)
            shape, stride = item.value.type.shape, item.value.type.stride
            shown += [(f"{name}.size({k})", size) for k, size in enumerate(shape)]
            shown += [(f"{name}.stride({k})", step) for k, step in enumerate(stride)]
    lines: list[str] = []
    for symbol in graph.symbols:
        if symbol.name not in known:
            lines.append(_symbol_line(symbol.name, shown))
    return lines


def _symbol_line(symbol: str, shown: list[tuple[str, Dim]]) -> str:
    for text, dim in shown:
        if not isinstance(dim, int) and dim.is_Symbol and dim.name == symbol:
            return f"{symbol} = {text}"
    for text, dim in shown:
        # A multiple of it will do: the quotient is exact.
        if isinstance(dim, int) or {s.name for s in symbols_of([dim])} != {symbol}:
            continue
        factor, rest = dim.as_coeff_Mul()
        if rest.is_Symbol and factor.is_Integer:
            return f"{symbol} = {text} // {factor}"
    raise InvalidPlan(reason=f"no input of the graph shows the size {symbol}")
