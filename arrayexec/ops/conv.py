"""Convolution by matrix product over the columns of one tile after the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .columns import TILE, Axis, Columns
from .convolve import Room, convolve, correlate, scratch, spread, sum_bias
from .precision import wide
from .transposed import gradients
from .windows import Layout, Tune, check_filled, check_kernel, check_layout, is_known, join, per_axis, split

Array = Any


class Filtered(Op):
    """What a convolution and its adjoint say alike."""

    rows = "sum"
    linear = ("data", "weight")
    tile = TILE
    hints = ("workspace", "cudnn_tune", "cudnn_off")

    def __post_init__(self: Any) -> None:
        name, count = self.form.name, check_kernel(self.form.name, self.kernel)
        for key, default in (("stride", 1), ("dilate", 1), ("pad", 0)):
            per_axis(name, key, getattr(self, key), count, default)
        check_layout(name, self.layout, count)
        if self.num_group < 1 or self.num_filter < 1 or self.num_filter % self.num_group:
            raise AttributeValueError(
                f"{name}: attribute 'num_filter' must be a multiple of 'num_group', both at least 1, "
                f"but they are {self.num_filter} and {self.num_group}"
            )

    def inputs(self: Any) -> tuple[str, ...]:
        return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

    @property
    def _last(self: Any) -> bool:
        return self.layout is not None and self.layout[-1] == "C"

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return [name for name, user in (("weight", "data"), ("data", "weight")) if user in want]

    def gradient(self: Any, sym: Any, dout: Any, data: Any, weight: Any, bias: Any) -> Mapping[str, Any]:
        found = gradients(sym, dataclasses.replace(self, no_bias=True), dout, data=data, weight=weight)
        if bias is not None:
            found["bias"] = sym.sum(dout, axis=-1 if self._last else 1, exclude=True)
        return found


@register_op(aliases=("Convolution_v1",))
class Convolution(Filtered):
    """``out[n, f, o] = bias[f] + Σ data[n, c, o·stride - pad + k·dilate] · weight[f, c, k]`` over c and k.

    data (n, c, …), weight (num_filter, c / num_group, *kernel), bias (num_filter,), out (n, num_filter, …), one to
    three spatial axes; group i of filters sees group i of channels. An output dim is
    ``(size + 2·pad - dilate·(kernel - 1) - 1) // stride + 1``. Layouts with C last take data and out as (n, …, c),
    weight as (num_filter, *kernel, c / num_group). The gradient of data is the adjoint, which MXNet's Convolution_v1
    misses where both stride and dilate are above 1.
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
    cudnn_tune: Tune | None = None
    cudnn_off: bool = False
    examples = (
        {"data": (2, 2, 5, 4), "kernel": (3, 2), "num_filter": 3},
        {"data": (2, 4, 5, 6), "kernel": (3, 3), "num_filter": 4, "stride": (2, 1), "pad": (1, 2), "num_group": 2},
        {"data": (2, 2, 7), "kernel": (2,), "num_filter": 2, "dilate": (3,), "no_bias": True},
        {"data": (2, 2, 3, 4, 3), "kernel": (2, 2, 2), "num_filter": 2, "pad": (0, 1, 0)},
        {"data": (2, 5, 4, 4), "kernel": (3, 2), "num_filter": 4, "layout": "NHWC", "num_group": 2, "pad": (1, 0)},
        {"data": (2, 3, 4, 2), "kernel": (1, 1), "num_filter": 3},
        {"data": (2, 3, 2, 3), "kernel": (1, 1), "num_filter": 2, "layout": "NHWC"},
    )

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
        check_filled(s, "data")
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
        return scratch(_columns(self, tuple(s.data), s.dtype("data")), s.dtype("data"))

    def forward(
        self, xp: Any, data: Array, weight: Array, bias: Array, out: Array,
        columns: Temp, padded: Temp, product: Temp, matrix: Temp,
    ) -> None:  # fmt: skip
        g = _columns(self, data.shape, data.dtype)
        convolve(xp, g, data, weight, bias, out, Room(columns, padded, product, matrix))

    def backward(
        self, xp: Any, dout: Array, data: Array, weight: Array, ddata: Array, dweight: Array, dbias: Array,
        columns: Temp, padded: Temp, product: Temp, part: Temp, total: Temp, matrix: Temp, turned: Temp,
    ) -> None:  # fmt: skip
        room = Room(columns, padded, product, matrix, part, total, turned)
        if dbias is not None:
            sum_bias(xp, dout, dbias, self._last)
        if dweight is not None:
            correlate(xp, _columns(self, data.shape, data.dtype), dout, data, dweight, room)
        if ddata is not None:
            spread(xp, _columns(self, ddata.shape, ddata.dtype), dout, weight, ddata, room)


@functools.lru_cache(maxsize=1024)
def _columns(op: Convolution, shape: tuple[int, ...], kind: Any) -> Columns:
    return Columns.of(shape, op._axes(), op.num_filter, op.num_group, op._last, wide(kind) != kind)
