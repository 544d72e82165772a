"""Softmax and its kin, and the array functions that activations and losses share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ..dims import UNKNOWN, drop
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis, check_floating
from .precision import narrow, wide, widen


def _lowest(dtype: Any) -> float:
    """Least finite value of a floating type; NumPy does not know that of bfloat16."""
    return -3.3895313892515355e38 if dtype.kind == "V" else float(np.finfo(dtype).min)


def sigmoid(xp: Any, data: Any, out: Any) -> None:
    """``out`` = 1 / (1 + exp(-data)); far below zero exp overflows to inf and the quotient is the right 0."""
    xp.negative(data, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.reciprocal(out, out=out)


def keep_where(xp: Any, values: Any, mask: Any, out: Any) -> None:
    """``out`` = values where ``mask``, else 0, whatever the values (0 · inf is no 0): bits times 1 or 0.

    A masked copy says the same and takes 17 times as long. ``out`` may be ``values``.
    """
    bits = f"int{8 * out.dtype.itemsize}"
    xp.multiply(values.view(bits), mask, out=out.view(bits))


def class_view(shape: tuple[int, ...], channel: bool) -> tuple[int, int, int]:
    """``shape`` as (rows, classes, places): the classes on axis 1, or all axes but the first."""
    return (shape[0], shape[1], math.prod(shape[2:])) if channel else (shape[0], math.prod(shape[1:]), 1)


def check_not_empty(s: Any, axis: int) -> None:
    """Refuse data that are known to hold nothing along ``axis``: there is no greatest of no values."""
    dim = s.data[axis]
    if dim is not UNKNOWN and dim == 0:
        s.fail("data", f"must hold something along axis {axis}, but it is {format_shape(s.data)}")


def row_temp(shape: tuple[int, ...], axis: int, kind: Any) -> tuple[tuple[int, ...], Any]:
    """Scratch of :func:`softmax_into`: one value a row, in 32 bits for 16-bit data."""
    dims = list(shape)
    dims[axis] = 1
    return tuple(dims), wide(kind)


def softmax_into(xp: Any, data: Any, out: Any, axis: int, row: Any, sign: int = 1) -> None:
    """``out`` = exp(±data) / Σ exp(±data) along ``axis``, shifted by the greatest; ``out`` may be ``data``."""
    if sign > 0:
        xp.max(data, axis=axis, keepdims=True, out=row)
        xp.subtract(data, row, out=out, casting="same_kind")
    else:
        xp.min(data, axis=axis, keepdims=True, out=row)
        xp.subtract(row, data, out=out, casting="same_kind")
    xp.exp(out, out=out)
    xp.sum(out, axis=axis, keepdims=True, out=row)
    xp.divide(out, row, out=out)


def _work(shape: tuple[int, ...], *kinds: Any) -> tuple[tuple[int, ...], Any]:
    """Scratch of what is reckoned in 32 bits because one of ``kinds`` has 16; else of nothing."""
    return shape if any(wide(kind) != kind for kind in kinds) else (0,), wide(kinds[-1])


def _gradient_temps(shape: tuple[int, ...], axis: int, *kinds: Any) -> dict[str, Any]:
    row, work = row_temp(shape, axis, kinds[-1]), _work(shape, *kinds)
    return {"row": row, "share": row if work[0] == shape else ((0,), row[1]), "work": work}


def _gradient(
    xp: Any, dout: Any, out: Any, ddata: Any, axis: int, scale: float, row: Any, share: Any, work: Any
) -> None:  # fmt: skip
    """``ddata`` = scale · out · (dout - Σ dout · out) along ``axis``.

    The values of a row have the sum 1, but for what rounding to 16 bits made of it: a part of ``dout`` that all have in
    common would leave something of that size, so there the weighted sum is divided by the sum.
    """
    target, kind = (work, work.dtype) if work.size else (ddata, None)
    xp.multiply(dout, out, out=target, dtype=kind, casting="same_kind")
    xp.sum(target, axis=axis, keepdims=True, out=row)
    if work.size:
        xp.sum(out, axis=axis, keepdims=True, dtype=share.dtype, out=share)
        xp.maximum(share, float(np.finfo(share.dtype).tiny), out=share)  # an empty row: 0 / tiny
        xp.divide(row, share, out=row)
    xp.subtract(dout, row, out=target, dtype=kind, casting="same_kind")
    xp.multiply(target, out, out=target, casting="same_kind")
    if scale != 1:
        xp.multiply(target, scale, out=target)
    if target is not ddata:
        narrow(xp, target, ddata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Softmax(Op):
    """Base of softmax, softmin and log_softmax: attributes and shapes."""

    axis: int = -1
    temperature: float | None = None
    dtype: np.dtype[Any] | None = None
    use_length: bool = False
    no_gradient = ("length",)
    hints: ClassVar[tuple[str, ...]] = ("dtype",)
    sign: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.temperature == 0:
            raise AttributeValueError(f"{self.form.name}: attribute 'temperature' must not be 0, but it is")

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    def inputs(self) -> tuple[str, ...]:
        return ("data", "length") if self.use_length else ("data",)

    @property
    def scale(self) -> float:
        """What the data is multiplied with first."""
        return self.sign / (1 if self.temperature is None else self.temperature)

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_axis(s, "data", self.axis)
        if self.use_length:
            s.length = drop(s.data, self.axis)
        check_not_empty(s, self.axis)

    def types(self, t: Any) -> None:
        if self.dtype is None:
            t.same()
        else:
            t.out = self.dtype
        check_floating(t, "data" if self.dtype is None else "out")

    def temps(self, s: Any) -> dict[str, Any]:
        temps = _gradient_temps(s.data, self.axis, s.dtype("data"), s.dtype("out"))
        return {**temps, "padded": (s.data if self.use_length else (0,), "bool")}

    def _scaled(self, xp: Any, data: Any, out: Any) -> None:
        if self.scale == 1 or data.dtype != out.dtype:
            widen(xp, data, out)
            data = out
        if self.scale != 1:
            xp.multiply(data, self.scale, out=out)


@register_op
class softmax(_Softmax):
    """``out`` = exp(x) / Σ exp(x) along ``axis``, x = data / temperature; ``dtype`` is the type of ``out``.

    With ``use_length`` only the first ``length`` values of a row count, the others are 0; length has data's shape
    without the axis. A row of -inf gives NaN, an empty one zeros; a NaN or +inf makes its row NaN.
    """

    examples = (
        {"data": (3, 4)},
        {"data": (2, 3, 2), "axis": 1, "temperature": 2.0},
        {"data": (2, 3, 2), "axis": 1, "use_length": True, "length": Sample((2, 2), 0, 4, True)},
    )

    def forward(self, xp: Any, data: Any, length: Any, out: Any, row: Temp, work: Temp, padded: Temp) -> None:
        target = work if work.size else out
        self._softmax(xp, data, length, target, row, padded)
        if target is not out:
            narrow(xp, target, out)

    def _softmax(self, xp: Any, data: Any, length: Any, out: Any, row: Any, padded: Any) -> None:
        axis = self.axis % data.ndim
        if length is None and abs(self.scale) == 1 and data.dtype == out.dtype:
            softmax_into(xp, data, out, axis, row, int(self.scale))
            return
        self._scaled(xp, data, out)
        if length is None:
            softmax_into(xp, out, out, axis, row)
            return
        places = xp.arange(data.shape[axis]).reshape(-1, *(1,) * (data.ndim - 1 - axis))
        xp.greater_equal(places, length.reshape(row.shape), out=padded)
        xp.copyto(out, _lowest(out.dtype), where=padded)
        xp.max(out, axis=axis, keepdims=True, out=row)
        xp.subtract(out, row, out=out)
        xp.exp(out, out=out)
        xp.logical_not(padded, out=padded)
        keep_where(xp, out, padded, out)
        xp.sum(out, axis=axis, keepdims=True, out=row)
        xp.maximum(row, float(np.finfo(row.dtype).tiny), out=row)  # an empty row: 0 / tiny
        xp.divide(out, row, out=out)

    def backward(self, xp: Any, dout: Any, out: Any, ddata: Any, row: Temp, share: Temp, work: Temp) -> None:
        _gradient(xp, dout, out, ddata, self.axis, self.scale, row, share, work)

    def gradient(self, sym: Any, dout: Any, out: Any) -> Mapping[str, Any] | None:
        rest = sym.broadcast_sub(dout, sym.sum(dout * out, axis=self.axis, keepdims=True))
        return {"data": rest * out * self.scale} if self.dtype is None else None


@register_op
class softmin(softmax):
    """``out`` = exp(-x) / Σ exp(-x) along ``axis``, x = data / temperature; otherwise as softmax."""

    sign = -1


@register_op
class log_softmax(_Softmax):
    """``out`` = x - log Σ exp(x) along ``axis``, x = data / temperature; ``dtype`` is the type of ``out``.

    A NaN or +inf makes its row NaN, and so does a row of -inf.
    """

    hints = ("dtype", "use_length")
    examples = ({"data": (3, 4)}, {"data": (2, 3, 2), "axis": 1, "temperature": 2.0})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_length:
            raise AttributeValueError(
                "log_softmax: attribute 'use_length' must be False, but it is True; softmax takes a length"
            )

    def forward(self, xp: Any, data: Any, out: Any, row: Temp, top: Temp, work: Temp) -> None:
        target = work if work.size else out
        plain = data if self.scale == 1 and data.dtype == target.dtype else target
        if plain is target:
            self._scaled(xp, data, target)
        xp.max(plain, axis=self.axis, keepdims=True, out=top)
        xp.subtract(plain, top, out=target, casting="same_kind")
        xp.exp(target, out=target)
        xp.sum(target, axis=self.axis, keepdims=True, out=row)
        xp.log(row, out=row)
        if plain is target:
            self._scaled(xp, data, target)  # once more: a pass is cheaper than memory for both
        xp.subtract(plain, top, out=target, casting="same_kind")
        xp.subtract(target, row, out=target)
        if target is not out:
            narrow(xp, target, out)

    def temps(self, s: Any) -> dict[str, Any]:
        row, kinds = row_temp(s.data, self.axis, s.dtype("out")), (s.dtype("data"), s.dtype("out"))
        return {"row": row, "top": row, "work": _work(s.data, *kinds)}

    def backward(self, xp: Any, dout: Any, out: Any, ddata: Any, row: Temp, top: Temp, work: Temp) -> None:
        target = work if work.size else ddata
        xp.sum(dout, axis=self.axis, keepdims=True, out=row)
        if work.size:  # as in softmax: values rounded to 16 bits have no sum of 1
            widen(xp, out, target)
            xp.exp(target, out=target)
            xp.sum(target, axis=self.axis, keepdims=True, out=top)
            xp.divide(row, top, out=row)
        else:
            xp.exp(out, out=target, casting="same_kind")
        xp.multiply(target, row, out=target)
        xp.subtract(dout, target, out=target, casting="same_kind")
        if self.scale != 1:
            xp.multiply(target, self.scale, out=target)
        if target is not ddata:
            narrow(xp, target, ddata)

    def gradient(self, sym: Any, dout: Any, out: Any) -> Mapping[str, Any] | None:
        share = sym.broadcast_mul(sym.exp(out), sym.sum(dout, axis=self.axis, keepdims=True))
        return {"data": (dout - share) * self.scale} if self.dtype is None else None


@register_op
class SoftmaxActivation(Op):
    """``out`` = softmax over the last axis (mode instance) or over axis 1 (mode channel): data (n, …, c), out as data.

    A NaN or +inf makes its row NaN. In mode instance MXNet's gradient of more than 2 dims is none of what it computes;
    here it is the derivative.
    """

    mode: Literal["instance", "channel"] = "instance"
    rows = "parallel"
    examples = ({"data": (2, 3, 2)}, {"data": (2, 3, 2), "mode": "channel"})

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_axis(s, "data", 1)
        check_not_empty(s, self._axis)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        return _gradient_temps(s.data, self._axis, s.dtype("data"))

    @property
    def _axis(self) -> int:
        return 1 if self.mode == "channel" else -1

    def forward(self, xp: Any, data: Any, out: Any, row: Temp, work: Temp) -> None:
        target = work if work.size else out
        softmax_into(xp, data, target, self._axis, row)
        if target is not out:
            narrow(xp, target, out)

    def backward(self, xp: Any, dout: Any, out: Any, ddata: Any, row: Temp, share: Temp, work: Temp) -> None:
        _gradient(xp, dout, out, ddata, self._axis, 1, row, share, work)

    def gradient(self, sym: Any, dout: Any, out: Any) -> Mapping[str, Any]:
        return {"data": sym.broadcast_sub(dout, sym.sum(dout * out, keepdims=True, axis=self._axis)) * out}
