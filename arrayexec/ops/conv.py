"""Convolution by matrix product: windows of a few images are laid out as columns, one product does the rest.

The columns of one *tile* (several small images, or some lines of a large one) stay in the second-level cache,
so scratch is bounded whatever the batch. Both layouts run through the same bodies: all arrays are looked at
as (N, C, …), only the order in which columns lie in memory follows the layout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from typing import Any, NamedTuple

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .linalg import wide
from .windows import Layout, channels_first, check_layout, is_known, join, per_axis, split

Array = Any
TILE = 1 << 19  # columns of one tile, in values


class Tile(NamedTuple):
    """A piece of the output: some images, and some lines (places of the first spatial axis) of each."""

    images: slice
    lines: slice


class Geometry(NamedTuple):
    """Sizes of one convolution: images, groups, channels and filters a group, and how the output is tiled."""

    images: int
    groups: int
    channels: int
    filters: int
    kernel: tuple[int, ...]
    size: tuple[int, ...]
    padded: tuple[int, ...]
    out: tuple[int, ...]
    tile_images: int
    tile_lines: int
    pointwise: bool
    """True if a window is one place and every place has one: the data are the columns."""
    mirrored: bool
    """True if the gradient of the data is computed as a convolution, else by adding columns back."""

    @property
    def depth(self) -> int:
        """Values that one output value sums: channels a group times kernel."""
        return self.channels * math.prod(self.kernel)

    @property
    def places(self) -> int:
        """Output places of the largest tile."""
        return self.tile_images * self.tile_lines * math.prod(self.out[1:])

    def tiles(self) -> Iterator[Tile]:
        """All tiles; those of one image come one after the other, from its first line to its last."""
        for image in range(0, self.images, self.tile_images):
            for line in range(0, self.out[0], self.tile_lines):
                yield Tile(
                    slice(image, min(image + self.tile_images, self.images)),
                    slice(line, min(line + self.tile_lines, self.out[0])),
                )


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

    def _axes(self) -> list[tuple[int, int, int, int]]:
        """Reach of the dilated kernel, stride, dilation and padding of each spatial axis."""
        count = len(self.kernel)
        stride, dilate = self.stride or (1,) * count, self.dilate or (1,) * count
        pads = self.pad or (0,) * count
        return [(d * (k - 1) + 1, s, d, p) for k, s, d, p in zip(self.kernel, stride, dilate, pads, strict=True)]

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
        for axis, (size, (reach, stride, _, pad)) in enumerate(zip(sizes, self._axes(), strict=True)):
            if is_known(size) and size + 2 * pad < reach:
                s.fail(
                    "data",
                    f"must be at least {reach - 2 * pad} long on spatial axis {axis}, where the kernel reaches "
                    f"over {reach}, but it is {size}",
                )
            out.append((size + 2 * pad - reach) // stride + 1)
        s.out = join(batch, self.num_filter, out, last)
        batch, _, out = split(s.out, last)
        sizes = [
            dim + reach - 1 - 2 * pad if stride == 1 else UNKNOWN
            for dim, (reach, stride, _, pad) in zip(out, self._axes(), strict=True)
        ]
        s.data = join(batch, UNKNOWN, sizes, last)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        g, kind = _geometry(self, s.data), s.dtype("data")
        sizes = self._scratch(g, wide(kind) != kind)
        if g.mirrored:
            mirror = self._mirror(g)
            other = mirror._scratch(_geometry(mirror, tuple(s.out)), wide(kind) != kind)
            sizes = {name: max(size, other[name]) for name, size in sizes.items()}
        turned = math.prod(s.weight) * g.mirrored
        return {name: ((size,), wide(kind)) for name, size in sizes.items()} | {"turned": ((turned,), kind)}

    def _scratch(self, g: Geometry, narrow: bool) -> dict[str, int]:
        """Values of each kind of scratch; ``narrow`` types are computed in wide ones."""
        image, weight = g.groups * g.channels * math.prod(g.padded), g.groups * g.filters * g.depth
        gathered = g.tile_images > 1 and not self._last
        return {
            "columns": g.groups * g.depth * g.places,
            "padded": g.tile_images * image * (narrow or g.padded != g.size),
            "product": g.groups * g.filters * g.places * (narrow or gathered),
            "part": weight,
            "total": weight * narrow,
            "matrix": weight * narrow,
        }

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("weight", "data"), ("data", "weight")) if user in want]

    def forward(
        self, xp: Any, data: Array, weight: Array, bias: Array, out: Array,
        columns: Temp, padded: Temp, product: Temp, matrix: Temp,
    ) -> None:  # fmt: skip
        g = _geometry(self, data.shape)
        filters = _filters(xp, g, weight, matrix)
        offsets = None if bias is None else bias.reshape(g.groups, g.filters, 1)
        if g.pointwise and not matrix.size:
            target = self._places(g, out, g.filters)
            xp.matmul(filters, self._places(g, data, g.channels), out=target)
            if offsets is not None:
                xp.add(target, offsets, out=target)
            return
        padded.fill(0)
        for tile in g.tiles():
            target, stored = self._block(g, out, tile, product)
            xp.matmul(filters, self._gather(xp, g, data, tile, columns, padded), out=target)
            if offsets is not None:
                xp.add(target, offsets, out=target)
            if stored is not None:
                xp.copyto(self._tile(out, tile), stored)

    def backward(
        self, xp: Any, dout: Array, data: Array, weight: Array, ddata: Array, dweight: Array, dbias: Array,
        columns: Temp, padded: Temp, product: Temp, part: Temp, total: Temp, matrix: Temp, turned: Temp,
    ) -> None:  # fmt: skip
        if dbias is not None:
            axes = tuple(axis for axis in range(dout.ndim) if axis != (dout.ndim - 1 if self._last else 1))
            xp.sum(dout, axis=axes, dtype=wide(dbias.dtype), out=dbias)
        if dweight is not None:
            self._backward_weight(xp, _geometry(self, data.shape), dout, data, dweight, columns, padded, product,
                                  part, total)  # fmt: skip
        if ddata is not None:
            g = _geometry(self, ddata.shape)
            if g.mirrored:
                self._mirror(g).forward(
                    xp, dout, self._turned(xp, g, weight, turned), None, ddata, columns, padded, product, matrix
                )
                return
            filters = _filters(xp, g, weight, matrix).swapaxes(1, 2)
            if g.pointwise and not matrix.size:
                arriving = self._places(g, dout, g.filters)
                xp.matmul(filters, arriving, out=self._places(g, ddata, g.channels))
                return
            for tile in g.tiles():
                arriving = self._arriving(xp, g, dout, tile, product)
                xp.matmul(filters, arriving, out=self._columns(g, tile, columns)[1])
                self._scatter(xp, g, ddata, tile, columns, padded)

    def _backward_weight(
        self, xp: Any, g: Geometry, dout: Array, data: Array, dweight: Array,
        columns: Array, padded: Array, product: Array, part: Array, total: Array,
    ) -> None:  # fmt: skip
        shape = (g.groups, g.filters, g.depth)
        part, whole = part.reshape(shape), (total if total.size else dweight).reshape(shape)
        padded.fill(0)
        whole.fill(0)
        for number, tile in enumerate(g.tiles()):
            arriving = self._arriving(xp, g, dout, tile, product)
            cells = self._gather(xp, g, data, tile, columns, padded)
            xp.matmul(arriving, cells.swapaxes(1, 2), out=part if number else whole)
            if number:
                xp.add(whole, part, out=whole)
        if total.size:
            xp.copyto(dweight, total.reshape(dweight.shape))

    def _mirror(self, g: Geometry) -> Convolution:
        """The convolution of ``dout`` whose result is ``ddata``, for stride 1."""
        return Convolution(
            kernel=self.kernel, num_filter=g.groups * g.channels, dilate=self.dilate, num_group=self.num_group,
            pad=tuple(reach - 1 - pad for reach, _, _, pad in self._axes()), no_bias=True, layout=self.layout,
        )  # fmt: skip

    def _turned(self, xp: Any, g: Geometry, weight: Array, turned: Array) -> Array:
        """The weight of the mirror: filters and channels exchanged, the kernel from its end to its start."""
        last, axes = self._last, len(g.kernel)
        source = weight.reshape(g.groups, *join(g.filters, g.channels, g.kernel, last))
        target = turned.reshape(g.groups, *join(g.channels, g.filters, g.kernel, last))
        backwards = (slice(None, None, -1),) * axes
        if last:
            xp.copyto(target, source.swapaxes(1, 2 + axes)[(slice(None),) * 2 + backwards])
        else:
            xp.copyto(target, source.swapaxes(1, 2)[(slice(None),) * 3 + backwards])
        return turned.reshape(-1, *target.shape[2:])

    def _places(self, g: Geometry, array: Array, channels: int) -> Array:
        """All images as matrices of a group's channels by places, for kernels of one place."""
        if self._last:
            return array.reshape(-1, g.groups, channels).transpose(1, 2, 0)
        return array.reshape(g.images, g.groups, channels, math.prod(g.out))

    def _tile(self, array: Array, tile: Tile) -> Array:
        """The part of an output array that is ``tile``, seen as (images, filters, lines, …)."""
        return channels_first(array, self._last)[tile.images, :, tile.lines]

    def _block(self, g: Geometry, array: Array, tile: Tile, product: Array) -> tuple[Array, Array | None]:
        """Matrix (groups, filters, places) for one tile of an output array.

        It is a view of ``array``, or lies in ``product``; then the second value is ``product`` seen as the tile.
        """
        inner, filters = math.prod(g.out[1:]), g.groups * g.filters
        shape = (tile.images.stop - tile.images.start, tile.lines.stop - tile.lines.start, *g.out[1:])
        places = math.prod(shape)
        if product.size:
            flat = product[: filters * places]
            if self._last:
                stored = channels_first(flat.reshape(*shape, filters), True)
                return flat.reshape(places, g.groups, g.filters).transpose(1, 2, 0), stored
            return flat.reshape(g.groups, g.filters, places), flat.reshape(filters, *shape).swapaxes(0, 1)
        if self._last:
            start = (tile.images.start * g.out[0] + tile.lines.start) * inner
            rows = array.reshape(-1, g.groups, g.filters)[start : start + places]
            return rows.transpose(1, 2, 0), None
        image = array[tile.images.start].reshape(g.groups, g.filters, -1)
        return image[..., tile.lines.start * inner : tile.lines.stop * inner], None

    def _arriving(self, xp: Any, g: Geometry, dout: Array, tile: Tile, product: Array) -> Array:
        block, stored = self._block(g, dout, tile, product)
        if stored is not None:
            xp.copyto(stored, self._tile(dout, tile))
        return block

    def _columns(self, g: Geometry, tile: Tile, columns: Array) -> tuple[Array, Array]:
        """Columns of one tile, as (images, groups, channels, *kernel, lines, …) and as (groups, depth, places)."""
        images, lines = tile.images.stop - tile.images.start, tile.lines.stop - tile.lines.start
        out, axes = (lines, *g.out[1:]), len(g.kernel)
        places = images * math.prod(out)
        flat = columns[: g.groups * g.depth * places]
        if self._last:
            cells = flat.reshape(g.groups, images, *out, *g.kernel, g.channels)
            order = (1, 0, 2 + 2 * axes, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
            return cells.transpose(order), flat.reshape(g.groups, places, g.depth).swapaxes(1, 2)
        cells = flat.reshape(g.groups, g.channels, *g.kernel, images, *out)
        order = (2 + axes, *range(2 + axes), *range(3 + axes, 3 + 2 * axes))
        return cells.transpose(order), flat.reshape(g.groups, g.depth, places)

    def _padded(self, g: Geometry, padded: Array, images: int) -> tuple[Array, Array]:
        """Room for padded images, seen as (images, channels, …), and the part of it that is not padding."""
        shape = join(images, g.groups * g.channels, g.padded, self._last)
        room = channels_first(padded[: math.prod(shape)].reshape(shape), self._last)
        pads = self.pad or (0,) * len(g.size)
        return room, room[(..., *(slice(p, p + size) for p, size in zip(pads, g.size, strict=True)))]

    def _gather(self, xp: Any, g: Geometry, data: Array, tile: Tile, columns: Array, padded: Array) -> Array:
        """Lay the windows of one tile out as columns: (groups, depth, places)."""
        source = channels_first(data, self._last)[tile.images]
        if g.padded != g.size:
            room, inside = self._padded(g, padded, source.shape[0])
            if tile.lines.start == 0:
                xp.copyto(inside, source)
            source = room
        images, channels, *places = source.strides
        axes = self._axes()
        kernel_steps = (step * dilate for step, (_, _, dilate, _) in zip(places, axes, strict=True))
        out_steps = (step * stride for step, (_, stride, _, _) in zip(places, axes, strict=True))
        windows = xp.lib.stride_tricks.as_strided(
            source,
            (source.shape[0], g.groups, g.channels, *g.kernel, *g.out),
            (images, channels * g.channels, channels, *kernel_steps, *out_steps),
        )
        lines = (slice(None),) * (3 + len(axes)) + (tile.lines,)
        cells, matrix = self._columns(g, tile, columns)
        xp.copyto(cells, windows[lines])
        return matrix

    def _scatter(self, xp: Any, g: Geometry, ddata: Array, tile: Tile, columns: Array, padded: Array) -> None:
        """Add the columns of one tile back to the places of the data that they came from."""
        target = inside = channels_first(ddata, self._last)[tile.images]
        if padded.size:
            target, inside = self._padded(g, padded, target.shape[0])
        if tile.lines.start == 0:
            target.fill(0)
        cells, _ = self._columns(g, tile, columns)
        grouped = target.reshape(target.shape[0], g.groups, g.channels, *g.padded)
        starts, axes = (tile.lines.start, *(0,) * (len(g.out) - 1)), self._axes()
        for offset in combinations(*(range(k) for k in g.kernel)):
            column = cells[(slice(None),) * 3 + offset]
            spans = (
                slice(k * dilate + start * stride, k * dilate + (start + count - 1) * stride + 1, stride)
                for k, start, count, (_, stride, dilate, _) in zip(offset, starts, column.shape[3:], axes, strict=True)
            )
            place = grouped[(..., *spans)]
            xp.add(place, column, out=place)
        if padded.size and tile.lines.stop == g.out[0]:
            xp.copyto(channels_first(ddata, self._last)[tile.images], inside)


def _filters(xp: Any, g: Geometry, weight: Array, matrix: Array) -> Array:
    """The weight as (groups, filters, depth), in the type in which sums run."""
    if not matrix.size:
        return weight.reshape(g.groups, g.filters, g.depth)
    filters = matrix.reshape(g.groups, g.filters, g.depth)
    xp.copyto(filters, weight.reshape(filters.shape))
    return filters


@functools.lru_cache(maxsize=1024)
def _geometry(op: Convolution, shape: tuple[int, ...]) -> Geometry:
    """Sizes and tiles for data of ``shape``.

    ``mirrored`` compares measured costs: laying out a value costs as much as 10 products, adding one back as 70.
    """
    images, channels, size = split(shape, op._last)
    axes = op._axes()
    padded = tuple(x + 2 * pad for x, (_, _, _, pad) in zip(size, axes, strict=True))
    out = tuple((x - reach) // stride + 1 for x, (reach, stride, _, _) in zip(padded, axes, strict=True))
    image = channels * math.prod(op.kernel) * math.prod(out)
    channels, filters = channels // op.num_group, op.num_filter // op.num_group
    pointwise = all((reach, stride, pad) == (1, 1, 0) for reach, stride, _, pad in axes)
    mirrored = not pointwise and all(stride == 1 and pad < reach for reach, stride, _, pad in axes)
    laid_out, added = math.prod(size) * filters * (channels + 10), math.prod(out) * channels * (filters + 70)
    return Geometry(
        images, op.num_group, channels, filters, op.kernel, tuple(size), padded, out,
        tile_images=max(1, min(images, TILE // image)),
        tile_lines=-(-out[0] // -(-image // TILE)),
        pointwise=pointwise, mirrored=mirrored and laid_out <= added,
    )  # fmt: skip
