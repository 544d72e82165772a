"""Look-ups and assignments by several indices at once, and what turns such indices into one number and back.

Here an index that is no place raises IndexRangeError when it is met, and negative ones count from the end: there is no
nearest place that could be meant. On a GPU the host waits for that answer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..context import asnumpy
from ..dims import ANY, UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .checks import check_axis
from .index import class_places, class_temps, gather, refuse_outside, scatter_add, scatter_temps
from .order import index_limit
from .reduce import Scratch


def flat_temps(indices: tuple[int, ...]) -> dict[str, Any]:
    """Scratch of :func:`flat_places`."""
    return {"places": ((indices[0], math.prod(indices[1:])), "int64")}


def flat_places(xp: Any, title: str, indices: Any, dims: Sequence[int], places: Any) -> Any:
    """Positions in a C-contiguous array of ``dims`` of the columns of ``indices`` (len(dims), …): a row of ``places``.

    IndexRangeError where there is none.
    """
    xp.copyto(places.reshape(indices.shape), indices, casting="unsafe")
    found = places[0]
    if not _all_within(places, dims):
        for axis, dim in enumerate(dims):
            refuse_outside(xp, places[axis], -dim, dim, f"{title}: row {axis} of indices")
            xp.remainder(places[axis], max(dim, 1), out=places[axis])
    for axis in range(1, len(dims)):
        xp.multiply(found, dims[axis], out=found)
        xp.add(found, places[axis], out=found)
    return found


def _all_within(places: Any, dims: Sequence[int]) -> bool:
    """Whether each row of ``places`` is from 0 to below its one of ``dims``: the host waits for the answer."""
    if not places.size:
        return True
    largest = asnumpy(places.view("uint64").max(axis=1)).tolist()  # negative ones are huge without a sign
    return all(map(operator.lt, largest, dims))


def infer_nd(s: Any, whole: str, piece: str) -> None:
    """Rule of ``piece`` = ``whole[indices]``; a piece without dims has one."""
    depth, count = s.indices[0], len(s.indices) - 1
    data, part = getattr(s, whole), getattr(s, piece)
    if depth < 1 or (data is not ANY and depth > len(data)):
        s.fail("indices", f"must have a row for each of the first dims of {whole}, but it is {format_shape(s.indices)}")
    if count == 0 and (part is ANY or data is not ANY) and len(data) == depth:
        setattr(s, piece, (1,))
        return
    if data is not ANY:
        setattr(s, piece, (*s.indices[1:], *data[depth:]))
        part = getattr(s, piece)
    s.indices = (depth, *part[:count])
    if count or data is not ANY:
        setattr(s, whole, (*(UNKNOWN,) * depth, *part[count:]))


def as_rows(array: Any, depth: int) -> Any:
    """``array`` with its first ``depth`` axes made one and the others made another; a copy if it is not contiguous."""
    shape = array.shape
    return array.reshape(math.prod(shape[:depth]), math.prod(shape[depth:]))


@register_op
class gather_nd(Op):
    """``out[i…, …] = data[indices[0, i…], indices[1, i…], …]``: data (d0, …), indices (m, i…), out (i…, dm, …).

    Indices are truncated; negative ones count from the end, others outside raise IndexRangeError. Gradients of values
    that are taken twice are summed.
    """

    linear = ("data",)
    no_gradient = ("indices",)
    examples = (
        {"data": (3, 4), "indices": Sample((2, 3), -3, 2, True)},
        {"data": (2, 3, 2), "indices": Sample((1, 2, 2), -2, 1, True)},
    )

    def infer(self, s: Any) -> None:
        infer_nd(s, "data", "out")

    def temps(self, s: Any) -> Scratch:
        depth, count = flat_temps(s.indices)["places"][0]
        inner = math.prod(s.data[depth:])
        sums = scatter_temps((math.prod(s.data[:depth]), inner), (count, inner), s.dtype("data"))
        return {**flat_temps(s.indices), **sums}

    def forward(self, xp: Any, data: Any, indices: Any, out: Any, places: Temp) -> None:
        place = flat_places(xp, "gather_nd", indices, data.shape[: len(indices)], places)
        gather(xp, as_rows(data, len(indices)), place, 0, as_rows(out, indices.ndim - 1))

    def backward(
        self, xp: Any, dout: Any, indices: Any, ddata: Any, places: Temp, flat: Temp, wide: Temp
    ) -> None:
        place = flat_places(xp, "gather_nd", indices, ddata.shape[: len(indices)], places)
        scatter_add(xp, as_rows(ddata, len(indices)), place, as_rows(dout, indices.ndim - 1), flat, wide)


class _Assigning(Op):
    """Base of operators whose ``out`` is something with the rows of ``new`` at the places that indices say."""

    no_gradient = ("indices",)

    def put(self, xp: Any, indices: Any, new: Any, out: Any, places: Any) -> None:
        """Write ``new``; of rows for one place the last stays (on a GPU: one of them)."""
        place = flat_places(xp, self.form.name, indices, out.shape[: len(indices)], places)
        as_rows(out, len(indices))[place] = as_rows(new, indices.ndim - 1)

    def spread(self, xp: Any, indices: Any, dout: Any, dold: Any, dnew: Any, places: Any) -> None:
        """``dnew`` = the rows of ``dout`` at the places, ``dold`` = the others, each if it is wanted."""
        place = flat_places(xp, self.form.name, indices, dout.shape[: len(indices)], places)
        if dnew is not None:
            gather(xp, as_rows(dout, len(indices)), place, 0, as_rows(dnew, indices.ndim - 1))
        if dold is not None:
            xp.copyto(dold, dout)
            as_rows(dold, len(indices))[place] = 0

    def temps(self, s: Any) -> Scratch:
        return flat_temps(s.indices)


def _check_shape(title: str, shape: tuple[int, ...], least: int = 1) -> None:
    if not shape or min(shape) < least:
        raise AttributeValueError(
            f"{title}: attribute 'shape' must hold whole numbers of at least {least}, but it is {shape}"
        )


@register_op
class scatter_nd(_Assigning):
    """``out[indices[0, i…], indices[1, i…], …] = data[i…, …]``, 0 elsewhere: data (i…, dm, …), out ``shape``.

    Indices are truncated; negative ones count from the end, others outside raise IndexRangeError. Of several data for
    one place the last stays (on a GPU: one of them); each gets that place's gradient.
    """

    shape: tuple[int, ...]
    examples = (
        {"data": (3,), "indices": Sample((2, 3), -3, 2, True), "shape": (3, 4)},
        {"data": (2, 2, 3), "indices": Sample((1, 2, 2), 0, 3, True), "shape": (4, 3)},
    )

    def __post_init__(self) -> None:
        _check_shape("scatter_nd", self.shape)

    def infer(self, s: Any) -> None:
        s.out = self.shape
        infer_nd(s, "out", "data")

    def forward(self, xp: Any, data: Any, indices: Any, out: Any, places: Temp) -> None:
        out.fill(0)
        self.put(xp, indices, data, out, places)

    def backward(self, xp: Any, dout: Any, indices: Any, ddata: Any, places: Temp) -> None:
        self.spread(xp, indices, dout, None, ddata, places)

    def gradient(self, sym: Any, dout: Any, indices: Any) -> Mapping[str, Any]:
        return {"data": sym.gather_nd(dout, indices)}


@register_op
class _scatter_set_nd(_Assigning):
    """``out`` = ``lhs``, of ``shape``, with ``out[indices[0, i…], indices[1, i…], …] = rhs[i…, …]``: see scatter_nd."""

    shape: tuple[int, ...]
    examples = (
        {"lhs": (3, 4), "rhs": (2,), "indices": Sample((2, 2), 0, 2, True), "shape": (3, 4)},
        {"lhs": (4, 3), "rhs": (2, 3), "indices": Sample((1, 2), -4, 3, True), "shape": (4, 3)},
    )

    def __post_init__(self) -> None:
        _check_shape("_scatter_set_nd", self.shape)

    def infer(self, s: Any) -> None:
        s.out = self.shape
        s.lhs = s.out
        infer_nd(s, "out", "rhs")

    def forward(self, xp: Any, lhs: Any, rhs: Any, indices: Any, out: Any, places: Temp) -> None:
        xp.copyto(out, lhs)
        self.put(xp, indices, rhs, out, places)

    def backward(self, xp: Any, dout: Any, indices: Any, dlhs: Any, drhs: Any, places: Temp) -> None:
        self.spread(xp, indices, dout, dlhs, drhs, places)


@register_op
class _contrib_index_copy(_Assigning):
    """``out`` = ``old_tensor`` with ``out[index_vector[i]] = new_tensor[i]``: (n, …), (m,) and (m, …).

    Negative indices count from the end, others outside raise IndexRangeError. Of several rows for one place the last
    stays (on a GPU: one of them); each gets that place's gradient.
    """

    no_gradient = ("index_vector",)
    examples = ({"old_tensor": (4, 3), "index_vector": Sample((2,), -2, 1, True), "new_tensor": (2, 3)},)

    def infer(self, s: Any) -> None:
        s.out = s.old_tensor
        s.out = (UNKNOWN, *s.new_tensor[1:]) if s.new_tensor is not ANY else ANY
        s.old_tensor = s.out
        s.new_tensor = (*s.index_vector, *s.out[1:]) if s.index_vector is not ANY else ANY
        s.index_vector = s.new_tensor[:1]

    def temps(self, s: Any) -> Scratch:
        return flat_temps((1, *s.index_vector))

    def forward(
        self, xp: Any, old_tensor: Any, index_vector: Any, new_tensor: Any, out: Any, places: Temp
    ) -> None:
        xp.copyto(out, old_tensor)
        self.put(xp, index_vector[None], new_tensor, out, places)

    def backward(
        self, xp: Any, dout: Any, index_vector: Any, dold_tensor: Any, dnew_tensor: Any, places: Temp
    ) -> None:
        self.spread(xp, index_vector[None], dout, dold_tensor, dnew_tensor, places)


@register_op
class batch_take(Op):
    """``out[i…] = a[i…, indices[i…]]``: a (n, …, k), indices and out (n, …). An index outside is clipped."""

    linear = ("a",)
    no_gradient = ("indices",)
    rows = "parallel"
    examples = ({"a": (4, 3), "indices": Sample((4,), -1, 4, True)},)

    def infer(self, s: Any) -> None:
        s.out = s.indices
        s.out = s.a[:-1]
        s.indices = s.out
        s.a = (*s.out, UNKNOWN)
        if len(s.a) < 2 or (s.a[-1] is not UNKNOWN and s.a[-1] == 0):
            s.fail("a", f"must have at least 2 dims and something in the last, but it is {format_shape(s.a)}")

    def temps(self, s: Any) -> Scratch:
        temps = class_temps(math.prod(s.indices), 1)
        return {"place": temps["place"], "scratch": temps["index"]}

    def forward(self, xp: Any, a: Any, indices: Any, out: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, indices, place, scratch, a.shape[-1])
        gather(xp, a.reshape(-1), place, 0, out.reshape(place.shape))

    def backward(self, xp: Any, dout: Any, indices: Any, da: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, indices, place, scratch, da.shape[-1])
        da.fill(0)
        da.reshape(-1)[place.reshape(dout.shape)] = dout


@register_op
class fill_element_0index(Op):
    """``out`` = ``lhs`` (n, k) with ``out[i, rhs[i]] = mhs[i]``: mhs and rhs (n,). An index outside is clipped."""

    no_gradient = ("rhs",)
    rows = "parallel"
    inplace: ClassVar[Mapping[str, str]] = {"out": "lhs"}
    examples = ({"lhs": (4, 3), "mhs": (4,), "rhs": Sample((4,), -1, 4, True)},)

    def infer(self, s: Any) -> None:
        s.lhs = (UNKNOWN, UNKNOWN)
        s.out = s.lhs
        s.lhs = s.out
        s.mhs = s.rhs = s.lhs[:1]
        s.lhs = s.out = (s.mhs[0], UNKNOWN)
        s.lhs = s.out = (s.rhs[0], UNKNOWN)
        if s.lhs[1] == 0:
            s.fail("lhs", f"must have something in each row, but it is {format_shape(s.lhs)}")

    def temps(self, s: Any) -> Scratch:
        temps = class_temps(s.lhs[0], 1)
        return {"place": temps["place"], "scratch": temps["index"]}

    def forward(self, xp: Any, lhs: Any, mhs: Any, rhs: Any, out: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, rhs, place, scratch, lhs.shape[1])
        xp.copyto(out, lhs)
        out.reshape(-1)[place.reshape(-1)] = mhs

    def backward(self, xp: Any, dout: Any, rhs: Any, dlhs: Any, dmhs: Any, place: Temp, scratch: Temp) -> None:
        class_places(xp, rhs, place, scratch, dout.shape[1])
        if dmhs is not None:
            gather(xp, dout.reshape(-1), place, 0, dmhs.reshape(place.shape))
        if dlhs is not None:
            xp.copyto(dlhs, dout)
            dlhs.reshape(-1)[place] = 0


# --- indices as values -----------------------------------------------------------------------------------------


@register_op
class _contrib_index_array(Op):
    """``out[i…, j] = i[axes[j]]``, the index of the place itself (axes: all): data (n…), out (n…, number of axes)."""

    axes: tuple[int, ...] | None = None
    examples = ({"data": (2, 3)}, {"data": (2, 3, 2), "axes": (-1, 0)})

    def inputs(self) -> tuple[str, ...]:
        return ("data",)

    def infer(self, s: Any) -> None:
        s.data = s.out[:-1]
        s.out = (*s.data, len(self.axes or s.data))
        for axis in self.axes or ():
            check_axis(s, "data", axis)

    def types(self, t: Any) -> None:
        t.out = "int64"

    def temps(self, s: Any) -> Scratch:
        longest = (max(s.data),)
        return {"ones": (longest, "int64"), "counted": (longest, "int64")}

    def forward(self, xp: Any, out: Any, ones: Temp, counted: Temp) -> None:
        rank = out.ndim - 1
        ones.fill(1)
        ones[:1].fill(0)
        xp.cumsum(ones, out=counted)
        for j, axis in enumerate(range(rank) if self.axes is None else self.axes):
            along = [1] * rank
            along[axis] = out.shape[axis % rank]
            xp.copyto(out[..., j], counted[: along[axis]].reshape(along))


def _check_numbers(t: Any, shape: tuple[int, ...]) -> None:
    """Refuse an element type that cannot hold every position in an array of ``shape``."""
    kind, count = t.data, math.prod(map(abs, shape))
    if kind is not None and kind.kind in "iuf" and count > index_limit(kind) + 1:
        t.fail("data", f"must be of a type that holds {count - 1}, the last place in {shape}, but it is {kind.name}")


@register_op(aliases=("ravel_multi_index",))
class _ravel_multi_index(Op):
    """``out[i…]`` = position in an array of ``shape`` of the place ``data[:, i…]``: data (m, i…), out (i…).

    The first dim may be -1, it does not count. Indices are not checked; they are truncated.
    """

    shape: tuple[int, ...]
    examples = (
        {"data": Sample((2, 3), 0, 2, True), "shape": (3, 4)},
        {"data": Sample((2, 3, 2), 0, 2, True), "shape": (-1, 3)},
    )

    def __post_init__(self) -> None:
        _check_shape("_ravel_multi_index", (1, *self.shape[1:]) if self.shape else ())

    def infer(self, s: Any) -> None:
        if s.data is ANY and len(s.out) == 1:  # of one dim, or of none
            return
        rank = len(s.out) if s.data is ANY else len(s.data) - 1
        s.data = (len(self.shape), *(UNKNOWN,) * rank)
        s.out = s.data[1:] or (1,)
        s.data = (len(self.shape), *s.out[:rank])

    def types(self, t: Any) -> None:
        t.same()
        _check_numbers(t, self.shape)

    def temps(self, s: Any) -> Scratch:
        return {"total": (s.out, "int64"), "part": (s.out, "int64")}

    def forward(self, xp: Any, data: Any, out: Any, total: Temp, part: Temp) -> None:
        xp.copyto(total.reshape(data.shape[1:]), data[0], casting="unsafe")
        for axis, dim in enumerate(self.shape[1:], 1):
            xp.copyto(part.reshape(data.shape[1:]), data[axis], casting="unsafe")
            xp.multiply(total, dim, out=total)
            xp.add(total, part, out=total)
        xp.copyto(out, total, casting="unsafe")


@register_op(aliases=("unravel_index",))
class _unravel_index(Op):
    """``out[:, i…]`` = place in an array of ``shape`` of the position ``data[i…]``: data (i…), out (m, i…).

    The first dim may be -1, it does not count: positions beyond the last place go on there. They are truncated.
    """

    shape: tuple[int, ...]
    examples = (
        {"data": Sample((2, 3), 0, 11, True), "shape": (3, 4)},
        {"data": Sample((4,), 0, 11, True), "shape": (-1, 3, 2)},
    )

    def __post_init__(self) -> None:
        _check_shape("_unravel_index", (1, *self.shape[1:]) if self.shape else ())

    def infer(self, s: Any) -> None:
        s.data = s.out[1:]
        s.out = (len(self.shape), *s.data)

    def types(self, t: Any) -> None:
        t.same()
        _check_numbers(t, self.shape)

    def temps(self, s: Any) -> Scratch:
        return {"rest": (s.data, "int64"), "part": (s.data, "int64")}

    def forward(self, xp: Any, data: Any, out: Any, rest: Temp, part: Temp) -> None:
        xp.copyto(rest, data, casting="unsafe")
        for axis in range(len(self.shape) - 1, 0, -1):
            xp.remainder(rest, self.shape[axis], out=part)
            xp.copyto(out[axis], part, casting="unsafe")
            xp.floor_divide(rest, self.shape[axis], out=rest)
        xp.copyto(out[0], rest, casting="unsafe")
