"""Order along an axis: topk, sort, argsort.

Equal values keep their order (the lowest index comes first, ascending or not), NaN counts as larger than every number,
and -0 equals 0. An index type that cannot hold every position along the axis is refused.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np

from ..dims import ANY, UNKNOWN, distinct, product, replace
from ..errors import AttributeValueError, format_shape
from ..registry import Many, Op, Temp, register_op
from .checks import check_axis
from .index import gather
from .reduce import Scratch

FLOAT32 = np.dtype("float32")
_HIGH = 1 if sys.byteorder == "little" else 0
_BLOCK = 8 << 10  # values whose order is asked for at once: NumPy's argsort makes new arrays


def lined(xp: Any, array: Any, axis: int | None) -> Any:
    """A view of ``array`` with ``axis`` last; flat without an axis."""
    return array.reshape(-1) if axis is None else xp.moveaxis(array, axis, -1)


def line_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, int]:
    """How many lines ``shape`` has along ``axis``, and how long they are."""
    count = math.prod(shape) if axis is None else shape[axis]
    return math.prod(shape) // max(count, 1), count


def order_temps(shape: tuple[int, ...], axis: int | None, kind: Any) -> dict[str, Any]:
    """Scratch of :func:`places_in_order`: lines of values, of 64-bit keys, and positions."""
    kind, size = np.dtype(kind), math.prod(shape)
    packs = (kind.itemsize < 4 or (kind.itemsize == 4 and kind.kind in "fiu")) and size <= 2**32
    common = {"b": "int32", "i": "int32", "u": "uint32"}.get(kind.kind, "float32") if packs else kind
    rows = line_shape(shape, axis)
    return {
        "lines": (rows, common),
        "keys": (rows, "uint64" if packs else "int64"),
        "counted": ((size,), "uint32" if packs else "int64"),
    }


def places_in_order(
    xp: Any, data: Any, axis: int | None, descending: bool, lines: Any, keys: Any, counted: Any, place: Any
) -> None:
    """``place`` = positions in flat data of the first values along ``axis``, in order: as many as it has there.

    Where a value and its position fit into 64 bits they are sorted as one whole number, which needs no new memory and
    is faster than an argsort.
    """
    if not place.size:
        return
    view, target = lined(xp, data, axis), lined(xp, place, axis)
    ones = lines.reshape(-1).view(counted.dtype)[: counted.size]
    ones.fill(1)
    ones[:1].fill(0)
    xp.cumsum(ones, dtype=counted.dtype, out=counted)
    positions = lined(xp, counted.reshape(data.shape), axis)
    if keys.dtype == np.uint64:
        values = lines.reshape(view.shape)
        halves = keys.view("uint32").reshape(*view.shape, 2)
        xp.copyto(halves[..., 1 - _HIGH], positions)
        xp.copyto(values, view, casting="unsafe")
        _grow(xp, values, halves.view("int32")[..., _HIGH], counted.view("bool")[: values.size], descending)
        _first(xp, keys, target.shape[-1])
        xp.copyto(target, halves[..., : target.shape[-1], 1 - _HIGH])
        return
    xp.copyto(keys.reshape(view.shape), positions)
    xp.copyto(lines.reshape(view.shape), view)
    step, turn = max(1, _BLOCK // lines.shape[1]), -1 if descending else 1
    for start in range(0, len(lines), step):
        part, places = lines[start : start + step, ::turn], keys[start : start + step, ::turn]
        xp.copyto(places, xp.take_along_axis(places, xp.argsort(part, axis=-1, kind="stable"), -1))
    xp.copyto(target, keys.reshape(view.shape)[..., : target.shape[-1]])


def _grow(xp: Any, values: Any, high: Any, mask: Any, descending: bool) -> None:
    """``high`` = 32 bits that, read without a sign, grow with ``values`` (fall with them if descending)."""
    bits = values.view("int32")
    if values.dtype.kind == "f":
        mask = mask.reshape(values.shape)
        xp.add(values, 0.0, out=values)  # -0 becomes 0
        xp.isnan(values, out=mask)
        xp.copyto(values, math.nan, where=mask)  # the one whose bits are above those of infinity
        xp.right_shift(bits, 31, out=high)  # all ones if negative
        xp.bitwise_or(high, -(2**31), out=high)
        xp.bitwise_xor(high, bits, out=high)
    elif values.dtype.kind == "i":
        xp.bitwise_xor(bits, -(2**31), out=high)
    else:
        xp.copyto(high, bits)
    if descending:
        xp.invert(high, out=high)


def _first(xp: Any, keys: Any, count: int) -> None:
    """Sort the first ``count`` of every line of ``keys`` to its front."""
    if xp is np and count < keys.shape[1] // 4:  # CuPy's partition is a sort
        keys.partition(count - 1, axis=-1)
        keys = keys[:, :count]
    keys.sort(axis=-1)


def position_of(xp: Any, place: Any, shape: tuple[int, ...], axis: int | None) -> None:
    """Make positions in flat data of ``shape`` positions along ``axis``."""
    if axis is not None:
        xp.floor_divide(place, math.prod(shape[axis % len(shape) + 1 :]), out=place)
        xp.remainder(place, max(shape[axis], 1), out=place)


def check_index_type(title: str, dtype: np.dtype[Any]) -> None:
    """Refuse an element type of indices that holds no whole numbers above 1."""
    if dtype.kind not in "iuf":
        raise AttributeValueError(
            f"{title}: attribute 'dtype' must be a type of whole or floating numbers, but it is {dtype.name}"
        )


def index_limit(dtype: np.dtype[Any]) -> int:
    """The largest whole number up to which ``dtype`` holds all of them."""
    return 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else int(np.iinfo(dtype).max)


def check_index_range(s: Any, count: Any, dtype: np.dtype[Any]) -> None:
    """Refuse data with more positions than an index of ``dtype`` can tell apart."""
    most = index_limit(dtype)
    if count is not UNKNOWN and count > most + 1:
        s.fail(
            "data", f"must have at most {most + 1} values in a line for an index of dtype={dtype.name}, "
            f"but it is {format_shape(s.data)}"
        )  # fmt: skip


def infer_ordered(s: Any, name: str, out: Any, axis: int | None, count: int = 0) -> Any:
    """Shape of an output ``name``, ``out`` so far: ``count`` values along ``axis``, or all of them (0)."""
    if axis is None:
        size = product(s.data)
    else:
        check_axis(s, "data", axis)
        check_axis(s, name, axis, out)
        s.data = replace(out, axis, UNKNOWN if count else out[axis])
        size = s.data[axis]
    if size is not UNKNOWN and size < count:
        s.fail("data", f"must have at least k={count} values in a line, but it is {format_shape(s.data)}")
    return (count or size,) if axis is None else replace(s.data, axis, count or size)


@register_op
class topk(Op):
    """The ``k`` largest values along ``axis`` (smallest if ``is_ascend``), best first: of data made flat if axis=None.

    ``ret_typ``: their positions along the axis in type ``dtype`` (indices), the values, both, or a mask of data's
    shape with 1 where they stand. k < 1 means all of them. Of equal values the lower index is the better one; NaN is
    larger than every number. The gradient goes to the values that were taken.
    """

    axis: int | None = -1
    k: int = 1
    ret_typ: Literal["indices", "value", "mask", "both"] = "indices"
    is_ascend: bool = False
    dtype: np.dtype[Any] = FLOAT32
    examples = (
        {"data": (2, 5), "k": 2},
        {"data": (2, 5, 3), "k": 2, "axis": 1, "ret_typ": "value", "is_ascend": True},
        {"data": (2, 5), "k": 3, "ret_typ": "both", "dtype": "int32"},
        {"data": (2, 3), "k": 2, "ret_typ": "mask", "axis": None},
        {"data": (2, 3), "k": 0, "ret_typ": "value", "axis": None},
    )

    def __post_init__(self) -> None:
        check_index_type("topk", self.dtype)

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis is not None and self.axis > 0 else None

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def outputs(self) -> tuple[str, ...]:
        return {"value": ("out0",), "both": ("out0", "out1")}.get(self.ret_typ, ("out",))

    def hidden(self) -> tuple[str, ...]:
        return ("kept",) if self.ret_typ in ("value", "both") else ()

    def total_outputs(self) -> int:
        return 2 if self.ret_typ in ("value", "both") else 1

    def infer(self, s: Any) -> None:
        count, outputs = max(self.k, 0), len(s.out)
        if self.ret_typ == "mask":
            s.out = (s.data,)
            s.data = s.out[0]
            infer_ordered(s, "out", ANY, self.axis, count)
            return
        for shape in distinct(s.out):
            s.out = (shape,) * outputs
        s.out = (infer_ordered(s, "out", s.out[0], self.axis, count),) * outputs
        s.kept = s.out[0]
        if self.ret_typ != "value":
            check_index_range(s, product(s.data) if self.axis is None else s.data[self.axis], self.dtype)

    def types(self, t: Any) -> None:
        if self.ret_typ in ("indices", "both"):
            t.out = (*t.out[:-1], self.dtype)
        if self.ret_typ != "indices":
            t.out = (t.data, *t.out[1:])
            t.data = t.out[0]
        t.kept = "int64"

    def temps(self, s: Any) -> Scratch:
        count = max(self.k, 0) or line_shape(s.data, self.axis)[1]
        chosen = (count,) if self.axis is None else replace(s.data, self.axis, count)
        return {
            **order_temps(s.data, self.axis, s.dtype("data")),
            "place": ((0,) if self.hidden() else chosen, "int64"),
            "index": (chosen if self.ret_typ == "both" else (0,), "int64"),
        }

    def forward(
        self, xp: Any, data: Any, out: Many, kept: Any, lines: Temp, keys: Temp, counted: Temp, place: Temp, index: Temp
    ) -> None:
        found = place if kept is None else kept
        places_in_order(xp, data, self.axis, not self.is_ascend, lines, keys, counted, found)
        if self.ret_typ == "mask":
            out[0].fill(0)
            out[0].reshape(-1)[found.reshape(-1)] = 1
        if kept is not None:
            gather(xp, data.reshape(-1), found, 0, out[0])
        if self.ret_typ in ("indices", "both"):
            if self.ret_typ == "both":
                xp.copyto(index, found)
            numbers = index if self.ret_typ == "both" else found
            position_of(xp, numbers, data.shape, self.axis)
            xp.copyto(out[-1], numbers, casting="unsafe")

    def backward(self, xp: Any, dout: Many, kept: Any, ddata: Any) -> None:
        ddata.fill(0)
        if kept is not None:
            ddata.reshape(-1)[kept] = dout[0]


@register_op
class sort(Op):
    """``out`` = ``data`` in order along ``axis``, rising if ``is_ascend``: flat if axis=None. NaN is the largest.

    The gradient goes back to where the values came from.
    """

    axis: int | None = -1
    is_ascend: bool = True
    outputs = ("out0",)
    examples = (
        {"data": (2, 5)},
        {"data": (2, 5, 3), "axis": 1, "is_ascend": False},
        {"data": (2, 3), "axis": None},
    )

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis is not None and self.axis > 0 else None

    def total_outputs(self) -> int:
        return 2  # MXNet's files count the positions, too

    def infer(self, s: Any) -> None:
        s.out0 = infer_ordered(s, "out0", s.out0, self.axis)

    def temps(self, s: Any) -> Scratch:
        kind = np.dtype(s.dtype("data"))
        line = line_shape(s.data, self.axis), kind if kind.kind in "biuf" else FLOAT32  # bfloat16 does not order NaN
        return {**order_temps(s.data, self.axis, kind), "line": line, "place": (s.out0, "int64")}

    def forward(self, xp: Any, data: Any, out0: Any, line: Temp) -> None:
        view = lined(xp, data, self.axis)
        xp.copyto(line.reshape(view.shape), view)
        line.sort(axis=-1)
        found = line.reshape(view.shape)[..., :: 1 if self.is_ascend else -1]
        xp.copyto(lined(xp, out0, self.axis), found, casting="unsafe")

    def backward(
        self, xp: Any, dout0: Any, data: Any, ddata: Any, lines: Temp, keys: Temp, counted: Temp, place: Temp
    ) -> None:
        places_in_order(xp, data, self.axis, not self.is_ascend, lines, keys, counted, place)
        ddata.reshape(-1)[place] = dout0


@register_op
class argsort(Op):
    """``out`` = positions along ``axis`` in the order of the values there, in type ``dtype``: flat if axis=None.

    Equal values stand in the order of their positions; NaN is the largest.
    """

    axis: int | None = -1
    is_ascend: bool = True
    dtype: np.dtype[Any] = FLOAT32
    examples = (
        {"data": (2, 5)},
        {"data": (2, 5, 3), "axis": 1, "is_ascend": False, "dtype": "int32"},
        {"data": (2, 3), "axis": None},
    )

    def __post_init__(self) -> None:
        check_index_type("argsort", self.dtype)

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis is not None and self.axis > 0 else None

    def infer(self, s: Any) -> None:
        s.out = infer_ordered(s, "out", s.out, self.axis)
        check_index_range(s, product(s.data) if self.axis is None else s.data[self.axis], self.dtype)

    def types(self, t: Any) -> None:
        t.out = self.dtype

    def temps(self, s: Any) -> Scratch:
        return {**order_temps(s.data, self.axis, s.dtype("data")), "place": (s.out, "int64")}

    def forward(
        self, xp: Any, data: Any, out: Any, lines: Temp, keys: Temp, counted: Temp, place: Temp
    ) -> None:
        places_in_order(xp, data, self.axis, not self.is_ascend, lines, keys, counted, place)
        position_of(xp, place, data.shape, self.axis)
        xp.copyto(out, place, casting="unsafe")
