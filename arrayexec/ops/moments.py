"""Mean and variance together."""

from __future__ import annotations

import math
from typing import Any

from ..registry import Op, Temp, register_op
from .checks import check_floating
from .precision import wide
from .reduce import Scratch, axes_of, fold_into, infer_reduced, kept, put, rows_of


@register_op
class moments(Op):
    """``mean``, and ``var`` = sum of (data - mean)² / number of elements, over ``axes`` (default: all); NaN of none."""

    axes: tuple[int, ...] | None = None
    keepdims: bool = False
    outputs = ("mean", "var")
    listed = ("output0", "output1")
    examples = (
        {"data": (2, 3, 4)}, {"data": (2, 3, 4), "axes": (1,)}, {"data": (2, 3), "axes": (-1,), "keepdims": True}
    )  # fmt: skip

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return rows_of(self.axes)

    def infer(self, s: Any) -> None:
        s.mean = s.var
        s.var = s.mean
        infer_reduced(s, self.axes, self.keepdims, name="mean")
        s.var = s.mean

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> Scratch:
        kind = wide(s.dtype("data"))
        return {"apart": (s.data, kind), "middle": (s.mean, kind), "spread": (s.mean, kind)}

    def apart(self, xp: Any, data: Any, middle: Any, apart: Any) -> tuple[tuple[int, ...], tuple[int, ...], float]:
        """``apart`` = data - mean; the axes, the result's shape with ones in their places, how many are averaged."""
        axes = axes_of(self.axes, data.ndim)
        shape = kept(data.shape, axes)
        count = float(math.prod(data.shape[i] for i in axes))
        fold_into(xp.sum, data, axes, middle, middle)
        xp.divide(middle, count, out=middle)
        xp.subtract(data, middle.reshape(shape), out=apart)
        return axes, shape, count

    def forward(self, xp: Any, data: Any, mean: Any, var: Any, apart: Temp, middle: Temp, spread: Temp) -> None:
        axes, _, count = self.apart(xp, data, middle, apart)
        xp.square(apart, out=apart)
        fold_into(xp.sum, apart, axes, spread, spread)
        xp.divide(spread, count, out=spread)
        put(xp, middle, mean)
        put(xp, spread, var)

    def backward(self, xp: Any, dmean: Any, dvar: Any, data: Any, ddata: Any, apart: Temp, middle: Temp) -> None:
        _, shape, count = self.apart(xp, data, middle, apart)
        xp.multiply(apart, dvar.reshape(shape), out=apart)
        xp.multiply(apart, 2.0, out=apart)
        xp.add(apart, dmean.reshape(shape), out=apart)
        xp.divide(apart, count, out=ddata, casting="unsafe")
