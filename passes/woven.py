"""Products of one input in one launch, whatever the numbers of their columns.

In: regions of products that multiply the same value and do not wait for each other. Out: the same
with tiles of one height, so that those of the same rows run one after another and share these in
L2, and the predicted time of the launch. Queries, keys and values of grouped heads are such: each
product alone leaves processors without a tile in its last round, together they do so once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration
from fuser.ir.ops import is_contraction
from fuser.ir.region import Needs, Region, Schedule
from fuser.passes.access import accesses
from fuser.passes.contraction import Roles, factors_of, roles_of
from fuser.passes.cost import LATENCY_S
from fuser.passes.product import beside_of, extents_of, multiplying_us
from fuser.passes.product_tiles import (
    POINTERS,
    Extents,
    Family,
    family_of,
    needs_of_tile,
    work_of_tile,
)
from fuser.passes.resources import resident


@dataclass(frozen=True, slots=True)
class Woven:
    """Regions with the tiles that they have in one launch, and its predicted time."""

    regions: tuple[Region, ...]
    time_us: float


def is_product(region: Region) -> bool:
    """Whether a region's kernel has tiles of rows and columns."""
    return region.strategy.multiplies_tiles


def are_siblings(graph: Graph, first: Region, second: Region) -> bool:
    """Whether products of two regions multiply the same value."""
    return not _multiplied(graph, first).isdisjoint(_multiplied(graph, second))


def _multiplied(graph: Graph, region: Region) -> frozenset[str]:
    products = filter(is_contraction, graph.in_order(region.all_ops))
    return frozenset(operand.value for op in products for operand in factors_of(op))


def woven(graph: Graph, regions: Sequence[Region], device: DeviceSpec) -> Woven | None:
    """The fastest launch of the regions; None where no tiles go together."""
    members = [_member(graph, region) for region in regions]
    first = members[0].extents
    if any((m.extents.batch, m.extents.rows) != (1, first.rows) for m in members):
        return None
    kinds = dict.fromkeys(map(_kind, members[0].schedule.candidates[0]))
    found = [each for kind in kinds if (each := _of_kind(members, kind, device)) is not None]
    return min(found, key=lambda each: each.time_us, default=None)


@dataclass(frozen=True, slots=True)
class _Member:
    """A region of a launch with what its tiles are judged by."""

    region: Region
    extents: Extents
    beside: int
    is_lone: bool
    """Whether the region is one product, which alone would be the library's."""

    @property
    def schedule(self) -> Schedule:
        """What a shared launch can have: a program for each tile."""
        return self.region.schedule.by_pointers

    def tile(self, kind: tuple[int, int, int], device: DeviceSpec) -> Configuration | None:
        """Its fastest tile of this kind."""
        tiles = [tile for tile in self.schedule.candidates[0] if _kind(tile) == kind]
        return min(tiles, key=lambda tile: self.alone_us(tile, device), default=None)

    def needs(self, tile: Configuration, device: DeviceSpec, family: Family = POINTERS) -> Needs:
        return needs_of_tile(self.extents, tile, self.beside, device, family)

    def alone_us(self, tile: Configuration, device: DeviceSpec, family: Family = POINTERS) -> float:
        """Microseconds of its products in a launch of their own."""
        needs = self.needs(tile, device, family)
        return multiplying_us(self.extents, tile, needs, device, family, self.is_lone)

    def around_us(self, device: DeviceSpec) -> float:
        """Of the predicted time of the region what its products and the launch do not take."""
        own = self.region.schedule
        multiply_us = self.alone_us(own.candidates[0][0], device, family_of(own))
        return self.region.cost.time_us - device.launch_us - multiply_us


def _member(graph: Graph, region: Region) -> _Member:
    ops, stored = graph.in_order(region.all_ops), frozenset(region.outputs)
    roles: Roles = roles_of(graph, ops, stored, region.space)
    found = accesses(graph, ops, stored, region.space)
    extents = extents_of(graph, ops, region.space, found, roles)
    return _Member(region, extents, beside_of(graph, ops, region.space), len(ops) == 1)


def _kind(tile: Configuration) -> tuple[int, int, int]:
    """What the tiles of a launch have in common: their height, and how they are compiled."""
    return tile.block("MBLOCK"), tile.num_warps, tile.num_stages


def _of_kind(
    members: Sequence[_Member], kind: tuple[int, int, int], device: DeviceSpec
) -> Woven | None:
    tiles: list[Configuration] = []
    for member in members:
        tile = member.tile(kind, device)
        if tile is None:
            return None
        tiles.append(tile)
    each = [member.needs(tile, device) for member, tile in zip(members, tiles, strict=True)]
    # A block takes up what the region takes that takes most.
    most = Needs()
    if device.backend != "cpu":
        registers = max(needs.registers for needs in each)
        most = resident(registers, max(needs.shared_bytes for needs in each), tiles[0], device)
    multiply_us = _together_us(members, tiles, most.blocks_per_processor, device)
    around_us = sum(member.around_us(device) for member in members)
    regions = tuple(
        replace(
            member.region,
            schedule=replace(member.schedule, candidates=((tile,),)),
            cost=replace(member.region.cost, needs=needs),
        )
        for member, tile, needs in zip(members, tiles, each, strict=True)
    )
    return Woven(regions, device.launch_us + multiply_us + around_us)


def _together_us(
    members: Sequence[_Member], tiles: Sequence[Configuration], blocks: int, device: DeviceSpec
) -> float:
    """Microseconds of the tiles of all products, in rounds over the processors."""
    counts = [member.extents.tiles(tile) for member, tile in zip(members, tiles, strict=True)]
    if device.backend == "cpu":
        return sum(member.alone_us(t, device) for member, t in zip(members, tiles, strict=True))
    rounds = -(-sum(counts) // device.processors)
    together = max(1, min(blocks, rounds))
    busy_s = 0.0
    for member, tile, count in zip(members, tiles, counts, strict=True):
        busy, waiting = work_of_tile(member.extents, tile, device)
        busy_s += count * max(busy, waiting / together)
    mean_s = busy_s / sum(counts)
    return 1e6 * (-(-rounds // together) * together * mean_s + LATENCY_S)
