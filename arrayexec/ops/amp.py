"""What mixed precision adds to a network: casts between floating types, a scale of gradients, whether all is finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..registry import Many, Op, Sample, Temp, register_op
from .checks import check_floating, check_least
from .precision import cast

Array = Any


def _mixed(kind: Any) -> bool:
    """Whether mixed precision casts arrays of this type: float64 stays what it is."""
    return kind.name in ("float32", "float16", "bfloat16")


@register_op
class amp_cast(Op):
    """``out = data`` in the element type ``dtype`` if data are float32, float16 or bfloat16, else as they are."""

    dtype: np.dtype[Any]
    hints = ("dtype",)  # float64, which the data of an example are, stays what it is: tests/ops has the others
    rows = "parallel"
    examples = ({"data": (2, 3), "dtype": "float64"}, {"data": (2, 3), "dtype": "float32"})

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        if t.data is not None:
            t.out = self.dtype if _mixed(t.data) else t.data

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        cast(xp, data, out)

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        cast(xp, dout, ddata)


@register_op
class amp_multicast(Op):
    """``out0, out1, …`` = all data in the widest type among them, or with ``cast_narrow`` in the narrowest.

    Each has the shape of its input; what is not float32, float16 or bfloat16 stays as it is. Of two types of one size
    the first counts.
    """

    num_outputs: int
    cast_narrow: bool = False
    hints = ("cast_narrow",)  # shows only where types differ, which those of an example do not: tests/ops has it
    examples = (
        {"data_0": (2, 3), "data_1": (4,), "num_outputs": 2},
        {"data_0": (2, 3), "num_outputs": 1, "cast_narrow": True},
    )

    def __post_init__(self) -> None:
        check_least(self, "num_outputs")

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"data_{i}" for i in range(self.num_outputs))

    def outputs(self) -> tuple[str, ...]:
        return ("out",) if self.num_outputs == 1 else tuple(f"out{i}" for i in range(self.num_outputs))

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def types(self, t: Any) -> None:
        if any(kind is None for kind in t.data):
            return
        choose = min if self.cast_narrow else max
        common = choose(filter(_mixed, t.data), key=lambda kind: kind.itemsize, default=None)
        t.out = tuple(common if _mixed(kind) else kind for kind in t.data)

    def forward(self, xp: Any, data: Many, out: Many) -> None:
        for source, target in zip(data, out, strict=True):
            cast(xp, source, target)

    def backward(self, xp: Any, dout: Many, ddata: Many) -> None:
        for source, target in zip(dout, ddata, strict=True):
            if target is not None:
                cast(xp, source, target)


@register_op
class _scale_gradient(Op):
    """``out = data``; what flows back is multiplied by the state ``scale`` (1,), float32; 0 counts as 1."""

    aux = ("scale",)
    inplace = {"out": "data", "ddata": "dout"}  # noqa: RUF012
    examples = ({"data": (2, 3), "scale": Sample((1,), 1, 1)},)  # 1: the gradient of what is computed

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        s.scale = (1,)

    def types(self, t: Any) -> None:
        t.out = t.data
        t.data = t.out
        t.scale = "float32"
        check_floating(t, "data")

    def forward(self, xp: Any, data: Array, scale: Array, out: Array) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, dout: Array, scale: Array, ddata: Array) -> None:
        xp.multiply(dout, xp.where(scale == 0, 1, scale), out=ddata, casting="same_kind")


class _Finite(Op):
    """Base: a float32 1 or 0. ``init_output`` starts the ancestor's array at 1, which in a graph always happens."""

    hints = ("init_output",)

    def infer(self, s: Any) -> None:
        s.out = (1,)

    def types(self, t: Any) -> None:
        t.out = "float32"


@register_op
class all_finite(_Finite):
    """``out`` (1,) = 1 if no value of data is NaN or infinite, else 0, as float32; 1 for no values. No gradient."""

    init_output: bool = True
    examples = ({"data": (2, 3)},)

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"mask": (s.data, "bool")}

    def forward(self, xp: Any, data: Array, out: Array, mask: Temp) -> None:
        xp.isfinite(data, out=mask)
        out[...] = xp.all(mask.reshape(1, -1), axis=1)


@register_op
class multi_all_finite(_Finite):
    """``out`` (1,) = 1 if no value of ``num_arrays`` arrays is NaN or infinite, else 0, as float32. No gradient."""

    num_arrays: int = 1
    init_output: bool = True
    examples = ({"array_0": (2, 3), "array_1": (4,), "num_arrays": 2}, {"array_0": (2,)})

    def __post_init__(self) -> None:
        check_least(self, "num_arrays")

    def inputs(self) -> tuple[str, ...]:
        return tuple(f"array_{i}" for i in range(self.num_arrays))

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        return {"mask": ((max(math.prod(shape) for shape in s.arrays),), "bool")}

    def forward(self, xp: Any, arrays: Many, out: Array, mask: Temp) -> None:
        out.fill(1)
        for array in arrays:
            part = mask[: array.size].reshape(array.shape)
            xp.isfinite(array, out=part)
            xp.multiply(out, xp.all(part.reshape(1, -1), axis=1), out=out)
