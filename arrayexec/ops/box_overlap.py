"""Boxes that overlap: intersection over union in blocks; greedy suppression and matching, many boxes at once.

Boxes are arrays (6, n): x1, y1, x2, y2, area, group. Boxes that do not meet overlap by 0, also empty ones; a NaN
coordinate gives a NaN, which is above no threshold: such a box strikes nobody and is struck by nobody.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .bounds import at_least
from .precision import wide

Array = Any
BLOCK, CHUNK = 64, 512  # pairs of boxes that are looked at together: three arrays of them stay in the cache


def overlap_temps(dtype: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Scratch of :class:`Suppression` and :func:`overlap`."""
    return {"pairs": ((3, BLOCK, CHUNK), wide(dtype)), "over": ((2, BLOCK, CHUNK), "bool")}


def overlap(xp: Any, a: Array, b: Array, pairs: Array, extra: float = 0.0) -> Array:
    """Intersection over union of boxes a (5, m) and b (5, n): (m, n), lying in ``pairs``.

    ``extra`` is added to width and height: 1 where the corners are pixels that belong to the box.
    """
    shape = a.shape[1], b.shape[1]
    both, side, scratch = (pairs[i].reshape(-1)[: math.prod(shape)].reshape(shape) for i in range(3))
    for axis, length in ((0, both), (1, side)):
        xp.minimum(a[axis + 2, :, None], b[axis + 2], out=length)
        xp.maximum(a[axis, :, None], b[axis], out=scratch)
        xp.subtract(length, scratch, out=length)
        if extra:
            xp.add(length, extra, out=length)
        at_least(xp, length, 0, length)
    xp.multiply(both, side, out=both)
    xp.add(a[4, :, None], b[4], out=scratch)
    xp.subtract(scratch, both, out=scratch)
    at_least(xp, scratch, float(xp.finfo(scratch.dtype).tiny), scratch)  # two empty boxes: 0, not 0/0
    return xp.divide(both, scratch, out=both)


class Suppression:
    """Greedy non-maximum suppression: a box falls if an earlier one that is left overlaps it too much.

    ``too_much`` is ``xp.greater`` or ``xp.greater_equal``; with ``grouped`` boxes of one group only meet.
    """

    def __init__(self, xp: Any, too_much: Any, threshold: float, grouped: bool, extra: float = 0.0) -> None:
        self.xp, self.too_much, self.threshold, self.grouped, self.extra = xp, too_much, threshold, grouped, extra

    def __call__(self, boxes: Array, alive: Array, pairs: Array, over: Array, limit: int | None = None) -> None:
        """``alive`` (n,) keeps what is left of the boxes (6, n), best first; at least the first ``limit`` are right.

        The same as one box after the other: inside a block the fixpoint of "nobody left before me overlaps me", whose
        rounds are as many as its longest chain; then the block strikes all behind it.
        """
        xp, count = self.xp, alive.shape[0]
        if xp is not np:  # a device goes over all places: how many boxes are left, only the device knows
            for start in range(0, count, BLOCK):
                block = boxes[:, start : start + BLOCK]
                kept = self._block(block, alive[start : start + BLOCK], pairs, over)
                xp.copyto(alive[start : start + BLOCK], kept)
                for first in range(start + BLOCK, count, CHUNK):
                    hit = self._over(block, boxes[:, first : first + CHUNK], pairs, over)
                    xp.logical_and(hit, kept[:, None], out=hit)
                    behind = alive[first : first + CHUNK]
                    xp.logical_and(behind, ~xp.any(hit, axis=0), out=behind)
            return
        places, left = np.flatnonzero(alive), 0
        boxes = boxes[:, places]
        alive.fill(False)
        while places.size and (limit is None or left < limit):
            block = boxes[:, :BLOCK]
            kept = self._block(block, np.ones(block.shape[1], bool), pairs, over)
            alive[places[:BLOCK][kept]] = True
            left += int(np.count_nonzero(kept))
            block, places, boxes = block[:, kept], places[BLOCK:], boxes[:, BLOCK:]
            free = np.ones(places.size, bool)
            for first in range(0, places.size, CHUNK):
                hit = self._over(block, boxes[:, first : first + CHUNK], pairs, over)
                np.logical_not(np.any(hit, axis=0), out=free[first : first + CHUNK])
            places, boxes = places[free], boxes[:, free]

    def _over(self, a: Array, b: Array, pairs: Array, over: Array) -> Array:
        """Which pairs overlap too much: (m, n)."""
        xp, shape = self.xp, (a.shape[1], b.shape[1])
        hit, same = (over[i].reshape(-1)[: math.prod(shape)].reshape(shape) for i in range(2))
        self.too_much(overlap(xp, a, b, pairs, self.extra), self.threshold, out=hit)
        if self.grouped:
            xp.equal(a[5, :, None], b[5], out=same)
            xp.logical_and(hit, same, out=hit)
        return hit

    def _block(self, block: Array, alive: Array, pairs: Array, over: Array) -> Array:
        """Which boxes of one block are left: (n,)."""
        xp = self.xp
        earlier = xp.triu(self._over(block, block, pairs, over), 1)
        kept = alive
        for _ in range(block.shape[1]):
            now = xp.logical_and(alive, ~xp.any(xp.logical_and(earlier, kept[:, None]), axis=0))
            if xp is np and np.array_equal(now, kept):
                break
            kept = now
        return kept


def match(xp: Any, work: Array, limit: float = -math.inf) -> Array:
    """Greedy matching: the column of every row, -1 for none: (r,) int64, from values (r + 1, c + 1), which are spoilt.

    The last row and column of ``work`` are -inf; what is at most ``limit`` is not matched. Largest first; of equal
    values the first row or column. A pair that is the best of its row and of its column is matched whatever else is, so
    all such pairs are matched at once, again and again.
    """
    rows, columns = work.shape[0] - 1, work.shape[1] - 1
    row, found = xp.arange(rows), xp.full((rows,), -1)
    for _ in range(min(rows, columns)):
        best = xp.argmax(work[:rows], axis=1)
        rival = xp.argmax(xp.take(work[:rows], best, axis=1), axis=0)
        won = xp.logical_and(rival == row, work[row, best] > limit)
        if xp is np and not won.any():
            break
        found = xp.where(won, best, found)
        work[:, xp.where(won, best, columns)] = -math.inf
        work[xp.where(won, row, rows)] = -math.inf
    return found
