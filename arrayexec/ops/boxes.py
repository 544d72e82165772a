"""Operators on boxes: overlap, non-maximum suppression, matching, and boxes coded as offsets from others.

A box is ``corner`` (x1, y1, x2, y2) or ``center`` (x, y, width, height). A box of negative width or height has area 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..dims import ANY, UNKNOWN, insert, replace
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .box_overlap import BLOCK, CHUNK, Suppression, match, overlap, overlap_temps
from .checks import check_floating, check_least, check_rank
from .index import gather
from .precision import wide

Array = Any
Format = Literal["corner", "center"]


def each(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Every index of an array of this shape, one after the other."""
    return (np.unravel_index(i, shape) for i in range(math.prod(shape)))


def fill_boxes(xp: Any, boxes: Array, columns: Array, layout: str) -> None:
    """Rows 0 to 4 of ``boxes`` = corners and area of the boxes ``columns`` (n, 4)."""
    for i in range(4):
        xp.copyto(boxes[i], columns[:, i])
    if layout == "center":
        xp.multiply(boxes[2], boxes[3], out=boxes[4])
        negative = xp.logical_or(boxes[2] < 0, boxes[3] < 0)
        for i in (0, 1):
            xp.multiply(boxes[i + 2], 0.5, out=boxes[i + 2])
            middle = xp.add(boxes[i], boxes[i + 2])
            xp.subtract(boxes[i], boxes[i + 2], out=boxes[i])
            xp.copyto(boxes[i + 2], middle)
    else:
        width, height = boxes[2] - boxes[0], boxes[3] - boxes[1]
        xp.multiply(width, height, out=boxes[4])
        negative = xp.logical_or(width < 0, height < 0)
    xp.copyto(boxes[4], 0, where=negative)


@register_op(name="_contrib_box_iou", aliases=("_npx_box_iou",))
class box_iou(Op):
    """``out`` = intersection over union of every box in lhs (…, 4) with every one in rhs (…, 4): (lhs…, rhs…).

    Boxes that do not meet give 0, two empty boxes as well; a NaN coordinate gives NaN. There is no gradient.
    """

    format: Format = "corner"
    rows = "parallel"
    examples = (
        {"lhs": Sample((3, 4), 0, 1), "rhs": Sample((2, 4), 0, 1)},
        {"lhs": Sample((2, 3, 4), 0, 1), "rhs": Sample((2, 4), 0, 1), "format": "center"},
    )

    def infer(self, s: Any) -> None:
        s.lhs, s.rhs = replace(s.lhs, -1, 4), replace(s.rhs, -1, 4)
        check_rank(s, "lhs", 2)
        check_rank(s, "rhs", 2)
        if s.lhs is not ANY:
            s.lhs = (*s.out[: len(s.lhs) - 1], 4) if s.out is not ANY else ANY
        if s.rhs is not ANY:
            s.rhs = (*s.out[1 - len(s.rhs) :], 4) if s.out is not ANY else ANY
        if s.lhs is not ANY and s.rhs is not ANY:
            s.out = s.lhs[:-1] + s.rhs[:-1]

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "lhs")

    def temps(self, s: Any) -> dict[str, Any]:
        kind = wide(s.dtype("lhs"))
        return {"left": ((5, BLOCK), kind), "right": ((5, CHUNK), kind), "pairs": ((3, BLOCK, CHUNK), kind)}

    def forward(self, xp: Any, lhs: Array, rhs: Array, out: Array, left: Temp, right: Temp, pairs: Temp) -> None:
        one, other = lhs.reshape(-1, 4), rhs.reshape(-1, 4)
        table = out.reshape(one.shape[0], other.shape[0])
        for first in range(0, table.shape[1], CHUNK):
            columns = right[:, : min(CHUNK, table.shape[1] - first)]
            fill_boxes(xp, columns, other[first : first + CHUNK], self.format)
            for start in range(0, table.shape[0], BLOCK):
                rows = left[:, : min(BLOCK, table.shape[0] - start)]
                fill_boxes(xp, rows, one[start : start + BLOCK], self.format)
                part = table[start : start + BLOCK, first : first + CHUNK]
                xp.copyto(part, overlap(xp, rows, columns, pairs), casting="same_kind")


@register_op(name="_contrib_box_nms", aliases=("_contrib_box_non_maximum_suppression", "_npx_box_nms"))
class box_nms(Op):
    """``out0`` (…, n, k) = the rows of data (…, n, k) that greedy non-maximum suppression leaves, best score first.

    A row holds four coordinates from ``coord_start``, a score, an id and more. Rows whose score is above
    ``valid_thresh`` and whose id is not ``background_id`` take part, the ``topk`` best of them; equal scores keep
    their order, a NaN is above nothing. A row falls if one before it that is left overlaps it by more than
    ``overlap_thresh`` and has the same id (truncated to a whole number), or any id with ``force_suppress`` or without
    ``id_index``. What is left moves to the front, in ``out_format``; the rest of ``out0`` is -1. ``topk=0`` copies.
    The gradient goes with its row to where it came from, whatever the formats. Every row left is put into
    ``out_format``; MXNet leaves those as they are whose first coordinate is below 0.
    """

    overlap_thresh: float = 0.5
    valid_thresh: float = 0.0
    topk: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = -1
    background_id: int = -1
    force_suppress: bool = False
    in_format: Format = "corner"
    out_format: Format = "corner"
    outputs = ("out0",)  # MXNet's name: the record would be the next
    hidden = ("record",)
    examples = (
        {"data": Sample((2, 60, 6), 0, 1), "overlap_thresh": 0.1, "out_format": "center"},
        {"data": Sample((2, 60, 6), -1, 2), "overlap_thresh": 0.05, "valid_thresh": 0.2, "topk": 50, "id_index": 0,
         "force_suppress": True},
        {"data": Sample((1, 2, 60, 7), -1, 2), "overlap_thresh": 0.01, "coord_start": 3, "score_index": 2,
         "id_index": 1, "in_format": "center"},
        {"data": Sample((2, 60, 6), 0, 1), "topk": 0},
        {"data": Sample((2, 60, 6), 0, 1, True), "id_index": 0, "background_id": 0},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_least(self, "coord_start", "score_index", least=0)
        taken = range(self.coord_start, self.coord_start + 4)
        for name in ("score_index", "id_index"):
            place = getattr(self, name)
            if place in taken:
                raise AttributeValueError(
                    f"_contrib_box_nms: attribute '{name}' must not be one of the coordinates {taken.start} to "
                    f"{taken.stop - 1}, but it is {place}"
                )
        if self.id_index == self.score_index:
            raise AttributeValueError(
                f"_contrib_box_nms: attribute 'id_index' must not be score_index, but both are {self.id_index}"
            )

    def infer(self, s: Any) -> None:
        s.out0 = s.data
        s.data = s.out0
        s.record = s.data[:-1]
        check_rank(s, "data", 2)
        width, least = s.data[-1], max(self.coord_start + 4, self.score_index + 1, self.id_index + 1)
        if width is not UNKNOWN and width < least:
            s.fail("data", f"must have rows of at least {least} values, but it is {format_shape(s.data)}")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")
        t.record = "int64"

    def temps(self, s: Any) -> dict[str, Any]:
        return {"boxes": ((6, s.data[-2]), wide(s.dtype("data"))), **overlap_temps(s.dtype("data"))}

    def forward(
        self, xp: Any, data: Array, out0: Array, record: Array, boxes: Temp, pairs: Temp, over: Temp
    ) -> None:  # fmt: skip
        count = data.shape[-2]
        most = count if self.topk < 0 else min(count, self.topk)
        if most == 0 or not data.size:
            xp.copyto(out0, data)
            record[...] = xp.arange(count)
            return
        grouped = self.id_index >= 0 and not self.force_suppress
        suppress = Suppression(xp, xp.greater, self.overlap_thresh, grouped)
        for place in each(data.shape[:-2]):
            rows = data[place]
            score = rows[:, self.score_index]
            valid = score > self.valid_thresh
            if self.id_index >= 0:
                valid = xp.logical_and(valid, rows[:, self.id_index] != self.background_id)
            order = xp.argsort(xp.where(valid, -score, math.inf), kind="stable")[:most]
            alive, best = valid[order], rows[order]
            part = boxes[:, :most]
            fill_boxes(xp, part, best[:, self.coord_start : self.coord_start + 4], self.in_format)
            if grouped:
                xp.trunc(best[:, self.id_index], out=part[5])
            suppress(part, alive, pairs, over)
            front = xp.argsort(~alive, kind="stable")
            left, source = alive[front], order[front]
            self._write(xp, rows, source, left, out0[place], record[place])

    def _write(self, xp: Any, rows: Array, source: Array, left: Array, out: Array, record: Array) -> None:
        """``rows`` at ``source`` in the wanted format to the front of ``out``, -1 where nothing is ``left``."""
        most = source.shape[0]
        record[:most] = xp.where(left, source, -1)
        record[most:] = -1
        gather(xp, rows, source, 0, out[:most])
        if self.in_format != self.out_format:
            box = out[:most, self.coord_start : self.coord_start + 4]
            for i in (0, 1):
                first, second = box[:, i], box[:, i + 2]
                if self.out_format == "center":
                    xp.subtract(second, first, out=second)
                    xp.add(first, second * 0.5, out=first)
                else:
                    xp.subtract(first, second * 0.5, out=first)
                    xp.add(first, second, out=second)
        xp.copyto(out[:most], -1, where=~left[:, None])
        out[most:] = -1

    def backward(self, xp: Any, dout0: Array, record: Array, ddata: Array) -> None:
        count = ddata.shape[-2]
        for place in each(ddata.shape[:-2]):
            went = xp.full((count + 1,), -1)  # row of out0 of every row of data; the last one is for record -1
            went[record[place]] = xp.arange(count)
            gather(xp, dout0[place], xp.maximum(went[:count], 0), 0, ddata[place])
            xp.copyto(ddata[place], 0, where=(went[:count] < 0)[:, None])


@register_op(name="_contrib_bipartite_matching", aliases=("_npx_bipartite_matching",))
class bipartite_matching(Op):
    """``out0`` (…, n), ``out1`` (…, m) = the column of each row and the row of each column of scores (…, n, m), or -1.

    The largest score (the smallest with ``is_ascend``) is matched first, equal ones in row-major order, as long as it
    is above (below) ``threshold``; a NaN never is. ``topk`` > 0 ends it after topk + 1 matches, as in MXNet.
    """

    is_ascend: bool = False
    threshold: float
    topk: int = -1
    outputs = ("out0", "out1")
    examples = (
        {"data": Sample((2, 20, 30), 0, 1), "threshold": 0.1},
        {"data": Sample((1, 30, 20), 0, 1), "threshold": 0.1, "is_ascend": True},
        {"data": Sample((2, 30, 20), 0, 1), "threshold": 0.01, "topk": 1},
    )

    def infer(self, s: Any) -> None:
        check_rank(s, "data", 2)
        s.out0 = s.data[:-1]
        s.out1 = s.data[:-2] + s.data[-1:]
        s.data = insert(s.out0, -1, s.out1[-1])

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        rows, columns = sorted(s.data[-2:])
        return {"work": ((rows + 1, columns + 1), wide(s.dtype("data")))}

    def forward(self, xp: Any, data: Array, out0: Array, out1: Array, work: Temp) -> None:
        out0.fill(-1)
        out1.fill(-1)
        turned = data.shape[-2] > data.shape[-1]  # the shorter side chooses
        for place in each(data.shape[:-2]):
            scores = data[place].T if turned else data[place]
            mine, other = (out1[place], out0[place]) if turned else (out0[place], out1[place])
            work[-1].fill(-math.inf)
            work[:, -1].fill(-math.inf)
            inner = work[:-1, :-1]
            if self.is_ascend:
                xp.multiply(scores, -1, out=inner)
            xp.fmax(inner if self.is_ascend else scores, -math.inf, out=inner)  # a NaN comes last: it is not matched
            column = match(xp, work, -self.threshold if self.is_ascend else self.threshold)
            matched = column >= 0
            if self.topk > 0:
                matched = xp.logical_and(matched, self._best(xp, scores, column, turned))
            xp.copyto(mine, column, where=matched, casting="unsafe")
            back = xp.full((other.shape[0] + 1,), -1)
            back[xp.where(matched, column, -1)] = xp.where(matched, xp.arange(mine.shape[0]), -1)
            xp.copyto(other, back[:-1], casting="unsafe")

    def _best(self, xp: Any, scores: Array, column: Array, turned: bool) -> Array:
        """Which of the matches are among the first topk + 1 in the order of matching."""
        row = xp.arange(column.shape[0])
        value = scores[row, xp.maximum(column, 0)]
        value = xp.where(column >= 0, value if self.is_ascend else -value, math.inf)
        order = xp.argsort(column, kind="stable") if turned else row  # equal scores: row-major in data
        order = order[xp.argsort(value[order], kind="stable")]
        chosen = xp.zeros(column.shape, bool)
        chosen[order[: self.topk + 1]] = True
        return chosen


@register_op(name="_contrib_box_encode", aliases=("_npx_box_encode",))
class box_encode(Op):
    """``out0`` (b, n, 4) = (offset of the matched reference from the anchor - mean) / std; ``out1`` = mask, 1 or 0.

    samples (b, n) > 0.5 is a positive, all else gives 0; matches (b, n) are rows of refs (b, m, 4), clipped to it;
    anchors (b, n, 4), corners all; means, stds (4,). Offsets are (Δx / w, Δy / h, log(w' / w), log(h' / h)) between
    centers. There is no gradient.
    """

    outputs = ("out0", "out1")
    rows = "parallel"
    examples = (
        {"samples": (2, 99), "matches": Sample((2, 99), 0, 1, True), "anchors": Sample((2, 99, 4), 0.2, 1),
         "refs": Sample((2, 2, 4), 0.2, 1), "means": (4,), "stds": Sample((4,), 0.5, 1)},
    )  # fmt: skip

    def infer(self, s: Any) -> None:
        s.means = s.stds = (4,)
        s.anchors = s.out0 = s.out1 = (*s.samples[:2], 4) if s.samples is not ANY else (UNKNOWN, UNKNOWN, 4)
        s.out0 = s.out1 = s.anchors
        s.anchors = s.out0
        s.anchors = s.out1
        s.samples = s.anchors[:2]
        s.matches = s.samples
        s.samples = s.matches
        s.refs = (s.samples[0], UNKNOWN, 4)
        s.samples = (s.refs[0], UNKNOWN)
        if s.refs[1] is not UNKNOWN and s.refs[1] == 0:
            s.fail("refs", f"must hold a box for each image, but it is {format_shape(s.refs)}")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "anchors")

    def forward(
        self, xp: Any, samples: Array, matches: Array, anchors: Array, refs: Array, means: Array, stds: Array,
        out0: Array, out1: Array,
    ) -> None:  # fmt: skip
        for i in range(samples.shape[0]):
            positive = samples[i] > 0.5
            index = xp.clip(matches[i].astype("int64"), 0, refs.shape[1] - 1)
            encode(xp, anchors[i], refs[i][index], out0[i])
            xp.subtract(out0[i], means, out=out0[i])
            xp.divide(out0[i], stds, out=out0[i])
            xp.copyto(out0[i], 0, where=~positive[:, None])
            out1[i] = positive[:, None]


def encode(xp: Any, anchors: Array, boxes: Array, out: Array) -> None:
    """``out`` (n, 4) = offsets of ``boxes`` from ``anchors``, corners: Δx / w, Δy / h, log(w' / w), log(h' / h)."""
    kind = wide(out.dtype)
    for axis in (0, 1):
        low, high = (anchors[:, axis + side].astype(kind) for side in (0, 2))
        first, last = (boxes[:, axis + side].astype(kind) for side in (0, 2))
        length = high - low
        out[:, axis] = ((first + last) - (low + high)) * 0.5 / length
        out[:, axis + 2] = xp.log((last - first) / length)


@register_op(name="_contrib_box_decode", aliases=("_npx_box_decode",))
class box_decode(Op):
    """``out`` (b, n, 4) = corners of the boxes that lie off anchors (1, n, 4) by data (b, n, 4) times std0 to std3.

    Center = data · std · size + center, size = exp(data · std) · size; ``clip`` > 0 bounds the exponent from above.
    ``format`` says how anchors are given. There is no gradient.
    """

    std0: float = 1.0
    std1: float = 1.0
    std2: float = 1.0
    std3: float = 1.0
    clip: float = -1.0
    format: Format = "center"
    rows = "parallel"
    examples = (
        {"data": (2, 99, 4), "anchors": Sample((1, 99, 4), 0.2, 1), "std0": 0.1, "std1": 0.2, "std2": 0.3, "std3": 0.4},
        {"data": Sample((2, 99, 4), 0, 2), "anchors": Sample((1, 99, 4), 0.2, 1), "clip": 0.5, "format": "corner"},
    )

    def infer(self, s: Any) -> None:
        s.data = s.out = (UNKNOWN, UNKNOWN, 4)
        s.out = s.data
        s.data = s.out
        s.anchors = (1, s.data[1], 4)
        s.data = (UNKNOWN, s.anchors[1], 4)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def forward(self, xp: Any, data: Array, anchors: Array, out: Array) -> None:
        kind, bound = wide(out.dtype), self.clip if self.clip > 0 else None
        place, size = (anchors[0, :, :2].astype(kind), anchors[0, :, 2:].astype(kind))
        if self.format == "corner":
            size = size - place
            place = place + size * 0.5
        for i in range(data.shape[0]):
            decode(xp, data[i], place, size, (self.std0, self.std1, self.std2, self.std3), out[i], bound)


def decode(
    xp: Any, data: Array, place: Array, size: Array, scales: tuple[float, ...], out: Array, bound: float | None = None
) -> None:  # fmt: skip
    """``out`` (n, 4) = corners of the boxes off those of center ``place`` and ``size`` (n, 2) by ``data`` (n, 4)."""
    for axis in (0, 1):
        center = data[:, axis] * scales[axis] * size[:, axis] + place[:, axis]
        power = data[:, axis + 2].astype(place.dtype) * scales[axis + 2]
        half = xp.exp(power if bound is None else xp.minimum(power, bound)) * size[:, axis] * 0.5
        out[:, axis] = center - half
        out[:, axis + 2] = center + half
