"""Pooling of regions of interest: ROIPooling, and what it shares with ROIAlign.

A region is a row (image, x1, y1, x2, y2) in pixels of the input, times ``spatial_scale`` in those of data.
Regions of an image that is not there give 0 and pass no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating, check_pixels, check_sizes
from .precision import wide

Array = Any
BINS = 256  # bins of one step of ROIPooling
VALUES = 1 << 14  # gradients of one step
FAR = 1e6  # corners beyond are taken as this: a bin is cut to the image


def image_of(xp: Any, rois: Array, count: int) -> Array:
    """Number of the image of every region, ``count`` where there is none."""
    number = xp.trunc(rois[:, 0])
    return xp.where(xp.logical_and(number >= 0, number < count), number, count).astype("int64")


def regions_of(xp: Any, image: Array, number: int, step: int) -> Iterator[tuple[Array, Array]]:
    """Regions of one image, ``step`` at a time, and 1 for each; a device takes all, with 0 for those of others."""
    chosen = np.flatnonzero(image == number) if xp is np else xp.arange(image.shape[0])
    for first in range(0, chosen.shape[0], step):
        rows = chosen[first : first + step]
        yield rows, image[rows] == number


@register_op(aliases=("_npx_roi_pooling",))
class ROIPooling(Op):
    """``out`` (r, c, *pooled_size) = largest value of data (n, c, h, w) in every bin of the regions rois (r, 5).

    Corners times ``spatial_scale`` are rounded, halves away from 0, and belong to the region, which is a pixel at
    least. A bin goes from ``floor(i · size / pooled)`` to ``ceil((i + 1) · size / pooled)``, cut to the image; an empty
    one gives 0, and so does a region of an image that is not there. The gradient goes to the first largest value; a bin
    with a NaN gives NaN and passes none.
    """

    pooled_size: tuple[int, ...]
    spatial_scale: float
    no_gradient = ("rois",)
    hidden = ("index",)
    examples = (
        {"data": (2, 4, 12, 13), "rois": Sample((8, 5), 0, 1.9), "pooled_size": (2, 3), "spatial_scale": 6.5},
        {"data": (1, 4, 14, 14), "rois": Sample((5, 5), 0, 0.9), "pooled_size": (1, 1), "spatial_scale": 9.0},
    )

    def __post_init__(self) -> None:
        check_sizes(self, "pooled_size")

    def infer(self, s: Any) -> None:
        s.data, s.rois = (UNKNOWN,) * 4, (UNKNOWN, 5)
        s.out = (s.rois[0], s.data[1], *self.pooled_size)
        s.index = s.out
        s.rois, s.data = (s.out[0], 5), (UNKNOWN, s.out[1], UNKNOWN, UNKNOWN)
        check_pixels(s)

    def types(self, t: Any) -> None:
        t.same()
        t.index = "int32"
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        channels, height, width = s.data[1:]
        table, block = (height, width, channels), (BINS, channels)
        kind = s.dtype("data")
        return {
            "lines": (table, kind), "table": (table, kind), "first": (block, kind), "second": (block, kind),
            "line_at": (table, "int32"), "table_at": (table, "int32"), "first_at": (block, "int32"),
            "second_at": (block, "int32"), "places": ((_regions(s.out), *s.out[1:]), "int64"),
            "sums": (s.data if wide(kind) != kind else (0,), "float32"),
        }  # fmt: skip

    def _bins(self, xp: Any, rois: Array, axis: int, size: int) -> tuple[Array, Array]:
        """Start and end (r, pooled) of the bins of every region along y (0) or x (1), cut to [0, size]."""
        pooled, kind = self.pooled_size[axis], wide(rois.dtype)
        ends = [rois[:, 2 - axis + side].astype(kind) * self.spatial_scale for side in (0, 2)]
        ends = [xp.where(end == end, xp.clip(end, -FAR, FAR), -FAR) for end in ends]
        start, stop = (xp.copysign(xp.floor(xp.abs(end) + 0.5), end) for end in ends)
        step = xp.maximum(stop - start + 1, 1)[:, None] / pooled
        number, start = xp.arange(pooled).astype(kind), start[:, None]
        low, high = xp.floor(number * step) + start, xp.ceil((number + 1) * step) + start
        return tuple(xp.clip(end, 0, size).astype("int64") for end in (low, high))

    def forward(
        self, xp: Any, data: Array, rois: Array, out: Array, index: Array, lines: Temp, table: Temp,
        first: Temp, second: Temp, line_at: Temp, table_at: Temp, first_at: Temp, second_at: Temp,
    ) -> None:  # fmt: skip
        out.fill(0)
        index.fill(-1)
        if not out.size:
            return
        per_region = math.prod(self.pooled_size)
        height, width = data.shape[2:]
        image = image_of(xp, rois, data.shape[0])
        (top, bottom), (left, right) = self._bins(xp, rois, 0, height), self._bins(xp, rois, 1, width)
        bins = (rois.shape[0], *self.pooled_size)
        level_y, level_x = _level(xp, bottom - top), _level(xp, right - left)
        empty = xp.logical_or(level_y[:, :, None] < 0, level_x[:, None] < 0)
        level = xp.where(empty, -1, level_y[:, :, None] * 64 + level_x[:, None])
        spans = [xp.broadcast_to(span, bins).reshape(-1) for span in (
            top[:, :, None], bottom[:, :, None], left[:, None], right[:, None], image[:, None, None]
        )]  # fmt: skip
        flat = level.reshape(-1)
        goal, goal_at = (a.reshape(*a.shape[:2], per_region).transpose(0, 2, 1) for a in (out, index))
        for number in range(data.shape[0]):
            xp.copyto(lines, data[number].transpose(1, 2, 0))
            line_at[...] = (xp.arange(height)[:, None] * width + xp.arange(width))[:, :, None]
            for down in range(_levels(xp, level_y, height)):
                if down:
                    _merge(xp, lines, line_at, 0, 1 << (down - 1))
                xp.copyto(table, lines)
                xp.copyto(table_at, line_at)
                for along in range(_levels(xp, level_x, width)):
                    if along:
                        _merge(xp, table, table_at, 1, 1 << (along - 1))
                    mine = xp.logical_and(flat == down * 64 + along, spans[4] == number)
                    for part in _blocks(xp, mine):
                        y, bottom_y, x, right_x = (span[part] for span in spans[:4])
                        y2, x2 = bottom_y - (1 << down), right_x - (1 << along)
                        best, best_at = first[: part.shape[0]], first_at[: part.shape[0]]
                        best[...] = table[_in(xp, y, height), _in(xp, x, width)]
                        best_at[...] = table_at[_in(xp, y, height), _in(xp, x, width)]
                        for row, column in ((y, x2), (y2, x), (y2, x2)):
                            other = second[: part.shape[0]]
                            other[...] = table[_in(xp, row, height), _in(xp, column, width)]
                            other_at = second_at[: part.shape[0]]
                            other_at[...] = table_at[_in(xp, row, height), _in(xp, column, width)]
                            _choose(xp, best, best_at, other, other_at)
                            xp.maximum(best, other, out=best)
                        region, place = part // per_region, part % per_region
                        if xp is not np:
                            keep = mine[part][:, None]
                            best = xp.where(keep, best, goal[region, place])
                            best_at = xp.where(keep, best_at, goal_at[region, place])
                        goal[region, place] = best
                        goal_at[region, place] = xp.where(best == best, best_at, -1)

    def backward(self, xp: Any, dout: Array, rois: Array, index: Array, ddata: Array, places: Temp, sums: Temp) -> None:
        total = sums if sums.size else ddata
        total.fill(0)
        if not ddata.size:
            return
        count, channels, height, width = ddata.shape
        image = xp.minimum(image_of(xp, rois, count), count - 1)  # a region without an image has no index
        flat, start = total.reshape(-1), (xp.arange(channels) * (height * width))[:, None, None]
        for first in range(0, rois.shape[0], places.shape[0]):
            part = slice(first, min(first + places.shape[0], rois.shape[0]))
            where, none = places[: part.stop - first], index[part] < 0
            xp.add(index[part], start, out=where)
            xp.add(where, (image[part] * (channels * height * width))[:, None, None, None], out=where)
            xp.copyto(where, 0, where=none)
            given = xp.where(none, 0, dout[part])
            xp.add.at(flat, where.reshape(-1), given.reshape(-1).astype(flat.dtype))
        if total is not ddata:
            xp.copyto(ddata, total, casting="same_kind")


def _regions(out: tuple[int, ...]) -> int:
    """How many regions are gone over together."""
    return max(1, min(out[0], VALUES // max(1, math.prod(out[1:]))))


def _level(xp: Any, length: Array) -> Array:
    """The largest k with ``2**k <= length``; -1 for none."""
    level = xp.full(length.shape, -1)
    for k in range(31):
        level = xp.where(length >= 1 << k, k, level)
    return level


def _levels(xp: Any, level: Array, size: int) -> int:
    """How many levels there are; a device, which alone knows the largest, goes through all that there can be."""
    return int(level.max()) + 1 if xp is np else size.bit_length()


def _in(xp: Any, place: Array, size: int) -> Array:
    return place if xp is np else xp.clip(place, 0, size - 1)  # a device also looks for bins of other levels


def _blocks(xp: Any, mine: Array) -> Iterator[Array]:
    """Numbers of the chosen bins, block by block; on a device of all."""
    chosen = np.flatnonzero(mine) if xp is np else xp.arange(mine.shape[0])
    return (chosen[i : i + BINS] for i in range(0, chosen.shape[0], BINS))


def _merge(xp: Any, values: Array, at: Array, axis: int, step: int) -> None:
    """Every value becomes the largest of itself and the one ``step`` further on; ``at`` says where it was."""
    lines, lines_at = (values, at) if axis == 0 else (values.transpose(1, 0, 2), at.transpose(1, 0, 2))
    for i in range(lines.shape[0] - step):  # line by line, so that nothing is read that was written before
        _choose(xp, lines[i], lines_at[i], lines[i + step], lines_at[i + step])
        xp.maximum(lines[i], lines[i + step], out=lines[i])


def _choose(xp: Any, best: Array, best_at: Array, other: Array, other_at: Array) -> None:
    """``best_at`` = where the larger of both is, the smaller place of equal ones."""
    larger = xp.logical_or(other > best, xp.logical_and(other == best, other_at < best_at))
    xp.copyto(best_at, other_at, where=larger)
