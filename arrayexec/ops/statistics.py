"""What values there are: counts in bins, sums of squares, whether two arrays are close."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Many, Op, Sample, Temp, register_op
from .checks import check_least
from .constant import count_up
from .precision import mean_type, wide

Array = Any
PIECE = 1 << 14  # values that are sorted at a time


@register_op(name="_histogram")
class Histogram(Op):
    """``out0`` (k,) = how many values of data lie in each bin, int64; ``out1`` (k + 1,) = the bins' edges.

    The edges are the input ``bins``, rising, or those of ``bin_cnt`` equal bins of ``range``, in data's type. A bin
    holds its lower edge, the last one its upper edge, too. NaN and what is outside do not count. There is no gradient.
    """

    bin_cnt: int | None = None
    range: tuple[float, ...] | None = None
    outputs = ("out0", "out1")
    examples = ({"data": Sample((3, 4), 0, 5), "bin_cnt": 3, "range": (0.5, 4.0)}, {"data": (2, 3), "bins": (2,)})

    def __post_init__(self) -> None:
        count, ends = self.bin_cnt, self.range
        if count is None or ends is None:
            legal = count is None and ends is None
        else:
            legal = count >= 1 and len(ends) == 2 and ends[0] < ends[1]
        if not legal:
            raise AttributeValueError(
                "_histogram: 'bin_cnt' must be at least 1 and 'range' two rising numbers, or neither be given, but "
                f"they are {count} and {ends}"
            )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "bins") if self.bin_cnt is None else ("data",)

    def infer(self, s: Any) -> None:
        if self.bin_cnt is not None:
            s.out0, s.out1 = (self.bin_cnt,), (self.bin_cnt + 1,)
            return
        s.out1 = s.bins
        s.out1 = (s.out0[0] + 1,)
        s.bins = s.out1
        if s.bins[0] is not UNKNOWN and s.bins[0] < 2:
            s.fail("bins", f"must have at least 2 edges, but it is {format_shape(s.bins)}")
        s.out0 = (s.bins[0] - 1,)

    def types(self, t: Any) -> None:
        t.out1 = t.data
        t.bins = t.out1
        t.data = t.bins
        t.out0 = "int64"

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"flat": (s.data, s.dtype("data"))}

    def forward(self, xp: Any, data: Array, bins: Array, out0: Array, out1: Array, flat: Temp) -> None:
        if bins is not None:
            xp.copyto(out1, bins)
        elif self.bin_cnt is not None and self.range is not None:
            low, high = self.range
            count_up(xp, out1, low, (high - low) / self.bin_cnt)
            out1[-1:].fill(high)
        xp.copyto(flat, data)
        out0.fill(0)
        values = flat.reshape(-1)
        step = PIECE if xp is np else max(values.size, 1)
        for start in range(0, values.size, step):
            part = values[start : start + step]
            part.sort()  # NaN comes last
            below = xp.searchsorted(part, out1, side="left")
            upto = xp.searchsorted(part, out1[-1:], side="right")
            xp.subtract(below[1:], below[:-1], out=below[:-1])
            xp.add(out0, below[:-1], out=out0)
            xp.add(out0[-1:], upto - below[-1:], out=out0[-1:])


@register_op(name="_contrib_allclose")
class AllClose(Op):
    """``out`` (1,) = 1 if all |a - b| ≤ atol + rtol · |b|, else 0, as uint8: a and b of one shape; 1 for no values.

    Two NaN are close with ``equal_nan``, equal infinities always. There is no gradient.
    """

    rtol: float = 1e-5
    atol: float = 1e-8
    equal_nan: bool = True
    examples = (
        {"a": Sample((2, 3), 1, 1.001), "b": Sample((2, 3), 1, 1.001), "rtol": 0.01},
        {"a": Sample((2, 3), 1, 1.001), "b": Sample((2, 3), 1, 1.001), "atol": 0.01},
    )
    hints = ("equal_nan",)  # shows with NaN alone

    def infer(self, s: Any) -> None:
        s.a = s.b
        s.b = s.a
        s.out = (1,)

    def types(self, t: Any) -> None:
        t.a = t.b
        t.b = t.a
        t.out = "uint8"

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kind = mean_type(s.dtype("a"))
        return {"gap": (s.a, kind), "room": (s.a, kind), "near": (s.a, "bool"), "mask": (s.a, "bool")}

    def forward(
        self, xp: Any, a: Array, b: Array, out: Array, gap: Temp, room: Temp, near: Temp, mask: Temp
    ) -> None:
        xp.subtract(a, b, out=gap, dtype=gap.dtype)
        xp.abs(gap, out=gap)
        xp.copyto(room, b)
        xp.abs(room, out=room)
        xp.multiply(room, self.rtol, out=room)
        xp.add(room, self.atol, out=room)
        xp.less_equal(gap, room, out=near)
        xp.equal(a, b, out=mask)
        xp.logical_or(near, mask, out=near)
        if self.equal_nan and not (xp is np and near.all()):
            xp.not_equal(a, a, out=mask)
            xp.copyto(gap, mask)
            xp.not_equal(b, b, out=mask)
            xp.logical_and(mask, gap, out=mask)
            xp.logical_or(near, mask, out=near)
        out[...] = xp.all(near.reshape(1, -1), axis=1)


@register_op
class multi_sum_sq(Op):
    """``out`` (num_arrays,) = the sum of the squares of each array, float32. There is no gradient."""

    num_arrays: int
    examples = ({"array_0": (2, 3), "array_1": (4,), "num_arrays": 2},)

    def __post_init__(self) -> None:
        check_least(self, "num_arrays")

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"array_{i}" for i in range(self.num_arrays))

    def infer(self, s: Any) -> None:
        s.out = (self.num_arrays,)

    def types(self, t: Any) -> None:
        t.out = "float32"

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        kinds = [wide(kind) for kind in s.dtype("arrays")]
        return {"squares": ((max(math.prod(shape) for shape in s.arrays),), np.result_type(*kinds, np.float32))}

    def forward(self, xp: Any, arrays: Many, out: Array, squares: Temp) -> None:
        for i, array in enumerate(arrays):
            part = squares[: array.size].reshape(array.shape)
            xp.multiply(array, array, out=part, dtype=part.dtype)
            out[i : i + 1] = xp.sum(part.reshape(1, -1), axis=1)
