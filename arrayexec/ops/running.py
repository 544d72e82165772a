"""Running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dims import product
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis
from .reduce import Scratch, narrow, put


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
        kind = narrow(s.dtype("out"))
        return {"total": (s.out if kind != s.dtype("out") else (0,), kind), "back": (s.a, narrow(s.dtype("a")))}

    def forward(self, xp: Any, a: Any, out: Any, total: Temp) -> None:
        place = total if total.dtype != out.dtype else out
        source = a
        if a.dtype != place.dtype:  # NumPy would make a copy of the other type
            source = place.reshape(a.shape)
            xp.copyto(source, a, casting="unsafe")
        xp.cumsum(source, axis=self.axis, dtype=place.dtype, out=place)
        put(xp, place, out)

    def backward(self, xp: Any, dout: Any, da: Any, back: Temp) -> None:
        axis = -1 if self.axis is None else self.axis
        place = back.reshape(dout.shape)
        xp.copyto(place, xp.flip(dout, axis), casting="unsafe")
        xp.cumsum(place, axis=axis, dtype=place.dtype, out=place)
        xp.copyto(da, xp.flip(place, axis).reshape(da.shape), casting="unsafe")
