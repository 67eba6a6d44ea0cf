"""Tiles and warps to try for each kind of kernel, the preferred one first.

On a GPU a thread should hold enough bytes in flight and no more values than registers allow; in
the interpreter each program costs about a millisecond, so blocks are as large as memory comfortably
lets them be. Triton wants powers of two. Each next candidate gives a thread fewer elements: it is
what is left when the compiler spills registers on the one before.
"""

from __future__ import annotations

from fuser.device import DeviceSpec
from fuser.ir.kernel import Configuration

INTERPRETER_TILE = 1 << 17
"""Elements of a tile in the interpreter."""

COLUMNS = 64
"""Rows of a column kernel's tile: neighbours in memory, 128 bytes of a half type."""

MANY_ACCUMULATORS = 2
"""Beyond so many of them for each element, the tile of a column kernel has to be smaller."""

WALKING_LANE = 16
"""Elements of a row that a lane holds where it keeps accumulators beside them from row to row."""

WALKING_WARPS = 16
"""Warps of a processor that walk rows: what their registers leave room for."""

WALKED_STEPS = 4
"""Steps of a program for which its parts of the columns are little beside what it reads."""

MAX_WARPS = 32

Candidates = tuple[Configuration, ...]


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def pointwise_configurations(size: int, live: int, device: DeviceSpec) -> Candidates:
    """`size` is the number of elements, `live` the values a lane holds at once."""
    if device.backend == "cpu":
        return (Configuration((("XBLOCK", min(power_of_two(size), INTERPRETER_TILE)),)),)
    # Small problems need programs more than they need long ones.
    lanes = 1024 if live <= 16 else 512
    while lanes > 128 and size < lanes * device.processors * 2:
        lanes //= 2
    warps = 4 if lanes >= 512 else 2
    least = warps * device.warp_size
    found = [lanes]
    while found[-1] > least:
        found.append(found[-1] // 2)
    return tuple(Configuration((("XBLOCK", block),), num_warps=warps) for block in found)


def row_configurations(
    rows: int, row: int, is_column: bool, live: int, device: DeviceSpec
) -> Candidates:
    """The whole row in one tile; several rows where a row is short or neighbours lie along x."""
    block = power_of_two(row)
    if device.backend == "cpu":
        several = max(1, min(power_of_two(rows), INTERPRETER_TILE // block))
        return (Configuration((("XBLOCK", several), ("RBLOCK", block))),)
    # Measured on an H200: a lane that holds 32 elements beats more warps that hold fewer.
    lane = 32 if live <= 5 else 16 if live <= 10 else 8
    least = min(power_of_two(rows), COLUMNS) if is_column else 1
    warps = 4
    while warps < 16 and warps * device.warp_size * lane < block * least:
        warps *= 2
    several = max(least, min(power_of_two(rows), warps * device.warp_size * lane // block))
    while several > least and rows < several * device.processors * 2:
        several //= 2
    found = [(several, warps)]
    while several * block > warps * device.warp_size and (several > 1 or warps < MAX_WARPS):
        # First more warps, which leaves neighbours together, then fewer rows.
        several, warps = (several, warps * 2) if warps < MAX_WARPS else (several // 2, warps)
        found.append((several, warps))
    return tuple(
        Configuration((("XBLOCK", several), ("RBLOCK", block)), num_warps=warps)
        for several, warps in found
    )


def looped_configurations(
    rows: int,
    row: int,
    is_column: bool,
    live: int,
    device: DeviceSpec,
    together: int = 1,
    accumulators: int = 1,
) -> Candidates:
    """A block of the row at a time. A column kernel has its neighbours along x; `together` rows
    have their elements in the same lines of memory. Lanes keep `accumulators` values an element."""
    if device.backend == "cpu":
        block = min(power_of_two(row), INTERPRETER_TILE // 4)
        several = max(1, min(power_of_two(rows), INTERPRETER_TILE // block))
        return (Configuration((("XBLOCK", several), ("RBLOCK", block))),)
    if together > 1 and not is_column:
        tiles = [(together, 2048, 16), (together, 1024, 8), (2 * together, 1024, 16)]
        tiles += [(together, 512, 8), (max(1, together // 2), 512, 8)]
        return tuple(
            Configuration((("XBLOCK", x), ("RBLOCK", min(power_of_two(row), r))), num_warps=warps)
            for x, r, warps in tiles
        )
    if is_column and accumulators > MANY_ACCUMULATORS:
        across = min(power_of_two(rows), COLUMNS // 2)
        return tuple(
            Configuration((("XBLOCK", across * x), ("RBLOCK", r)), num_warps=4 * x)
            for x, r in ((1, 32), (2, 32), (1, 16), (1, 8))
        )
    warps = 8
    wide: list[Configuration] = []
    if is_column:
        across = min(power_of_two(rows), COLUMNS)
        down = max(8, min(power_of_two(row), 4096 // across // (1 if live <= 8 else 2)))
    else:
        down = min(power_of_two(row), 4096 if live <= 8 else 2048)
        across = 1 if down >= 1024 else max(1, min(power_of_two(rows), 1024 // down))
        # Of long rows few should be in progress at once, so that a second pass is served from L2.
        if across == 1 and row >= 4 * down:
            wide = [
                Configuration((("XBLOCK", 1), ("RBLOCK", down * times)), num_warps=warps * times)
                for times in (2, 4)
            ]
    found = [(across, down)]
    while across * down > warps * device.warp_size:
        across, down = (across, down // 2) if down > 8 else (across // 2, down)
        found.append((across, down))
    narrow = [
        Configuration((("XBLOCK", across), ("RBLOCK", down)), num_warps=warps)
        for across, down in found
    ]
    if is_column and rows >= 4 * COLUMNS:
        # Longer runs of memory for each row of the tile.
        across, down = found[0]
        wide = [
            Configuration((("XBLOCK", across * times), ("RBLOCK", down // times)), num_warps=warps)
            for times in (2, 4)
            if down // times >= 8
        ]
        return (*narrow[:1], *wide, *narrow[1:])
    return (*wide[:1], *narrow[:1], *wide[1:], *narrow[1:])


def rows_and_columns_configurations(
    rows: int, row: int, is_column: bool, device: DeviceSpec
) -> Candidates:
    """Whole rows in a tile, beside which a lane keeps an accumulator an element for each fold of
    columns: fewer elements of a lane than where rows are alone."""
    block = power_of_two(row)
    if device.backend == "cpu":
        # Several steps of several programs also where there are few rows, as on a GPU.
        several = max(1, min(power_of_two(rows) // 8, INTERPRETER_TILE // block))
        return (_walking(several, block, 4, 1),)
    least = min(power_of_two(rows), COLUMNS) if is_column else 1
    warps = 4
    while warps < 16 and warps * device.warp_size * WALKING_LANE < block * least:
        warps *= 2
    several = max(least, min(power_of_two(rows), warps * device.warp_size * WALKING_LANE // block))
    found = [(several, warps)]
    while several * block > warps * device.warp_size and (several > least or warps < MAX_WARPS):
        several, warps = (several // 2, warps) if several > least else (several, warps * 2)
        found.append((several, warps))
    staged = (2, 1) if device.backend == "cuda" else (1,)
    return tuple(
        _walking(several, block, warps, stages) for several, warps in found for stages in staged
    )


def _walking(rows: int, block: int, warps: int, stages: int) -> Configuration:
    """A tile of whole rows: with two stages, the next rows are on their way while these are worked
    on."""
    blocks = (("XBLOCK", rows), ("RBLOCK", block), ("STAGES", stages))
    return Configuration(blocks, num_warps=warps)


def walking_programs(rows: int | None, tile: Configuration, device: DeviceSpec) -> int:
    """Programs that share all rows (None: not known how many), each of which leaves a part of every
    column: as few as keep the processors busy, and of more than those only what has several steps
    to walk."""
    if device.backend == "cpu":
        most = least = 4
    else:
        least = device.processors
        most = least * max(1, WALKING_WARPS // tile.num_warps)
    if rows is None:
        return most
    steps = -(-rows // tile.block("XBLOCK"))
    return max(1, min(steps, least), min(steps // WALKED_STEPS, most))


def combine_columns_configurations(columns: int, parts: int, device: DeviceSpec) -> Candidates:
    """The second kernel where parts lie one after the other, each a value for every column."""
    block = power_of_two(parts)
    if device.backend == "cpu":
        return (Configuration((("XBLOCK", min(power_of_two(columns), 64)), ("RBLOCK", block))),)
    across = min(power_of_two(columns), max(8, 8192 // block))
    return tuple(
        Configuration((("XBLOCK", x), ("RBLOCK", block)), num_warps=8 if x * block > 2048 else 4)
        for x in dict.fromkeys((across, max(1, across // 2)))
    )


def combine_configurations(rows: int, parts: int, device: DeviceSpec) -> Candidates:
    """The second kernel of a split reduction: small, latency-bound."""
    block = power_of_two(parts)
    several = max(1, min(power_of_two(rows), 1024 // block))
    return (Configuration((("XBLOCK", several), ("RBLOCK", block)), num_warps=4),)


def split_parts(rows: int, row: int, is_column: bool, device: DeviceSpec) -> int:
    """Programs that share a row: enough to fill the processors, each with a fair load."""
    if device.backend == "cpu":
        return 4
    programs = -(-rows // COLUMNS) if is_column else rows
    fair = 256 if is_column else 4096
    wanted = max(1, 4 * device.processors // max(programs, 1))
    return max(1, min(power_of_two(wanted), power_of_two(max(1, row // fair)), 1024))
