"""Convolutions that read every place of a window from where an offset, itself an input, moves it to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating
from .precision import wide
from .windows import check_filled, is_known, per_axis

Array = Any
FOUR = (UNKNOWN,) * 4
BLOCK = 6000  # values that are read at once


class Room(NamedTuple):
    """Scratch of one image: padded data and their gradient, columns and theirs, places, and pieces of a block."""

    padded: Array  # (c, h + 3, w + 3): a zero before, two behind
    columns: Array  # (c, kernel · places)
    places: Array  # (4, kernel · places): where the four values around a place lie in a plane of padded
    shares: Array  # (6, kernel · places): fractions down and across, and the weights of the four
    inside: Array  # (2, kernel · places): whether a move down and one across change what is read
    item: Array  # (block, kernel · places)


@register_op(name="_contrib_DeformableConvolution", aliases=("DeformableConvolution", "_npx_deformable_convolution"))
class DeformableConvolution(Op):
    """``out[n, f, o] = bias[f] + Σ data[n, c, o·stride - pad + k·dilate + offset[n, g, k, o]] · weight[f, c, k]``.

    data (n, c, h, w), offset (n, 2·num_deformable_group·kh·kw, H, W): down and across for each place k of the kernel,
    weight (num_filter, c / num_group, kh, kw), bias (num_filter,), out (n, num_filter, H, W) with the dims of
    Convolution; channels fall into ``num_deformable_group`` groups g. Values between places are interpolated
    bilinearly; up to one place behind the last, the last counts; before the first, and farther behind, there are zeros.
    A NaN among the offsets gives NaN.
    """

    kernel: tuple[int, ...]
    num_filter: int
    stride: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    num_group: int = 1
    num_deformable_group: int = 1
    workspace: int = 1024
    no_bias: bool = False
    layout: str | None = None
    fades = False  # whether values fall to zero within one place before the first and behind the last
    rows = "sum"
    hints = ("workspace", "layout")
    multiplies = True
    examples = (
        {"data": (2, 2, 14, 12), "offset": Sample((2, 12, 13, 10), 0.1, 0.4), "kernel": (2, 3), "num_filter": 2},
        {"data": (1, 4, 17, 9), "offset": Sample((1, 16, 8, 10), 0.1, 0.4), "kernel": (2, 2), "num_filter": 4,
         "stride": (2, 1), "dilate": (2, 1), "pad": (0, 1), "num_group": 2, "num_deformable_group": 2,
         "no_bias": True},
    )  # fmt: skip

    def __post_init__(self) -> None:
        name = self.form.name
        if len(self.kernel) != 2 or min(self.kernel) < 1:
            raise AttributeValueError(
                f"{name}: attribute 'kernel' must hold two numbers >= 1, but it is {tuple(self.kernel)}"
            )
        for key, default in (("stride", 1), ("dilate", 1), ("pad", 0)):
            per_axis(name, key, getattr(self, key), 2, default)
        if self.layout not in (None, "NCHW"):
            raise AttributeValueError(f"{name}: attribute 'layout' must be NCHW or None, but it is {self.layout!r}")
        if min(self.num_group, self.num_filter, self.num_deformable_group) < 1 or self.num_filter % self.num_group:
            raise AttributeValueError(
                f"{name}: attribute 'num_filter' must be a multiple of 'num_group', these and 'num_deformable_group' "
                f"at least 1, but they are {self.num_filter}, {self.num_group}, {self.num_deformable_group}"
            )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "offset", "weight") if self.no_bias else ("data", "offset", "weight", "bias")

    def _axes(self) -> list[tuple[int, int, int, int]]:
        """Kernel, stride, dilation and padding of both axes."""
        return list(zip(self.kernel, self.stride or (1, 1), self.dilate or (1, 1), self.pad or (0, 0), strict=True))

    def infer(self, s: Any) -> None:
        groups, count = self.num_deformable_group, self.num_deformable_group * math.prod(self.kernel)
        s.bias = (self.num_filter,)
        s.weight = (self.num_filter, UNKNOWN, *self.kernel)
        s.data = (UNKNOWN, s.weight[1] * self.num_group, UNKNOWN, UNKNOWN)
        s.out = (UNKNOWN, self.num_filter, UNKNOWN, UNKNOWN)
        check_filled(s, "data")
        batch, channels, *sizes = s.data
        for divisor, name in ((self.num_group, "num_group"), (groups, "num_deformable_group")):
            if is_known(channels) and channels % divisor:
                s.fail("data", f"must have channels that {name}={divisor} divides, but it has {channels}")
        s.weight = (self.num_filter, channels // self.num_group, *self.kernel)
        out = []
        for axis, (size, (kernel, stride, dilate, pad)) in enumerate(zip(sizes, self._axes(), strict=True)):
            reach = dilate * (kernel - 1) + 1
            if is_known(size) and size + 2 * pad < reach:
                s.fail("data", f"must be at least {reach - 2 * pad} long on spatial axis {axis}, but it is {size}")
            out.append((size + 2 * pad - reach) // stride + 1)
        s.out = (batch, self.num_filter, *out)
        for name, depth in (("offset", 2 * count), ("mask", count)):
            setattr(s, name, (s.out[0], depth, *s.out[2:]))
            moved = getattr(s, name)
            s.out = (moved[0], UNKNOWN, *moved[2:]) if name in self.inputs() else FOUR
        sizes = [
            out + dilate * (kernel - 1) - 2 * pad if stride == 1 else UNKNOWN
            for out, (kernel, stride, dilate, pad) in zip(s.out[2:], self._axes(), strict=True)
        ]
        s.data = (s.out[0], UNKNOWN, *sizes)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        sums, (_, channels, height, width), places = wide(s.dtype("data")), s.data, math.prod(s.out[2:])
        moved, plane, narrow = places * math.prod(self.kernel), (height + 3) * (width + 3), sums != s.dtype("data")
        block = max(1, min(channels, BLOCK // moved))
        return {
            "padded": ((channels, plane), sums),
            "dpadded": ((channels, plane), sums),
            "columns": ((channels, moved), sums),
            "dcolumns": ((channels, moved), sums),
            "places": ((4, moved), "int64"),
            "shares": ((6, moved), sums),
            "inside": ((2, moved), "bool"),
            "item": ((block, moved), sums),
            "flat": ((block, moved), "int64"),
            "moves": ((3, moved), sums),
            "filters": (s.weight, sums),
            "part": (s.weight, sums),
            "total": (s.weight if narrow else (0,), sums),
            "product": ((self.num_filter, places), sums),
        }

    def forward(
        self, xp: Any, data: Array, offset: Array, mask: Array, weight: Array, bias: Array, out: Array,
        padded: Temp, columns: Temp, places: Temp, shares: Temp, inside: Temp, item: Temp, filters: Temp, product: Temp,
    ) -> None:  # fmt: skip
        room = Room(padded, columns, places, shares, inside, item)
        xp.copyto(filters, weight)
        matrix = filters.reshape(self.num_group, self.num_filter // self.num_group, -1)
        for n in range(data.shape[0]):
            self._fill(xp, data[n], padded)
            for group in range(self.num_deformable_group):
                self._locate(xp, offset[n], group, data.shape[2:], room)
                self._read(xp, group, None if mask is None else mask[n], room)
            parts = (self.num_group, -1, product.shape[-1])
            xp.matmul(matrix, columns.reshape(parts), out=product.reshape(parts))
            if bias is not None:
                xp.add(product, bias[:, None], out=product)
            xp.copyto(out[n], product.reshape(out.shape[1:]))

    def backward(
        self, xp: Any, dout: Array, data: Array, offset: Array, mask: Array, weight: Array,
        ddata: Array, doffset: Array, dmask: Array, dweight: Array, dbias: Array,
        padded: Temp, dpadded: Temp, columns: Temp, dcolumns: Temp, places: Temp, shares: Temp, inside: Temp,
        item: Temp, flat: Temp, moves: Temp, filters: Temp, part: Temp, total: Temp, product: Temp,
    ) -> None:  # fmt: skip
        room = Room(padded, columns, places, shares, inside, item)
        parts = (self.num_group, -1, product.shape[-1])
        xp.copyto(filters, weight)
        matrix = filters.reshape(self.num_group, self.num_filter // self.num_group, -1)
        sums = total if total.size else dweight
        if dbias is not None:
            xp.sum(dout, axis=(0, 2, 3), dtype=filters.dtype, out=dbias)
        if dweight is not None:
            sums.fill(0)
        for n in range(data.shape[0]):
            self._fill(xp, data[n], padded)
            xp.copyto(product.reshape(dout.shape[1:]), dout[n])
            dpadded.fill(0)
            xp.matmul(matrix.swapaxes(1, 2), product.reshape(parts), out=dcolumns.reshape(parts))
            for group in range(self.num_deformable_group):
                self._locate(xp, offset[n], group, data.shape[2:], room)
                factor = None if mask is None else mask[n]
                self._read(xp, group, None, room)
                self._spread(xp, group, factor, room, dcolumns, dpadded if ddata is not None else None, flat, moves)
                self._read(xp, group, factor, room)
                for number, target in enumerate((doffset, doffset, dmask)):
                    if target is not None:
                        given = self._part(target[n], group, 1 if number == 2 else 2)[:, number % 2]
                        xp.copyto(given, moves[number].reshape(given.shape))
            if dweight is not None:
                xp.matmul(product.reshape(parts), columns.reshape(parts).swapaxes(1, 2), out=part.reshape(matrix.shape))
                xp.add(sums, part, out=sums)
            if ddata is not None:
                xp.copyto(ddata[n], self._inner(dpadded, ddata.shape[1:]))
        if dweight is not None and sums is not dweight:
            xp.copyto(dweight, sums)

    def _inner(self, padded: Array, shape: tuple[int, ...]) -> Array:
        """The part of padded data that is no padding."""
        channels, height, width = shape
        return padded.reshape(channels, height + 3, width + 3)[:, 1 : height + 1, 1 : width + 1]

    def _fill(self, xp: Any, image: Array, padded: Array) -> None:
        padded.fill(0)
        xp.copyto(self._inner(padded, image.shape), image)

    def _part(self, image: Array, group: int, each: int) -> Array:
        """What offset (each 2) or mask (1) of an image hold for one group: (kernel, each, H, W)."""
        count = math.prod(self.kernel)
        return image.reshape(-1, count, each, *image.shape[1:])[group]

    def _locate(self, xp: Any, offset: Array, group: int, sizes: tuple[int, ...], room: Room) -> None:
        """Places and shares of the four values around every place that one group of channels reads."""
        given, width = self._part(offset, group, 2), sizes[1] + 3
        shape = (*self.kernel, *given.shape[2:])
        room.inside.fill(True)
        for axis, (size, (kernel, stride, dilate, pad)) in enumerate(zip(sizes, self._axes(), strict=True)):
            at, whole = room.shares[axis], room.shares[2 + axis]
            xp.copyto(at.reshape(given[:, 0].shape), given[:, axis])
            down = (slice(None),) + (None,) * (1 - axis)  # along this axis of kernel and places
            starts = (xp.arange(shape[2 + axis]) * stride - pad)[down]
            taps = (xp.arange(kernel) * dilate)[(*down, None, None)]
            xp.add(at.reshape(shape), (starts + taps).astype(at.dtype), out=at.reshape(shape))
            xp.logical_and(room.inside, at < size, out=room.inside)
            if self.fades:
                xp.logical_and(room.inside, at > -1, out=room.inside)
                xp.clip(at, -1, size, out=at)
            else:
                xp.logical_and(room.inside, at >= 0, out=room.inside)
                xp.logical_and(room.inside[axis], at < size - 1, out=room.inside[axis])
                xp.copyto(at, -1, where=(at < 0) | (at >= size))  # reads zeros
                xp.minimum(at, size - 1, out=at)
            xp.floor(xp.fmax(at, -1), out=whole)  # -1 for a NaN, which stays in the fraction
            xp.subtract(at, whole, out=at)
        down_share, across, first, second = (room.shares[i] for i in range(4))
        xp.multiply(first + 1, width, out=first)
        xp.copyto(room.places[0], first + (second + 1), casting="unsafe")
        for corner, shift in ((1, 1), (2, width), (3, width + 1)):
            xp.add(room.places[0], shift, out=room.places[corner])
        for corner in range(4):
            here = room.shares[2 + corner]
            xp.multiply(
                down_share if corner > 1 else 1 - down_share, across if corner % 2 else 1 - across, out=here
            )

    def _channels(self, room: Room, group: int) -> list[slice]:
        """The channels of a group in blocks."""
        count = room.columns.shape[0] // self.num_deformable_group
        return [
            slice(start, min(start + room.item.shape[0], (group + 1) * count))
            for start in range(group * count, (group + 1) * count, room.item.shape[0])
        ]

    def _read(self, xp: Any, group: int, mask: Array, room: Room) -> None:
        """Columns of one group: what lies at its places, times mask unless None."""
        for part in self._channels(room, group):
            target, item = room.columns[part], room.item[: part.stop - part.start]
            for corner in range(4):
                values = xp.take(room.padded[part], room.places[corner], axis=1)
                xp.multiply(values, room.shares[2 + corner], out=item if corner else target)
                if corner:
                    xp.add(target, item, out=target)
            if mask is not None:
                xp.multiply(target, self._part(mask, group, 1).reshape(-1), out=target)

    def _spread(
        self, xp: Any, group: int, mask: Array, room: Room, dcolumns: Array, dpadded: Array, flat: Array, moves: Array
    ) -> None:
        """From the gradient of one group's columns: of its data, and in ``moves`` of its offsets and mask."""
        moves.fill(0)
        plane = room.padded.shape[1]
        down, across = room.shares[0], room.shares[1]
        for part in self._channels(room, group):
            given, count = dcolumns[part], part.stop - part.start
            item, places = room.item[:count], flat[:count]
            if mask is not None:
                xp.multiply(given, room.columns[part], out=item)
                xp.add(moves[2], xp.sum(item, axis=0), out=moves[2])
                xp.multiply(given, self._part(mask, group, 1).reshape(-1), out=given)
            values = [xp.take(room.padded[part], room.places[corner], axis=1) for corner in range(4)]
            for move, (low, high, beside), fraction in ((0, (0, 2, 1), across), (1, (0, 1, 2), down)):
                slope = xp.subtract(values[high], values[low], out=item)
                other = values[3] - values[beside]
                xp.add(slope, (other - slope) * fraction, out=slope)
                xp.multiply(slope, given, out=slope)
                xp.add(moves[move], xp.sum(slope, axis=0), out=moves[move])
            if dpadded is None:
                continue
            starts = xp.arange(part.start, part.stop)[:, None] * plane
            for corner in range(4):
                xp.multiply(given, room.shares[2 + corner], out=item)
                xp.add(room.places[corner], starts, out=places)
                xp.add.at(dpadded.reshape(-1), places.reshape(-1), item.reshape(-1))
        xp.multiply(moves[:2], room.inside, out=moves[:2])


@register_op(
    name="_contrib_ModulatedDeformableConvolution",
    aliases=("ModulatedDeformableConvolution", "_npx_modulated_deformable_convolution"),
)
class ModulatedDeformableConvolution(DeformableConvolution):
    """DeformableConvolution whose every value that is read is multiplied by ``mask[n, g, k, o]`` first.

    mask (n, num_deformable_group·kh·kw, H, W); all else as there, except that around the data there are zeros.
    """

    im2col_step: int = 64
    fades = True
    hints = ("workspace", "layout", "im2col_step")  # type: ignore[assignment]

    def inputs(self) -> tuple[str, ...]:
        return ("data", "offset", "mask", "weight") if self.no_bias else ("data", "offset", "mask", "weight", "bias")
