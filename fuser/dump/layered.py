"""Where the boxes of a drawing stand: layers from left to right, few crossings, straight lines.

In: a directed acyclic graph and the height of each node. Out: the layer and the vertical place of
each node, and the heights at which an edge that is longer than one layer passes the layers between.
It knows nothing of plans. The same graph gets the same drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx

SWEEPS = 8
"""Times that the order within the layers and the heights are improved, in each direction."""
LANE = 10.0
"""Height kept free for an edge that passes a layer."""

_Point = tuple[str, int]
"""A node in its own layer, or the edges that leave it in a later layer that they pass."""


@dataclass(frozen=True, slots=True)
class Layered:
    """`top` is the upper border of each node; `lanes` the heights at which edges pass layers."""

    layer: Mapping[str, int]
    top: Mapping[str, float]
    lanes: Mapping[_Point, float]

    def passes(self, source: str, target: str) -> list[tuple[int, float]]:
        """The layers between two nodes, with the height at which their edge passes each."""
        between = range(self.layer[source] + 1, self.layer[target])
        return [(layer, self.lanes[source, layer]) for layer in between]


def arrange(flow: networkx.DiGraph, heights: Mapping[str, float], gap: float) -> Layered:
    """Places for the nodes of `flow`, at least `gap` apart within a layer."""
    layer = _layers(flow)
    chain = _with_lanes(flow, layer)
    layers = _ordered(chain)
    centre = _heights(chain, layers, heights, gap)
    first = min((centre[p] - _height(p, layer, heights) / 2 for p in chain), default=0.0)
    return Layered(
        layer,
        {name: centre[name, layer[name]] - heights[name] / 2 - first for name in flow},
        {(name, at): centre[name, at] - first for name, at in chain if at != layer[name]},
    )


def _layers(flow: networkx.DiGraph) -> dict[str, int]:
    """The longest path to each node; what depends on nothing stands just before its reader."""
    layer: dict[str, int] = {}
    for name in networkx.topological_sort(flow):
        layer[name] = max((layer[other] + 1 for other in flow.predecessors(name)), default=0)
    for name in flow:
        readers = [layer[other] for other in flow.successors(name)]
        if readers and not flow.in_degree(name):
            layer[name] = min(readers) - 1
    return layer


def _with_lanes(flow: networkx.DiGraph, layer: Mapping[str, int]) -> networkx.DiGraph:
    """The graph with a point in each layer that an edge passes; edges of one source share them."""
    chain = networkx.DiGraph()
    chain.add_nodes_from((name, layer[name]) for name in flow)
    for source, target in flow.edges:
        points = [(source, at) for at in range(layer[source], layer[target])]
        points.append((target, layer[target]))
        chain.add_edges_from(pairwise(points))
    return chain


def _ordered(chain: networkx.DiGraph) -> list[list[_Point]]:
    """The points of each layer, each near the middle of its neighbours' positions."""
    layers: list[list[_Point]] = [[] for _ in range(1 + max((at for _, at in chain), default=-1))]
    for point in chain:
        layers[point[1]].append(point)
    place = {point: float(k) for points in layers for k, point in enumerate(points)}
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        near = chain.pred if forward else chain.succ
        for points in layers if forward else reversed(layers):
            middle = {
                point: sum(place[other] for other in near[point]) / len(near[point])
                if near[point]
                else place[point]
                for point in points
            }
            points.sort(key=middle.__getitem__)
            place.update((point, float(k)) for k, point in enumerate(points))
    return layers


def _heights(
    chain: networkx.DiGraph,
    layers: Sequence[Sequence[_Point]],
    heights: Mapping[str, float],
    gap: float,
) -> dict[_Point, float]:
    """The centre of each point: in the order of its layer, near its neighbours' centres."""
    own = {point[0]: point[1] for points in reversed(layers) for point in reversed(points)}
    centre: dict[_Point, float] = {}
    apart: list[list[float]] = []
    for points in layers:
        size = [_height(point, own, heights) for point in points]
        apart.append([(a + b) / 2 + gap for a, b in pairwise(size)])
        centre.update(zip(points, _spread([0.0] * len(points), apart[-1]), strict=True))
    for sweep in range(2 * SWEEPS):
        forward = sweep % 2 == 0
        near = chain.pred if forward else chain.succ
        for at in range(len(layers)) if forward else reversed(range(len(layers))):
            wanted = [
                sum(centre[other] for other in near[point]) / len(near[point])
                if near[point]
                else centre[point]
                for point in layers[at]
            ]
            centre.update(zip(layers[at], _spread(wanted, apart[at]), strict=True))
    return centre


def _height(point: _Point, layer: Mapping[str, int], heights: Mapping[str, float]) -> float:
    return heights[point[0]] if layer[point[0]] == point[1] else LANE


def _spread(wanted: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Places in order, `apart` or more from each other, with the least squared distance to wanted.

    Without the room between them this is a regression that may not fall: neighbours that would
    overtake each other become a group at their mean.
    """
    offsets = [0.0]
    for distance in apart:
        offsets.append(offsets[-1] + distance)
    groups: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=False):
        mean, count = want - offset, 1
        while groups and groups[-1][0] >= mean:
            before, size = groups.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        groups.append((mean, count))
    flat = [mean for mean, count in groups for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=False)]
