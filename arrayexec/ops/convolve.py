"""The three products of a convolution over the columns of one tile after the other.

``convolve`` gives the output from data and weight, ``spread`` the data's gradient from the output's (a deconvolution is
the same), ``correlate`` the weight's gradient from both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .columns import Axis, Columns
from .precision import narrow, wide, widen
from .windows import join

Array = Any


class Room(NamedTuple):
    """Scratch arrays of one body; None where it does not need them."""

    columns: Array
    padded: Array
    product: Array
    matrix: Array = None
    part: Array = None
    total: Array = None
    turned: Array = None


def scratch(g: Columns, kind: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of each array of a ``Room`` for data of type ``kind``, large enough for all three products."""
    sizes, other = g.scratch(), mirror_of(g)
    if other is not None:
        back = other.scratch()
        sizes = {name: max(size, back[name]) for name, size in sizes.items()}
    weight = g.groups * g.filters * g.depth
    sizes |= {"part": weight, "total": weight * g.narrow, "matrix": weight * g.narrow}
    turned = weight * (other is not None)
    return {name: ((size,), wide(kind)) for name, size in sizes.items()} | {"turned": ((turned,), kind)}


def convolve(xp: Any, g: Columns, data: Array, weight: Array, bias: Array, out: Array, room: Room) -> None:
    """``out`` = data times weight, window by window, plus bias unless None."""
    filters = _filters(xp, g, weight, room.matrix)
    offsets = None if bias is None else bias.reshape(g.groups, g.filters, 1)
    if g.pointwise:
        target = g.points(out, g.filters)
        xp.matmul(filters, g.points(data, g.channels), out=target)
        if offsets is not None:
            xp.add(target, offsets, out=target)
        return
    room.padded.fill(0)
    for tile in g.tiles():
        target, stored = g.block(out, tile, room.product)
        xp.matmul(filters, g.gather(xp, data, tile, room.columns, room.padded), out=target)
        if offsets is not None:
            xp.add(target, offsets, out=target)
        if stored is not None:
            narrow(xp, stored, g.piece(out, tile))


def spread(xp: Any, g: Columns, dout: Array, weight: Array, ddata: Array, room: Room) -> None:
    """``ddata`` = every value of ``dout`` times the weight, added to the places of its window."""
    other = mirror_of(g)
    if other is not None:
        convolve(xp, other, dout, _turned(xp, g, weight, room.turned), None, ddata, room)
        return
    filters = _filters(xp, g, weight, room.matrix).swapaxes(1, 2)
    if g.pointwise:
        xp.matmul(filters, g.points(dout, g.filters), out=g.points(ddata, g.channels))
        return
    for tile in g.tiles():
        arriving = g.arriving(xp, dout, tile, room.product)
        product = xp.multiply if g.filters == 1 else xp.matmul  # of one filter a group: no sum to run
        product(filters, arriving, out=g.cells(tile, room.columns)[1])
        g.scatter(xp, ddata, tile, room.columns, room.padded)


def correlate(xp: Any, g: Columns, dout: Array, data: Array, dweight: Array, room: Room) -> None:
    """``dweight`` = sum over all windows of ``dout`` times data."""
    shape = (g.groups, g.filters, g.depth)
    part, sums = room.part.reshape(shape), (room.total if g.narrow else dweight).reshape(shape)
    room.padded.fill(0)
    sums.fill(0)
    for number, tile in enumerate(g.tiles()):
        arriving = g.arriving(xp, dout, tile, room.product)
        cells = g.gather(xp, data, tile, room.columns, room.padded)
        xp.matmul(arriving, cells.swapaxes(1, 2), out=part if number else sums)
        if number:
            xp.add(sums, part, out=sums)
    if g.narrow:
        narrow(xp, room.total.reshape(dweight.shape), dweight)


def sum_bias(xp: Any, dout: Array, dbias: Array, last: bool) -> None:
    """``dbias`` = sum of ``dout`` over all but its channels."""
    channel = dout.ndim - 1 if last else 1
    others = tuple(axis for axis in range(dout.ndim) if axis != channel)
    dbias[...] = xp.sum(dout, axis=others, dtype=wide(dbias.dtype))  # with out= it would be rounded again and again


def _filters(xp: Any, g: Columns, weight: Array, matrix: Array) -> Array:
    """The weight as (groups, filters, depth), in the type in which sums run."""
    shape = (g.groups, g.filters, g.depth)
    if not g.narrow:
        return weight.reshape(shape)
    filters = matrix.reshape(shape)
    widen(xp, weight.reshape(shape), filters)
    return filters


def _turned(xp: Any, g: Columns, weight: Array, turned: Array) -> Array:
    """The weight of the mirror: filters and channels exchanged, the kernel from its end to its start."""
    source = weight.reshape(g.groups, *join(g.filters, g.channels, g.kernel, g.last))
    target = turned.reshape(g.groups, *join(g.channels, g.filters, g.kernel, g.last))
    backwards = (slice(None, None, -1),) * len(g.axes)
    if g.last:
        xp.copyto(target, source.swapaxes(1, source.ndim - 1)[(slice(None), slice(None), *backwards)])
    else:
        xp.copyto(target, source.swapaxes(1, 2)[(..., *backwards)])
    return turned.reshape(-1, *target.shape[2:])


@functools.lru_cache(maxsize=1024)
def mirror_of(g: Columns) -> Columns | None:
    """The convolution of ``dout`` that gives ``ddata``, for stride 1 and where it is cheaper than adding columns back.

    Measured: laying out a value for it costs as much as 10 products, adding one back as much as 70.
    """
    ends = zip(g.axes, g.size, g.padded, strict=True)
    if g.pointwise or any(
        axis.stride != 1 or axis.pad >= axis.reach or padded != size + 2 * axis.pad for axis, size, padded in ends
    ):
        return None
    laid_out = math.prod(g.size) * g.filters * (g.channels + 10)
    if laid_out > math.prod(g.out) * g.channels * (g.filters + 70):
        return None
    shape = join(g.images, g.groups * g.filters, g.out, g.last)
    axes = [Axis(a.kernel, a.reach, 1, a.dilate, a.reach - 1 - a.pad) for a in g.axes]
    return Columns.of(shape, axes, g.groups * g.channels, g.groups, g.last, g.narrow)
