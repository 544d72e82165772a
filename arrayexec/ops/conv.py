"""Convolution by matrix product over the columns of one tile after the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .columns import Axis, Columns
from .linalg import wide
from .windows import Layout, check_layout, is_known, join, per_axis, split

Array = Any


@register_op
class Convolution(Op):
    """``out[n, f, o] = bias[f] + Σ data[n, c, o·stride - pad + k·dilate] · weight[f, c, k]`` over c and k.

    data (n, c, …), weight (num_filter, c / num_group, *kernel), bias (num_filter,), out (n, num_filter, …), one to
    three spatial axes; group i of filters sees group i of channels. An output dim is
    ``(size + 2·pad - dilate·(kernel - 1) - 1) // stride + 1``. Layouts with C last take data and out as (n, …, c),
    weight as (num_filter, *kernel, c / num_group).
    """

    kernel: tuple[int, ...]
    num_filter: int
    stride: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    num_group: int = 1
    no_bias: bool = False
    layout: Layout | None = None
    workspace: int = 1024
    cudnn_tune: str | None = None
    cudnn_off: bool = False
    rows = "sum"
    hints = ("workspace", "cudnn_tune", "cudnn_off")
    examples = (
        {"data": (2, 2, 5, 4), "kernel": (3, 2), "num_filter": 3},
        {"data": (2, 4, 5, 6), "kernel": (3, 3), "num_filter": 4, "stride": (2, 1), "pad": (1, 2), "num_group": 2},
        {"data": (2, 2, 7), "kernel": (2,), "num_filter": 2, "dilate": (3,), "no_bias": True},
        {"data": (2, 2, 3, 4, 3), "kernel": (2, 2, 2), "num_filter": 2, "pad": (0, 1, 0)},
        {"data": (2, 5, 4, 4), "kernel": (3, 2), "num_filter": 4, "layout": "NHWC", "num_group": 2, "pad": (1, 0)},
        {"data": (2, 3, 4, 2), "kernel": (1, 1), "num_filter": 3},
        {"data": (2, 3, 2, 3), "kernel": (1, 1), "num_filter": 2, "layout": "NHWC"},
    )

    def __post_init__(self) -> None:
        if not 1 <= len(self.kernel) <= 3 or min(self.kernel) < 1:
            raise AttributeValueError(
                f"Convolution: attribute 'kernel' must hold one to three numbers >= 1, but it is {self.kernel}"
            )
        for name, default in (("stride", 1), ("dilate", 1), ("pad", 0)):
            per_axis("Convolution", name, getattr(self, name), len(self.kernel), default)
        check_layout("Convolution", self.layout, len(self.kernel))
        if self.num_group < 1 or self.num_filter < 1 or self.num_filter % self.num_group:
            raise AttributeValueError(
                "Convolution: attribute 'num_filter' must be a multiple of 'num_group', both at least 1, "
                f"but they are {self.num_filter} and {self.num_group}"
            )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

    @property
    def _last(self) -> bool:
        return self.layout is not None and self.layout[-1] == "C"

    def _axes(self) -> tuple[Axis, ...]:
        count = len(self.kernel)
        given = (self.kernel, self.stride or (1,) * count, self.dilate or (1,) * count, self.pad or (0,) * count)
        return tuple(Axis(k, d * (k - 1) + 1, s, d, p) for k, s, d, p in zip(*given, strict=True))

    def infer(self, s: Any) -> None:
        last, unknown = self._last, (UNKNOWN,) * len(self.kernel)
        s.bias = (self.num_filter,)
        s.weight = join(self.num_filter, UNKNOWN, self.kernel, last)
        s.data = join(UNKNOWN, split(s.weight, last)[1] * self.num_group, unknown, last)
        s.out = join(UNKNOWN, self.num_filter, unknown, last)
        batch, channels, sizes = split(s.data, last)
        if is_known(channels) and channels % self.num_group:
            s.fail("data", f"must have channels that num_group={self.num_group} divides, but it has {channels}")
        s.weight = join(self.num_filter, channels // self.num_group, self.kernel, last)
        out = []
        for place, (size, axis) in enumerate(zip(sizes, self._axes(), strict=True)):
            if is_known(size) and size + 2 * axis.pad < axis.reach:
                s.fail(
                    "data",
                    f"must be at least {axis.reach - 2 * axis.pad} long on spatial axis {place}, where the kernel "
                    f"reaches over {axis.reach}, but it is {size}",
                )
            out.append((size + 2 * axis.pad - axis.reach) // axis.stride + 1)
        s.out = join(batch, self.num_filter, out, last)
        batch, _, out = split(s.out, last)
        sizes = [
            dim + axis.reach - 1 - 2 * axis.pad if axis.stride == 1 else UNKNOWN
            for dim, axis in zip(out, self._axes(), strict=True)
        ]
        s.data = join(batch, UNKNOWN, sizes, last)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind = s.dtype("data")
        g, weight = _columns(self, tuple(s.data), kind), math.prod(s.weight)
        sizes = g.scratch()
        mirror = _mirror(self, g)
        if mirror is not None:
            other = _columns(mirror, tuple(s.out), kind).scratch()
            sizes = {name: max(size, other[name]) for name, size in sizes.items()}
        sizes |= {"part": weight, "total": weight * g.narrow, "matrix": weight * g.narrow}
        turned = weight * (mirror is not None)
        return {name: ((size,), wide(kind)) for name, size in sizes.items()} | {"turned": ((turned,), kind)}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("weight", "data"), ("data", "weight")) if user in want]

    def forward(
        self, xp: Any, data: Array, weight: Array, bias: Array, out: Array,
        columns: Temp, padded: Temp, product: Temp, matrix: Temp,
    ) -> None:  # fmt: skip
        g = _columns(self, data.shape, data.dtype)
        filters = _filters(xp, g, weight, matrix)
        offsets = None if bias is None else bias.reshape(g.groups, g.filters, 1)
        if g.pointwise:
            target = g.points(out, g.filters)
            xp.matmul(filters, g.points(data, g.channels), out=target)
            if offsets is not None:
                xp.add(target, offsets, out=target)
            return
        padded.fill(0)
        for tile in g.tiles():
            target, stored = g.block(out, tile, product)
            xp.matmul(filters, g.gather(xp, data, tile, columns, padded), out=target)
            if offsets is not None:
                xp.add(target, offsets, out=target)
            if stored is not None:
                xp.copyto(g.piece(out, tile), stored)

    def backward(
        self, xp: Any, dout: Array, data: Array, weight: Array, ddata: Array, dweight: Array, dbias: Array,
        columns: Temp, padded: Temp, product: Temp, part: Temp, total: Temp, matrix: Temp, turned: Temp,
    ) -> None:  # fmt: skip
        if dbias is not None:
            channel = dout.ndim - 1 if self._last else 1
            others = tuple(axis for axis in range(dout.ndim) if axis != channel)
            xp.sum(dout, axis=others, dtype=wide(dbias.dtype), out=dbias)
        if dweight is not None:
            g = _columns(self, data.shape, data.dtype)
            self._backward_weight(xp, g, dout, data, dweight, columns, padded, product, part, total)
        if ddata is not None:
            g = _columns(self, ddata.shape, ddata.dtype)
            mirror = _mirror(self, g)
            if mirror is not None:
                turned = _turned(xp, g, weight, turned)
                mirror.forward(xp, dout, turned, None, ddata, columns, padded, product, matrix)
                return
            filters = _filters(xp, g, weight, matrix).swapaxes(1, 2)
            if g.pointwise:
                xp.matmul(filters, g.points(dout, g.filters), out=g.points(ddata, g.channels))
                return
            for tile in g.tiles():
                arriving = g.arriving(xp, dout, tile, product)
                xp.matmul(filters, arriving, out=g.cells(tile, columns)[1])
                g.scatter(xp, ddata, tile, columns, padded)

    def _backward_weight(
        self, xp: Any, g: Columns, dout: Array, data: Array, dweight: Array,
        columns: Array, padded: Array, product: Array, part: Array, total: Array,
    ) -> None:  # fmt: skip
        shape = (g.groups, g.filters, g.depth)
        part, sums = part.reshape(shape), (total if g.narrow else dweight).reshape(shape)
        padded.fill(0)
        sums.fill(0)
        for number, tile in enumerate(g.tiles()):
            arriving = g.arriving(xp, dout, tile, product)
            cells = g.gather(xp, data, tile, columns, padded)
            xp.matmul(arriving, cells.swapaxes(1, 2), out=part if number else sums)
            if number:
                xp.add(sums, part, out=sums)
        if g.narrow:
            xp.copyto(dweight, total.reshape(dweight.shape))


def _filters(xp: Any, g: Columns, weight: Array, matrix: Array) -> Array:
    """The weight as (groups, filters, depth), in the type in which sums run."""
    shape = (g.groups, g.filters, g.depth)
    if not g.narrow:
        return weight.reshape(shape)
    filters = matrix.reshape(shape)
    xp.copyto(filters, weight.reshape(shape))
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
def _columns(op: Convolution, shape: tuple[int, ...], kind: Any) -> Columns:
    return Columns.of(shape, op._axes(), op.num_filter, op.num_group, op._last, wide(kind) != kind)


@functools.lru_cache(maxsize=1024)
def _mirror(op: Convolution, g: Columns) -> Convolution | None:
    """The convolution of ``dout`` that gives ``ddata``, for stride 1 and where it is cheaper than adding columns back.

    Measured: laying out a value for it costs as much as 10 products, adding one back as much as 70.
    """
    if g.pointwise or any(axis.stride != 1 or axis.pad >= axis.reach for axis in g.axes):
        return None
    laid_out = math.prod(g.size) * g.filters * (g.channels + 10)
    if laid_out > math.prod(g.out) * g.channels * (g.filters + 70):
        return None
    return Convolution(
        kernel=op.kernel, num_filter=g.groups * g.channels, dilate=op.dilate, num_group=op.num_group,
        pad=tuple(axis.reach - 1 - axis.pad for axis in g.axes), no_bias=True, layout=op.layout,
    )  # fmt: skip
