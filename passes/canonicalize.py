"""Graph rewrites that leave fewer, equal ops: common subexpressions and unused ops."""

from __future__ import annotations

from dataclasses import replace

from fuser.ir.graph import Argument, Effect, Graph, Literal, Op, Operand, Output


def merge_equal_ops(graph: Graph) -> Graph:
    """Ops of one kind on the same operands become one; random and opaque ops never do."""
    renamed: dict[str, str] = {}
    seen: dict[object, str] = {}
    kept: list[Op] = []
    # Two outputs stay two tensors: a caller may write to one of them.
    outputs_left = set(graph.output_values)
    barriers = [op for op in graph.ops if op.effect is Effect.BARRIER]
    written = {argument.value for op in barriers for argument in op.arguments}
    for op in graph.ops:
        op = _rename(op, renamed)
        if op.is_opaque or op.name in written:
            kept.append(op)
            if op.effect is Effect.BARRIER:
                seen.clear()  # what it wrote to reads otherwise from here on
            continue
        # Spelled out, because 0.0 equals -0.0.
        literals = tuple(repr(o.value) for o in op.operands if isinstance(o, Literal))
        key = (op.kind, op.operands, literals, op.domain, op.reduced, op.keepdim, op.compute,
               op.attributes, op.type)  # fmt: skip
        try:
            earlier = seen.setdefault(key, op.name)
        except TypeError:
            earlier = op.name
        if earlier != op.name and not {earlier, op.name} <= outputs_left:
            renamed[op.name] = earlier
            if op.name in outputs_left:
                outputs_left.add(earlier)
        else:
            kept.append(op)
    outputs = tuple(_rename_output(output, renamed) for output in graph.outputs)
    return replace(graph, ops=tuple(kept), outputs=outputs)


def remove_unused_ops(graph: Graph) -> Graph:
    """Ops whose results nothing reads are dropped unless they have effects."""
    used = set(graph.output_values)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        is_used = any(value.name in used for value in op.results)
        if is_used or op.effect is not Effect.NONE:
            kept.append(op)
            used |= set(op.reads)
    return replace(graph, ops=tuple(reversed(kept)))


def _rename(op: Op, renamed: dict[str, str]) -> Op:
    if not renamed:
        return op
    arguments = tuple(_rename_argument(a, renamed) for a in op.arguments)
    operands: tuple[Operand, ...] = tuple(
        _rename_argument(o, renamed) if isinstance(o, Argument) else o for o in op.operands
    )
    if arguments == op.arguments and operands == op.operands:
        return op
    return replace(op, arguments=arguments, operands=operands)


def _rename_argument(argument: Argument, renamed: dict[str, str]) -> Argument:
    if argument.value not in renamed:
        return argument
    return replace(argument, value=renamed[argument.value])


def _rename_output(output: Output, renamed: dict[str, str]) -> Output:
    if output.argument is None:
        return output
    return replace(output, argument=_rename_argument(output.argument, renamed))
