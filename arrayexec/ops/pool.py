"""Pooling: one value of each window. Bodies go through the places of a window, all windows at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from typing import Any, Literal

from ..dims import ANY, UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating
from .precision import wide
from .windows import Layout, channels_first, check_layout, is_known, join, per_axis, split

Array = Any
Place = tuple[tuple[Any, ...], tuple[Any, ...]]  # indices: windows, and their places in data


@register_op
class Pooling(Op):
    """``out`` = max, sum, mean (avg) or ``(Σ data^p)^(1/p)`` (lp, p_value 1 to 3) of each window of data.

    data (n, c, …), out (n, c, …), or c last by ``layout``; one to three spatial axes. An output dim is
    ``(size + 2·pad - kernel) // stride + 1``; ``full`` rounds up, so the last window may hang over the end;
    ``same`` gives ``ceil((size + 2·pad) / stride)``. ``global_pool`` takes all places, whatever kernel, stride
    and pad say. Padding is -inf for max, else 0. avg divides by the window clipped to data and padding, without
    ``count_include_pad`` by the places of data alone; a window without any gives 0 (max: -inf). The gradient of
    max goes to the first maximum of a window; a window with a NaN gives NaN and passes no gradient.
    """

    kernel: tuple[int, ...] = ()
    pool_type: Literal["max", "avg", "sum", "lp"] = "max"
    global_pool: bool = False
    pooling_convention: Literal["valid", "full", "same"] = "valid"
    stride: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    p_value: int | None = None
    count_include_pad: bool | None = None
    layout: Layout | None = None
    cudnn_off: bool = False
    rows = "parallel"
    hints = ("cudnn_off",)
    examples = (
        {"data": (2, 2, 5, 4), "kernel": (2, 3)},
        {"data": (2, 1, 5, 5), "kernel": (2, 2), "stride": (2, 2), "pooling_convention": "full"},
        {"data": (2, 1, 5, 5), "kernel": (3, 3), "stride": (2, 1), "pad": (1, 1), "pool_type": "avg"},
        {"data": (2, 5, 2), "kernel": (3,), "pad": (1,), "pool_type": "avg", "count_include_pad": False,
         "layout": "NWC"},
        {"data": (2, 1, 3, 4, 2), "kernel": (2, 2, 2), "pool_type": "sum", "pooling_convention": "same"},
        {"data": Sample((2, 2, 4, 4), 0.5, 1.5), "kernel": (2, 2), "stride": (2, 2), "pool_type": "lp", "p_value": 2},
        {"data": Sample((2, 2, 6), 0.5, 1.5), "kernel": (3,), "stride": (2,), "pool_type": "lp", "p_value": 3},
        {"data": (2, 2, 3, 3), "global_pool": True},
        {"data": (2, 3, 3, 2), "global_pool": True, "pool_type": "avg", "layout": "NHWC"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.global_pool:
            if not 1 <= len(self.kernel) <= 3 or min(self.kernel) < 1:
                raise AttributeValueError(
                    "Pooling: attribute 'kernel' must hold one to three numbers >= 1 unless global_pool=True, "
                    f"but it is {self.kernel}"
                )
            per_axis("Pooling", "stride", self.stride, len(self.kernel), 1)
            per_axis("Pooling", "pad", self.pad, len(self.kernel), 0)
            check_layout("Pooling", self.layout, len(self.kernel))
        if self.pool_type == "lp" and self.p_value not in (1, 2, 3):
            raise AttributeValueError(
                f"Pooling: attribute 'p_value' must be 1, 2 or 3 with pool_type=lp, but it is {self.p_value}"
            )

    @property
    def _last(self) -> bool:
        return self.layout is not None and self.layout[-1] == "C"

    def total_outputs(self) -> int:
        return 2 if self.pool_type == "max" and self.kernel and not self._last else 1  # the files count a workspace

    def _axes(self, sizes: Any) -> list[tuple[int, int, int]]:
        """Kernel, stride and padding of each spatial axis."""
        if self.global_pool:
            return [(size, 1, 0) for size in sizes]
        count = len(self.kernel)
        return list(zip(self.kernel, self.stride or (1,) * count, self.pad or (0,) * count, strict=True))

    def _length(self, size: Any, kernel: Any, stride: int, pad: int) -> Any:
        """Output dim of one spatial axis."""
        if self.global_pool:
            return 1
        room = size + 2 * pad
        if self.pooling_convention == "same":
            return -(-room // stride)
        return (room - kernel if self.pooling_convention == "valid" else room - kernel + stride - 1) // stride + 1

    def infer(self, s: Any) -> None:
        last = self._last
        if not self.global_pool or self.layout:
            s.data = s.out = (UNKNOWN,) * (len(self.layout) if self.layout else len(self.kernel) + 2)
        for shape in (s.data, s.out):
            if shape is not ANY:
                if not 3 <= len(shape) <= 5:
                    s.fail("data", f"must have 3 to 5 dims, but it has {len(shape)}")
                batch, channels, sizes = split(shape, last)
                s.data = s.out = join(batch, channels, (UNKNOWN,) * len(sizes), last)
        if s.data is ANY:
            return
        batch, channels, sizes = split(s.data, last)
        axes = self._axes(sizes)
        for axis, (size, (kernel, _, pad)) in enumerate(zip(sizes, axes, strict=True)):
            if self.global_pool and is_known(size) and size == 0:
                s.fail("data", f"must have a place to pool on spatial axis {axis}, but its dim is 0")
            if not self.global_pool and is_known(size) and size + 2 * pad < kernel:
                s.fail("data", f"must be at least {kernel - 2 * pad} long on spatial axis {axis} for a kernel of "
                               f"{kernel}, but it is {size}")  # fmt: skip
        out = [self._length(size, *axis) for size, axis in zip(sizes, axes, strict=True)]
        s.out = join(batch, channels, out, last)
        if not self.global_pool:
            outs, reach = split(s.out, last)[2], self.pooling_convention != "same"
            sizes = [
                out + (kernel - 1) * reach - 2 * pad if stride == 1 else UNKNOWN
                for out, (kernel, stride, pad) in zip(outs, axes, strict=True)
            ]
            s.data = join(batch, channels, sizes, last)

    def types(self, t: Any) -> None:
        t.same()
        if self.pool_type in ("avg", "lp"):
            check_floating(t, "data")

    def _whole(self, sizes: tuple[int, ...]) -> bool:
        """True if there is one window, and it is all of the data."""
        axes = self._axes(sizes)
        return all(
            kernel == size and pad == 0 and self._length(size, kernel, stride, pad) == 1
            for size, (kernel, stride, pad) in zip(sizes, axes, strict=True)
        )

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        most, lp = self.pool_type == "max", self.pool_type == "lp"
        images, channels, sizes = split(s.data, self._last)
        whole = self._whole(sizes)
        kind, sums, none = s.dtype("data"), wide(s.dtype("data")), (0,)
        block = math.prod(_block(images, channels, sizes)) * (most and not whole)
        large, small = math.prod(self._in_phases(sizes)) * block, math.prod(split(s.out, self._last)[2]) * block
        return {
            "total": (s.out if sums != kind and not most else none, sums),
            "sums": (s.data if sums != kind and not most and not (whole and not lp) else none, sums),
            "power": (s.out if lp else none, sums),
            "part": (s.out if self.pool_type in ("avg", "lp") else (large + small,), sums),
            "lines": ((large + 2 * small,), kind),
            "hit": (s.data if most and whole else (small,), "bool"),
            "left": (s.out if most and whole else (small,), "bool"),
            "first": (s.out if most and whole else none, "int64"),
        }

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return ("data", "out") if self.pool_type in ("max", "lp") else ()

    def forward(self, xp: Any, data: Array, out: Array, total: Temp, power: Temp) -> None:
        x, sizes, axes = self._view(data)
        if self.pool_type == "max":
            if self._whole(sizes):
                xp.max(data, axis=axes, keepdims=True, out=out)
                return
            out.fill(lowest(xp, out.dtype))
            y = self._view(out)[0]
            for there, here in self._places(sizes, y.shape[2:]):
                xp.maximum(y[there], x[here], out=y[there])
            return
        result = total if total.size else out
        if self._whole(sizes) and self.pool_type != "lp":
            xp.sum(data, axis=axes, keepdims=True, dtype=result.dtype, out=result)
        else:
            result.fill(0)
            y, scratch = self._view(result)[0], self._view(power)[0] if power.size else None
            for there, here in self._places(sizes, y.shape[2:]):
                item = x[here]
                if scratch is not None:
                    item = _power(xp, item, self.p_value or 1, scratch[there])
                xp.add(y[there], item, out=y[there])
        if self.pool_type == "avg":
            y = self._view(result)[0]
            xp.divide(y, self._counts(xp, sizes, y.shape[2:], result.dtype), out=y)
        elif self.pool_type == "lp" and self.p_value != 1:
            (xp.sqrt if self.p_value == 2 else xp.cbrt)(result, out=result)
        if total.size:
            xp.copyto(out, total)

    def backward(
        self, xp: Any, dout: Array, data: Array, out: Array, ddata: Array,
        sums: Temp, part: Temp, power: Temp, lines: Temp, hit: Temp, left: Temp, first: Temp,
    ) -> None:  # fmt: skip
        dx, sizes, _ = self._view(ddata)
        whole = self._whole(sizes)
        if self.pool_type == "max":
            self._backward_max(xp, dout, data, out, ddata, part, lines, hit, left, first)
            return
        arriving = self._view(dout)[0]
        if self.pool_type == "avg":
            share = self._view(part)[0]
            arriving = xp.divide(arriving, self._counts(xp, sizes, arriving.shape[2:], part.dtype), out=share)
        elif self.pool_type == "lp":
            self._lp_share(xp, dout, out, part, power)
            arriving = self._view(part)[0]
        if whole and self.pool_type != "lp":
            xp.copyto(dx, arriving)
            return
        if self.pool_type != "lp" and self._tiles(sizes, arriving.shape[2:]):
            self._spread(xp, part if self.pool_type == "avg" else dout, ddata)
            return
        target = sums.reshape(ddata.shape) if sums.size else ddata
        dx = self._view(target)[0]
        dx.fill(0)
        for there, here in self._places(sizes, arriving.shape[2:]):
            item = arriving[there]
            if self.pool_type == "lp":
                scratch = self._view(power)[0][there]
                item = _power(xp, self._view(data)[0][here], (self.p_value or 1) - 1, scratch)
                item = xp.multiply(item, arriving[there], out=scratch)
            xp.add(dx[here], item, out=dx[here])
        if target is not ddata:
            xp.copyto(ddata, target)

    def _tiles(self, sizes: tuple[int, ...], outs: tuple[int, ...]) -> bool:
        """True if every place of the data lies in one window."""
        axes = zip(sizes, outs, self._axes(sizes), strict=True)
        return all(kernel == stride and pad == 0 and size == out * kernel for size, out, (kernel, stride, pad) in axes)

    def _spread(self, xp: Any, share: Array, ddata: Array) -> None:
        """``ddata`` = the share of each place's one window."""
        lead, count = 1 if self._last else 2, ddata.ndim - 2
        sizes = ddata.shape[lead : lead + count]
        kernels = [kernel for kernel, _, _ in self._axes(sizes)]
        dims = [n for size, kernel in zip(sizes, kernels, strict=True) for n in (size // kernel, kernel)]
        shape = (*ddata.shape[:lead], *dims, *ddata.shape[lead + count :])
        stretched = share[(slice(None),) * lead + (slice(None), None) * count]
        xp.copyto(ddata.reshape(shape), stretched, casting="same_kind")

    def _backward_max(
        self, xp: Any, dout: Array, data: Array, out: Array, ddata: Array,
        part: Array, lines: Array, hit: Array, left: Array, first: Array,
    ) -> None:  # fmt: skip
        _, sizes, axes = self._view(ddata)
        if self._whole(sizes):
            count, axis = math.prod(sizes), axes[0]
            flat = (*data.shape[:axis], count, *data.shape[axes[-1] + 1 :])
            one = (*data.shape[:axis], 1, *data.shape[axes[-1] + 1 :])
            xp.equal(data, out, out=hit)
            xp.argmax(hit.reshape(flat), axis=axis, keepdims=True, out=first.reshape(one))
            places = xp.arange(count).reshape((count, 1) if self._last else (count,))
            xp.equal(first.reshape(one), places, out=hit.reshape(flat))
            xp.equal(out, out, out=left)  # a NaN is nowhere
            xp.logical_and(hit, left, out=hit)
            xp.multiply(dout, hit, out=ddata)
            return
        for images, channels, room in self._blocks(data.shape, out.shape, part, lines, hit, left):
            arrays = (self._planes(array[images], channels) for array in (data, out, dout, ddata))
            self._first_maximum(xp, room, *arrays)

    def _first_maximum(
        self, xp: Any, room: tuple[Array, ...], data: Array, out: Array, dout: Array, ddata: Array
    ) -> None:
        """Gradient of max for a block, seen as (…, images, channels): so every pass has long lines."""
        x, y, arriving, item, dx, now, free = room
        xp.copyto(y, out)
        xp.copyto(arriving, dout)
        strides = [stride for _, stride, _ in self._axes(data.shape[:-2])]
        phases = list(combinations(*map(range, strides)))
        for phase in phases:
            source = data[tuple(slice(i, None, stride) for i, stride in zip(phase, strides, strict=True))]
            xp.copyto(x[phase][tuple(map(slice, source.shape))], source)
        dx.fill(0)
        free.fill(True)
        for there, here in self._places(data.shape[:-2], out.shape[:-2]):
            there, spans = there[1:], list(zip(here[1:], strides, strict=True))
            here = tuple(span.start % stride for span, stride in spans)
            here += tuple(slice(span.start // stride, (span.stop - 1) // stride + 1) for span, stride in spans)
            xp.equal(x[here], y[there], out=now[there])
            xp.logical_and(now[there], free[there], out=now[there])
            xp.logical_xor(free[there], now[there], out=free[there])
            xp.multiply(arriving[there], now[there], out=item[there])
            xp.add(dx[here], item[there], out=dx[here])
        for phase in phases:
            target = ddata[tuple(slice(i, None, stride) for i, stride in zip(phase, strides, strict=True))]
            xp.copyto(target, dx[phase][tuple(map(slice, target.shape))])

    def _in_phases(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Dims of data whose lines are sorted by their place modulo the stride: what a window's place meets is in line.

        The strides, then how many lines each of them has.
        """
        axes = self._axes(sizes)
        strides = tuple(stride for _, stride, _ in axes)
        return (*strides, *(-(-size // stride) for size, stride in zip(sizes, strides, strict=True)))

    def _planes(self, images: Array, channels: slice) -> Array:
        """Some channels of images as (…, images, channels)."""
        images = self._view(images)[0][:, channels]
        return images.transpose(*range(2, images.ndim), 0, 1)

    def _blocks(
        self, shape: tuple[int, ...], out: tuple[int, ...], part: Array, lines: Array, hit: Array, left: Array
    ) -> Iterator[tuple[slice, slice, tuple[Array, ...]]]:
        """Images and channels that are gone through at once, with scratch for them."""
        images, channels, sizes = split(shape, self._last)
        outs, block, phased = split(out, self._last)[2], _block(images, channels, sizes), self._in_phases(sizes)
        for n, c in combinations(range(0, images, block[0]), range(0, channels, block[1])):
            counts = min(block[0], images - n), min(block[1], channels - c)
            large, small = math.prod(phased) * math.prod(counts), math.prod(outs) * math.prod(counts)
            rooms = [lines[:large].reshape(*phased, *counts)]
            rooms += [lines[large + i * small :][:small].reshape(*outs, *counts) for i in range(2)]
            rooms += [part[:small].reshape(*outs, *counts), part[small:][:large].reshape(*phased, *counts)]
            rooms += [marks[:small].reshape(*outs, *counts) for marks in (hit, left)]
            yield slice(n, n + counts[0]), slice(c, c + counts[1]), tuple(rooms)

    def _lp_share(self, xp: Any, dout: Array, out: Array, part: Array, power: Array) -> None:
        """``part = dout / out^(p - 1)``, and 0 where ``out`` is 0."""
        _power(xp, out, (self.p_value or 1) - 1, part)
        xp.equal(part, 0, out=power)
        xp.add(part, power, out=part)
        xp.divide(dout, part, out=part)
        xp.subtract(1, power, out=power)
        xp.multiply(part, power, out=part)

    def _view(self, array: Array) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
        """``array`` as (n, c, …), its spatial dims, and the spatial axes as they are numbered in ``array``."""
        axes = tuple(range(1, array.ndim - 1) if self._last else range(2, array.ndim))
        return channels_first(array, self._last), tuple(array.shape[axis] for axis in axes), axes

    def _places(self, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Iterator[Place]:
        """For each place of a window: the windows in which it lies on data, and where it lies in them."""
        axes: list[list[tuple[slice, slice]]] = []
        for size, out, (kernel, stride, pad) in zip(sizes, outs, self._axes(sizes), strict=True):
            steps = []
            for i in range(kernel):
                start, stop = max(0, -((i - pad) // stride)), min(out, (size - 1 + pad - i) // stride + 1)
                if start < stop:
                    begin = start * stride + i - pad
                    end = begin + (stop - start - 1) * stride + 1
                    steps.append((slice(start, stop), slice(begin, end, stride)))
            axes.append(steps)
        for chosen in combinations(*axes):
            yield (..., *(there for there, _ in chosen)), (..., *(here for _, here in chosen))

    def _counts(self, xp: Any, sizes: tuple[int, ...], outs: tuple[int, ...], kind: Any) -> Array:
        """What avg divides each window by: an array that broadcasts against the spatial axes."""
        counts = xp.ones((1,), kind)
        for size, out, (kernel, stride, pad) in zip(sizes, outs, self._axes(sizes), strict=True):
            border = 0 if self.count_include_pad is False else pad
            starts = xp.arange(out) * stride - pad
            length = xp.minimum(starts + kernel, size + border) - xp.maximum(starts, -border)
            counts = counts[..., None] * xp.maximum(length, 1).astype(kind)
        return counts


def lowest(xp: Any, dtype: Any) -> Any:
    """What no value is below: padding of max."""
    return xp.iinfo(dtype).min if dtype.kind in "iu" else -math.inf


def _block(images: int, channels: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Images and channels that the gradient of max goes through at once: about 2¹⁷ values."""
    planes = max(8, (1 << 17) // max(1, math.prod(sizes)))
    count = max(1, min(channels, planes))
    return max(1, min(images, planes // count)), count


def _power(xp: Any, base: Array, exponent: int, out: Array) -> Array:
    """``base ** exponent`` into ``out``, for small whole exponents."""
    out.fill(1)
    for _ in range(exponent):
        xp.multiply(out, base, out=out)
    return out
