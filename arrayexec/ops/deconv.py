"""Deconvolution: a convolution read from its output to its data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Temp, register_op
from .columns import Axis, Columns
from .conv import Filtered
from .convolve import Room, convolve, correlate, scratch, spread, sum_bias
from .precision import wide
from .windows import Layout, Tune, check_filled, is_known, join, per_axis, split

Array = Any


class Length(NamedTuple):
    """One spatial axis: output dim, padding and the rows that ``adj`` adds at the end."""

    out: Any
    pad: Any
    adj: Any


@register_op
class Deconvolution(Filtered):
    """``out[n, f, i·stride - pad + k·dilate] += data[n, c, i] · weight[c, f, k]`` over c, i and k, plus bias[f].

    The adjoint of the convolution from out to data. data (n, c, …), weight (c, num_filter / num_group, *kernel), bias
    (num_filter,), out (n, num_filter, …), one to three spatial axes; group i of channels makes group i of filters. An
    output dim is ``stride·(size - 1) + dilate·(kernel - 1) + 1 - 2·pad + adj``. ``target_shape`` sets the output dims
    in place of pad and adj: of ``surplus = stride·(size - 1) + dilate·(kernel - 1) + 1 - target`` lines,
    ``(surplus + 1) // 2`` are cut off at the start, the rest at the end. Layouts with C last take data and out as
    (n, …, c), weight as (c, *kernel, num_filter / num_group). MXNet on a CPU without oneDNN puts products elsewhere
    where both stride and dilate are above 1.
    """

    kernel: tuple[int, ...]
    num_filter: int
    stride: tuple[int, ...] = ()
    dilate: tuple[int, ...] = ()
    pad: tuple[int, ...] = ()
    adj: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    num_group: int = 1
    no_bias: bool = True
    layout: Layout | None = None
    workspace: int = 512
    cudnn_tune: Tune | None = None
    cudnn_off: bool = False
    examples = (
        {"data": (2, 2, 3, 2), "kernel": (3, 2), "num_filter": 3},
        {"data": (2, 4, 2, 3), "kernel": (3, 3), "num_filter": 4, "stride": (2, 2), "pad": (1, 1), "adj": (1, 0),
         "num_group": 2, "no_bias": False},
        {"data": (2, 2, 4), "kernel": (2,), "num_filter": 2, "stride": (2,), "dilate": (3,)},
        {"data": (1, 2, 2, 2, 2), "kernel": (2, 2, 3), "num_filter": 2, "stride": (2, 1, 1), "pad": (0, 1, 0)},
        {"data": (2, 3, 3, 2), "kernel": (4, 3), "num_filter": 2, "stride": (2, 1), "target_shape": (7, 4)},
        {"data": (2, 3, 2, 4), "kernel": (3, 2), "num_filter": 4, "layout": "NHWC", "num_group": 2, "pad": (1, 0)},
        {"data": (2, 3, 4, 2), "kernel": (1, 1), "num_filter": 3},
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.kernel)
        per_axis("Deconvolution", "adj", self.adj, count, 0)
        strides = self.stride or (1,) * count
        if not any(self.target_shape) and any(adj >= stride for adj, stride in zip(self.adj, strides, strict=False)):
            raise AttributeValueError(
                "Deconvolution: attribute 'adj' must be smaller than 'stride' on every axis, "
                f"but they are {self.adj} and {strides}"
            )
        if any(self.target_shape):  # zeros say that there is none
            per_axis("Deconvolution", "target_shape", self.target_shape, count, 1)

    def _axes(self) -> list[tuple[int, int, int, int]]:
        """Kernel, what it reaches over when dilated, stride and dilation of each axis."""
        count = len(self.kernel)
        given = (self.kernel, self.stride or (1,) * count, self.dilate or (1,) * count)
        return [(k, d * (k - 1) + 1, s, d) for k, s, d in zip(*given, strict=True)]

    def _lengths(self, sizes: Sequence[Any]) -> list[Length]:
        """What each spatial axis of data becomes."""
        count, found = len(self.kernel), []
        pads, adjs = self.pad or (0,) * count, self.adj or (0,) * count
        for place, (size, (_, reach, stride, _)) in enumerate(zip(sizes, self._axes(), strict=True)):
            whole = stride * (size - 1) + reach
            if any(self.target_shape):
                surplus = whole - self.target_shape[place]
                found.append(Length(self.target_shape[place], (surplus + 1) // 2, surplus % 2))
            else:
                found.append(Length(whole - 2 * pads[place] + adjs[place], pads[place], adjs[place]))
        return found

    def infer(self, s: Any) -> None:
        last, unknown = self._last, (UNKNOWN,) * len(self.kernel)
        s.bias = (self.num_filter,)
        s.weight = join(UNKNOWN, self.num_filter // self.num_group, self.kernel, last)
        s.out = join(UNKNOWN, self.num_filter, [length.out for length in self._lengths(unknown)], last)
        s.data = join(s.out[0], s.weight[0], unknown, last)
        check_filled(s, "data")
        batch, channels, sizes = split(s.data, last)
        s.weight = join(channels, UNKNOWN, self.kernel, last)
        if is_known(channels) and channels % self.num_group:
            s.fail("data", f"must have channels that num_group={self.num_group} divides, but it has {channels}")
        lengths = self._lengths(sizes)
        for axis, (size, length) in enumerate(zip(sizes, lengths, strict=True)):
            whole = length.out + 2 * length.pad - length.adj
            if any(self.target_shape) and is_known(whole) and whole < length.out:
                s.fail(
                    "data",
                    f"must be longer on spatial axis {axis}: a dim of {size} gives at most {whole}, but target_shape "
                    f"asks for {length.out}",
                )
            if is_known(length.out) and length.out < 1:
                s.fail("data", f"must be longer on spatial axis {axis}: after pad, a dim of {size} leaves {length.out}")
        s.out = join(batch, self.num_filter, [length.out for length in lengths], last)
        if not any(self.target_shape):
            outs, pads = split(s.out, last)[2], self._lengths(unknown)
            sizes = [
                (out + 2 * length.pad - length.adj - reach) // stride + 1
                for out, length, (_, reach, stride, _) in zip(outs, pads, self._axes(), strict=True)
            ]
            s.data = join(batch, channels, sizes, last)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return scratch(_columns(self, tuple(s.data), tuple(s.out), s.dtype("data")), s.dtype("data"))

    def forward(
        self, xp: Any, data: Array, weight: Array, bias: Array, out: Array,
        columns: Temp, padded: Temp, product: Temp, matrix: Temp, turned: Temp,
    ) -> None:  # fmt: skip
        g = _columns(self, data.shape, out.shape, data.dtype)
        spread(xp, g, data, weight, out, Room(columns, padded, product, matrix, turned=turned))
        if bias is not None:
            xp.add(out, bias.reshape(-1, *(1,) * (0 if self._last else len(self.kernel))), out=out)

    def backward(
        self, xp: Any, dout: Array, data: Array, weight: Array, ddata: Array, dweight: Array, dbias: Array,
        columns: Temp, padded: Temp, product: Temp, part: Temp, total: Temp, matrix: Temp,
    ) -> None:  # fmt: skip
        room = Room(columns, padded, product, matrix, part, total)
        if dbias is not None:
            sum_bias(xp, dout, dbias, self._last)
        if dweight is not None:
            correlate(xp, _columns(self, data.shape, dout.shape, dout.dtype), data, dout, dweight, room)
        if ddata is not None:
            convolve(xp, _columns(self, ddata.shape, dout.shape, dout.dtype), dout, weight, None, ddata, room)


@functools.lru_cache(maxsize=1024)
def _columns(op: Deconvolution, shape: tuple[int, ...], out: tuple[int, ...], kind: Any) -> Columns:
    """The convolution from ``out`` to data of ``shape``."""
    _, channels, sizes = split(shape, op._last)
    pads = [length.pad for length in op._lengths(sizes)]
    axes = [Axis(*given, pad) for given, pad in zip(op._axes(), pads, strict=True)]
    return Columns.of(out, axes, channels, op.num_group, op._last, wide(kind) != kind, sizes)
