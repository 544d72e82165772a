"""Operators on sequences of different lengths in one array: SequenceMask, SequenceLast, SequenceReverse.

Steps are on ``axis`` 0 or 1 and rows on the other of the two: data (steps, rows, …) or (rows, steps, …). Lengths
(rows,) may be of any numeric type, are truncated, and have no gradient. Without ``use_sequence_length`` every row has
all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ..dims import ANY, UNKNOWN, drop, insert, replace
from ..errors import format_shape
from ..registry import Op, Sample, register_op
from .index import gather
from .norm import spans
from .softmax import keep_where

Array = Any
PLANE = 1 << 11  # steps times rows that are gone over at a time


class _Part(NamedTuple):
    """Some of the first axis of data: its steps and whole lengths, which broadcast with the plane of both axes."""

    slice: slice
    steps: Array
    lengths: Array

    def inside(self, rank: int) -> Array:
        """Whether a step is one of its row's, so that it broadcasts with data of ``rank`` dims."""
        mask = self.steps < self.lengths
        return mask.reshape(*mask.shape, *(1,) * (rank - 2))


def _flat(data: Array) -> Array:
    """``data`` with its first two axes made one, and the others another."""
    return data.reshape(data.shape[0] * data.shape[1], math.prod(data.shape[2:]))


def _between(xp: Any, lengths: Array, low: int, high: int) -> Array:
    """Lengths truncated, then moved into [low, high]."""
    whole = lengths.astype("int64")
    xp.minimum(whole, high, out=whole)
    return xp.maximum(whole, low, out=whole)


class Sequence(Op):
    """Base: attributes, inputs, and places of steps and rows."""

    use_sequence_length: bool = False
    axis: Literal[0, 1] = 0
    no_gradient = ("sequence_length",)

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.axis == 1 else None

    def inputs(self) -> tuple[str, ...]:
        return ("data", "sequence_length") if self.use_sequence_length else ("data",)

    def infer(self, s: Any) -> None:
        if s.data is not ANY and len(s.data) < 2:
            s.fail("data", f"must have at least 2 dims, steps and rows, but it is {format_shape(s.data)}")
        if self.use_sequence_length:
            rows = 1 - self.axis
            s.sequence_length = (s.data[rows],)
            s.data = replace(s.data, rows, s.sequence_length[0])

    def _parts(self, xp: Any, lengths: Array, shape: tuple[int, ...]) -> Iterator[_Part]:
        """Slices of the first axis of data of ``shape``, with the steps and whole lengths that are there."""
        first, second = shape[:2]
        for part in spans(first, max(PLANE // max(second, 1), 1)):
            if self.axis == 0:
                steps, here = xp.arange(part.start, part.stop).reshape(-1, 1), lengths.reshape(1, -1)
            else:
                steps, here = xp.arange(second).reshape(1, -1), lengths[part].reshape(-1, 1)
            yield _Part(part, steps, _between(xp, here, 0, shape[self.axis]))


@register_op
class SequenceMask(Sequence):
    """``out`` = data, but ``value`` in the steps of each row from its length on: data of at least 2 dims, out as data.

    A length below 0 masks every step, one beyond the steps none.
    """

    use_sequence_length: bool = False
    value: float = 0.0
    axis: Literal[0, 1] = 0
    examples = (
        {"data": (4, 3, 2)},
        {"data": (4, 3, 2), "use_sequence_length": True, "sequence_length": Sample((3,), -1, 5, True), "value": -1.5},
        {"data": (3, 4), "use_sequence_length": True, "sequence_length": Sample((3,), 0, 4, True), "axis": 1},
    )

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        super().infer(s)

    def is_view(self, train: bool) -> bool:
        return not self.use_sequence_length

    def forward(self, xp: Any, data: Array, sequence_length: Array, out: Array) -> None:
        if sequence_length is None:
            xp.copyto(out, data)
            return
        for part in self._parts(xp, sequence_length, data.shape):
            kept = part.inside(data.ndim)
            keep_where(xp, data[part.slice], kept, out[part.slice])
            if self.value:
                fill = xp.multiply(xp.logical_not(kept), self.value).astype(out.dtype)
                xp.add(out[part.slice], fill, out=out[part.slice])

    def backward(self, xp: Any, dout: Array, sequence_length: Array, ddata: Array) -> None:
        if sequence_length is None:
            xp.copyto(ddata, dout)
            return
        for part in self._parts(xp, sequence_length, dout.shape):
            keep_where(xp, dout[part.slice], part.inside(dout.ndim), ddata[part.slice])

    def gradient(self, sym: Any, dout: Any, sequence_length: Any) -> dict[str, Any]:
        lengths = {} if sequence_length is None else {"sequence_length": sequence_length, "use_sequence_length": True}
        return {"data": sym.SequenceMask(dout, axis=self.axis, **lengths)}


@register_op
class SequenceLast(Sequence):
    """``out`` (rows, …) = the last step of each row of data (steps, rows, …), or (rows, steps, …) with ``axis`` 1.

    A length below 1 takes the first step, one beyond the steps the last.
    """

    use_sequence_length: bool = False
    axis: Literal[0, 1] = 0
    linear = ("data",)
    examples = (
        {"data": (4, 3, 2)},
        {"data": (4, 3, 2), "use_sequence_length": True, "sequence_length": Sample((3,), 0, 5, True)},
        {"data": (3, 4), "use_sequence_length": True, "sequence_length": Sample((3,), 0, 5, True), "axis": 1},
    )

    def infer(self, s: Any) -> None:
        s.data = insert(s.out, self.axis, UNKNOWN)
        super().infer(s)
        s.out = drop(s.data, self.axis)
        if s.data[self.axis] == 0:
            s.fail("data", f"must have a step at least, but it is {format_shape(s.data)}")

    def forward(self, xp: Any, data: Array, sequence_length: Array, out: Array) -> None:
        if sequence_length is None:
            xp.copyto(out, data[-1] if self.axis == 0 else data[:, -1])
            return
        flat, last = _flat(data), out.reshape(len(out), math.prod(out.shape[1:]))
        for rows, places in self._last(xp, sequence_length, data.shape):
            gather(xp, flat, places, 0, last[rows])

    def backward(self, xp: Any, dout: Array, sequence_length: Array, ddata: Array) -> None:
        ddata.fill(0)
        if sequence_length is None:
            xp.copyto(ddata[-1] if self.axis == 0 else ddata[:, -1], dout)
            return
        flat, last = _flat(ddata), dout.reshape(len(dout), math.prod(dout.shape[1:]))
        for rows, places in self._last(xp, sequence_length, ddata.shape):
            flat[places] = last[rows]

    def _last(self, xp: Any, lengths: Array, shape: tuple[int, ...]) -> Iterator[tuple[slice, Array]]:
        """Some rows, and the places of their last steps in the plane of steps and rows."""
        for rows in spans(len(lengths), PLANE):
            step = _between(xp, lengths[rows], 1, shape[self.axis])
            if self.axis == 0:
                xp.subtract(step, 1, out=step)
                xp.multiply(step, shape[1], out=step)
                yield rows, xp.add(step, xp.arange(rows.start, rows.stop), out=step)
            else:
                row = xp.arange(rows.start * shape[1] - 1, rows.stop * shape[1] - 1, shape[1])
                yield rows, xp.add(step, row, out=step)


@register_op
class SequenceReverse(Sequence):
    """``out`` = data with the first ``sequence_length`` steps of each row in reverse, the others as they are.

    data of at least 2 dims, out as data. A length below 0 counts as 0, one beyond the steps as all.
    """

    use_sequence_length: bool = False
    axis: Literal[0, 1] = 0
    linear = ("data",)
    examples = (
        {"data": (4, 3, 2)},
        {"data": (4, 3, 2), "use_sequence_length": True, "sequence_length": Sample((3,), -1, 5, True)},
        {"data": (3, 4), "use_sequence_length": True, "sequence_length": Sample((3,), 0, 4, True), "axis": 1},
    )

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        super().infer(s)

    def forward(self, xp: Any, data: Array, sequence_length: Array, out: Array) -> None:
        if sequence_length is None:
            xp.copyto(out, data[::-1] if self.axis == 0 else data[:, ::-1])
            return
        flat = _flat(data)
        for part in self._parts(xp, sequence_length, data.shape):
            turned = part.steps + part.inside(2) * (part.lengths - 1 - 2 * part.steps)
            if self.axis == 0:
                places = turned * data.shape[1] + xp.arange(data.shape[1])
            else:
                places = turned + xp.arange(part.slice.start, part.slice.stop).reshape(-1, 1) * data.shape[1]
            gather(xp, flat, places.reshape(-1), 0, _flat(out[part.slice]))

    def backward(self, xp: Any, dout: Array, sequence_length: Array, ddata: Array) -> None:
        self.forward(xp, dout, sequence_length, ddata)  # it is its own inverse
