"""Operators that look values up: pick, take, one_hot; and the places of labelled values that losses share.

Indices may be of any numeric type; they are truncated toward zero (NaN and infinity count as the least number) and have
no gradient.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from ..context import asnumpy
from ..dims import ANY, UNKNOWN, drop, insert, replace
from ..errors import AttributeValueError, IndexRangeError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis, check_least

BLOCK = 1 << 14  # places that are counted at once


def whole(xp: Any, data: Any, index: Any, count: int, wrap: bool = False) -> None:
    """``index`` (int64, C-contiguous) = ``data`` truncated, then clipped (or wrapped) into [0, count)."""
    xp.copyto(index.reshape(data.shape), data, casting="unsafe")
    _into(xp, index, count, wrap)


def _into(xp: Any, index: Any, count: int, wrap: bool) -> None:
    if wrap:
        xp.remainder(index, count, out=index)
    else:  # a third of the time of clip
        xp.minimum(index, count - 1, out=index)
        xp.maximum(index, 0, out=index)


def refuse_outside(xp: Any, index: Any, low: int, high: int, what: str) -> None:
    """IndexRangeError if one of ``index`` is not in [low, high): the host waits for the answer."""
    for found in (asnumpy(xp.min(index)), asnumpy(xp.max(index))) if index.size else ():
        if not low <= int(found) < high:
            raise IndexRangeError(f"{what} must be from {low} to {high - 1}, but there is {int(found)}")


def gather(xp: Any, array: Any, index: Any, axis: int, out: Any) -> None:
    """``out`` = rows ``index`` of ``array`` along ``axis``; the index is in range."""
    if xp is np:
        array.take(index, axis, out, "clip")  # the default buffers the whole of out
    else:
        xp.take(array, index, axis, out=out)  # CuPy knows no mode


def class_temps(rows: int, inner: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Scratch of :func:`class_places` for labels (rows, inner)."""
    return {name: ((rows, inner), kind) for name, kind in (("place", "int64"), ("index", "int64"), ("outside", "bool"))}


def class_places(
    xp: Any, label: Any, place: Any, index: Any, classes: int, outside: Any = None, wrap: bool = False
) -> None:
    """``place`` (b, s) = flat position of class ``label`` in a C-contiguous array (b, classes, s).

    A label that is no class counts as the nearest one (or is wrapped) and is marked in ``outside``, NaN included.
    """
    inner = place.shape[1]
    xp.copyto(index.reshape(label.shape), label, casting="unsafe")
    if outside is not None:
        xp.greater_equal(index.view("uint64"), classes, out=outside)  # negative ones are huge without a sign
    _into(xp, index, classes, wrap)
    if inner > 1:
        xp.multiply(index, inner, out=index)
        _add_counted(xp, index.T, 1, index.T)
    _add_counted(xp, index, classes * inner, place)


def _add_counted(xp: Any, source: Any, step: int, out: Any) -> None:
    """``out[i] = source[i] + i · step``, some at a time."""
    for first in range(0, len(source), BLOCK):
        part = slice(first, min(first + BLOCK, len(source)))
        xp.add(source[part], xp.arange(part.start * step, part.stop * step, step)[:, None], out=out[part])


def scatter_temps(
    target: tuple[int, ...], source: tuple[int, ...], kind: Any, axis: int = 0
) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Scratch of :func:`scatter_add`; 16-bit sums are made in 32 bits."""
    wide = target if np.dtype(kind).itemsize < 4 and np.dtype(kind).kind not in "iub" else (0,)
    return {"flat": (source if axis == 0 else (0,), "int64"), "wide": (wide, "float32")}


def scatter_add(xp: Any, target: Any, index: Any, source: Any, flat: Any, wide: Any, axis: int = 0) -> None:
    """``target`` = the slices of ``source`` along ``axis``, those of equal ``index`` summed in order.

    ``source`` has the axes of ``index`` in the place of ``axis``.
    """
    total = wide if wide.size else target
    total.fill(0)
    if axis:
        xp.add.at(total, (slice(None),) * axis + (index,), source)
    else:  # one index a value: the case in which NumPy's add.at is fast
        inner = math.prod(target.shape[1:])
        places = flat.reshape(index.size, inner)
        xp.multiply(index.reshape(-1, 1), inner, out=places)
        xp.add(places, xp.arange(inner), out=places)
        xp.add.at(total.reshape(-1), places.reshape(-1), source.reshape(-1))
    if total is not target:
        xp.copyto(target, total, casting="same_kind")


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """How many values there are before and behind ``axis``."""
    axis %= len(shape)
    return math.prod(shape[:axis]), math.prod(shape[axis + 1 :])


@register_op(aliases=("choose_element_0index",))
class pick(Op):
    """``out`` = ``data`` at ``index`` along ``axis``: index has data's shape without that axis, or with a 1 there.

    ``keepdims`` leaves a 1 there in ``out``. An index outside is clipped, or wrapped with
    ``mode="wrap"``; a NaN counts as the least number.
    """

    axis: int = -1
    keepdims: bool = False
    mode: Literal["clip", "wrap"] = "clip"
    linear = ("data",)
    no_gradient = ("index",)
    examples = (
        {"data": (3, 4), "index": Sample((3,), -2, 5, True)},
        {"data": (3, 2, 4), "index": Sample((3, 4), -2, 5, True), "axis": 1, "keepdims": True, "mode": "wrap"},
    )

    def infer(self, s: Any) -> None:
        check_axis(s, "data", self.axis)
        if s.data is not ANY and s.data[self.axis] is not UNKNOWN and s.data[self.axis] == 0:
            s.fail("data", f"must have something to pick in axis {self.axis}, but it is {format_shape(s.data)}")
        if self.keepdims:
            check_axis(s, "out", self.axis)
            s.out = replace(s.data, self.axis, 1)
            s.data = replace(s.out, self.axis, UNKNOWN)
        else:
            s.out = drop(s.data, self.axis)
            s.data = insert(s.out, self.axis, UNKNOWN)
            check_axis(s, "data", self.axis)
        if s.data is not ANY and len(s.data) == 1 and not self.keepdims:
            s.fail("data", f"must have at least 2 dims without keepdims=True, but it is {format_shape(s.data)}")
        if s.index is ANY:  # nobody says more, so without that axis, as in MXNet
            s.assume("index", drop(s.data, self.axis))
            return
        same_rank = len(s.index) == len(s.data)
        s.index = replace(s.data, self.axis, 1) if same_rank else drop(s.data, self.axis)
        s.data = (replace if same_rank else insert)(s.index, self.axis, UNKNOWN)

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis > 0 else None

    def temps(self, s: Any) -> dict[str, Any]:
        temps = class_temps(*_around(s.data, self.axis))
        return {"place": temps["place"], "scratch": temps["index"]}

    def forward(self, xp: Any, data: Any, index: Any, out: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, index, place, scratch, data.shape[self.axis], wrap=self.mode == "wrap")
        gather(xp, data.reshape(-1), place, 0, out.reshape(place.shape))

    def backward(self, xp: Any, dout: Any, index: Any, ddata: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, index, place, scratch, ddata.shape[self.axis], wrap=self.mode == "wrap")
        ddata.fill(0)
        ddata.reshape(-1)[place.reshape(dout.shape)] = dout


@register_op
class take(Op):
    """``out`` = slices ``indices`` of ``a`` along ``axis``: the axes of indices stand where ``axis`` was.

    An index outside is clipped, with ``mode="wrap"`` wrapped, with ``mode="raise"`` it raises IndexRangeError (on a GPU
    the host waits for that). Indices are truncated, a NaN counts as the least number. Slices taken twice have their
    gradients summed.
    """

    axis: int = 0
    mode: Literal["clip", "wrap", "raise"] = "clip"
    linear = ("a",)
    no_gradient = ("indices",)
    examples = (
        {"a": (4, 2), "indices": Sample((3, 2), -2, 6, True)},
        {"a": (2, 4, 3), "indices": Sample((5,), -2, 6, True), "axis": -2, "mode": "wrap"},
    )

    def infer(self, s: Any) -> None:
        if s.a is ANY and s.indices is not ANY:
            s.a = (UNKNOWN,) * (len(s.out) + 1 - len(s.indices))
        check_axis(s, "a", self.axis)
        if s.indices is ANY:
            s.indices = (UNKNOWN,) * (len(s.out) + 1 - len(s.a))
        axis, count = self.axis % len(s.a), len(s.indices)
        if s.a[axis] is not UNKNOWN and s.a[axis] == 0:
            s.fail("a", f"must hold something along axis {self.axis}, but it is {format_shape(s.a)}")
        s.out = (*s.a[:axis], *s.indices, *s.a[axis + 1 :])
        s.a = (*s.out[:axis], UNKNOWN, *s.out[axis + count :])
        s.indices = s.out[axis : axis + count]

    def temps(self, s: Any) -> dict[str, Any]:
        return {"index": (s.indices, "int64"), **scatter_temps(s.a, s.out, s.dtype("a"), self.axis % len(s.a))}

    def forward(self, xp: Any, a: Any, indices: Any, out: Any, index: Temp) -> None:
        if self.mode == "raise":
            xp.copyto(index, indices, casting="unsafe")
            refuse_outside(xp, index, 0, a.shape[self.axis], "take: indices")
        whole(xp, indices, index, a.shape[self.axis], self.mode == "wrap")
        gather(xp, a, index, self.axis, out)

    def backward(self, xp: Any, dout: Any, indices: Any, da: Any, index: Temp, flat: Temp, wide: Temp) -> None:
        whole(xp, indices, index, da.shape[self.axis], self.mode == "wrap")
        scatter_add(xp, da, index, dout, flat, wide, self.axis % da.ndim)


@register_op
class one_hot(Op):
    """``out`` (…, depth) = ``on_value`` at ``indices`` (…), ``off_value`` elsewhere; NaN or one outside is all off."""

    depth: int
    on_value: float = 1.0
    off_value: float = 0.0
    dtype: np.dtype[Any] = np.dtype("float32")
    no_gradient = ("indices",)
    rows = "parallel"
    examples = (
        {"indices": Sample((2, 3), -1, 4, True), "depth": 3},
        {"indices": Sample((4,), 0, 3, True), "depth": 3, "on_value": 5.0, "off_value": -1.0, "dtype": "int32"},
    )

    def __post_init__(self) -> None:
        check_least(self, "depth")
        for name, value in (("on_value", self.on_value), ("off_value", self.off_value)):
            if self.dtype.kind in "iu" and not np.iinfo(self.dtype).min <= value <= np.iinfo(self.dtype).max:
                raise AttributeValueError(
                    f"one_hot: attribute '{name}' must be a number that {self.dtype.name} holds, but it is {value}"
                )

    def infer(self, s: Any) -> None:
        s.indices = s.out[:-1]
        s.out = (*s.indices, self.depth)

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def temps(self, s: Any) -> dict[str, Any]:
        rows = math.prod(s.indices)
        return {**class_temps(rows, 1), "values": ((rows, 1), self.dtype)}

    def forward(self, xp: Any, indices: Any, out: Any, place: Temp, index: Temp, outside: Temp, values: Temp) -> None:
        class_places(xp, indices, place, index, self.depth, outside)
        out.fill(self.off_value)
        values.fill(self.on_value)
        xp.copyto(values, self.off_value, where=outside, casting="unsafe")
        out.reshape(-1)[place] = values
