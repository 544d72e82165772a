"""Running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dims import product
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis
from .precision import wide
from .reduce import Scratch, put

_WIDE = 512  # sums at once that pay for a call of NumPy each step


def running_sums(xp: Any, source: Any, axis: int | None, out: Any) -> None:
    """``out`` = sums of ``source``, of the same type, up to each place along ``axis``; both may be one array."""
    steps = out.shape[axis] if axis is not None else 0
    if xp is not np or out.size < _WIDE * max(steps, 1) or not steps:
        xp.cumsum(source, axis=axis, dtype=out.dtype, out=out)
        return
    lines, sums = xp.moveaxis(source, axis, 0), xp.moveaxis(out, axis, 0)
    xp.copyto(sums[0], lines[0])
    for i in range(1, steps):  # NumPy's goes over one line after the other, a value at a time
        xp.add(sums[i - 1], lines[i], out=sums[i])


@register_op(name="_np_cumsum", aliases=("cumsum",))
class CumSum(Op):
    """``out`` = sums of ``data`` up to each place along ``axis`` (default: of data made flat), in type ``dtype``.

    16-bit sums run in float32; whole numbers wrap around where their type ends.
    """

    axis: int | None = None
    dtype: np.dtype[Any] | None = None
    linear = ("a",)
    examples = ({"a": (2, 3)}, {"a": (2, 3, 2), "axis": -2}, {"a": Sample((2, 3), 1, 9), "dtype": "int32"})

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis is not None and self.axis > 0 else None

    def infer(self, s: Any) -> None:
        if self.axis is None:
            s.out = (product(s.a),)
            return
        s.out = s.a
        s.a = s.out
        check_axis(s, "a", self.axis)

    def types(self, t: Any) -> None:
        if self.dtype is None:
            t.same()
        t.out = self.dtype

    def temps(self, s: Any) -> Scratch:
        kind, back = wide(s.dtype("out")), wide(s.dtype("a"))
        return {
            "total": (s.out if kind != s.dtype("out") else (0,), kind),
            "back": (s.a if back != s.dtype("a") else (0,), back),
        }

    def forward(self, xp: Any, a: Any, out: Any, total: Temp) -> None:
        place = total if total.dtype != out.dtype else out
        source = a
        if a.dtype != place.dtype:  # NumPy would make a copy of the other type
            source = place.reshape(a.shape)
            xp.copyto(source, a, casting="unsafe")
        running_sums(xp, source, self.axis, place)
        put(xp, place, out)

    def backward(self, xp: Any, dout: Any, da: Any, back: Temp) -> None:
        axis = -1 if self.axis is None else self.axis
        place = back if back.size else da
        place, arriving = xp.flip(place.reshape(dout.shape), axis), xp.flip(dout, axis)
        if dout.dtype != place.dtype:
            xp.copyto(place, arriving, casting="unsafe")
            arriving = place
        running_sums(xp, arriving, axis, place)
        if back.size:
            xp.copyto(da, back, casting="unsafe")
