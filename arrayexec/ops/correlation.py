"""Correlation of two images: how alike the patches around two places are, for every displacement between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import AttributeValueError
from ..registry import Op, Temp, register_op
from .checks import check_floating, check_least
from .norm import spans
from .precision import wide
from .windows import check_filled, is_known

Array = Any
BLOCK = 1 << 16  # values of an image that are gone through at once


@register_op
class Correlation(Op):
    """``out[n, d, i, j]`` = mean over channels and a square of ``data1 · data2``, the second displaced by d.

    data1, data2 (n, c, h, w), both padded with ``pad_size`` zeros; squares of ``kernel_size`` (odd) lie ``stride1``
    apart; displacements go from ``-r·stride2`` to ``r·stride2`` down (slow) and across (fast) with
    ``r = max_displacement // stride2``. out (n, (2r + 1)², H, W), where H is
    ``⌈(h + 2·pad_size - 2·max_displacement - kernel_size + 1) / stride1⌉``. With ``is_multiply=False`` it is the mean
    of ``|data1 - data2|``, whose gradient takes equal values for a larger data1.
    """

    kernel_size: int = 1
    max_displacement: int = 1
    stride1: int = 1
    stride2: int = 1
    pad_size: int = 0
    is_multiply: bool = True
    rows = "parallel"
    examples = (
        {"data1": (2, 2, 9, 8)},
        {"data1": (1, 2, 10, 11), "kernel_size": 3, "max_displacement": 3, "stride1": 2, "stride2": 2, "pad_size": 2},
        {"data1": (2, 1, 7, 9), "max_displacement": 2, "stride1": 3, "pad_size": 1, "is_multiply": False},
    )

    def __post_init__(self) -> None:
        check_least(self, "kernel_size", "stride1", "stride2")
        check_least(self, "max_displacement", "pad_size", least=0)
        if self.kernel_size % 2 == 0:
            raise AttributeValueError(
                f"Correlation: attribute 'kernel_size' must be odd, but it is {self.kernel_size}"
            )

    def total_outputs(self) -> int:
        return 3  # the files count both padded images

    @property
    def _radius(self) -> int:
        return self.max_displacement // self.stride2

    @property
    def _lost(self) -> int:
        """How much longer an image is than the positions of a square in it."""
        return 2 * (self.max_displacement - self.pad_size) + self.kernel_size - 1

    def infer(self, s: Any) -> None:
        s.data1 = s.data2 = (UNKNOWN,) * 4
        s.data1 = s.data2
        s.data2 = s.data1
        check_filled(s, "data1")
        batch, _, *sizes = s.data1
        for axis, size in enumerate(sizes):
            if is_known(size) and size <= self._lost:
                s.fail("data1", f"must be at least {self._lost + 1} long on spatial axis {axis}, but it is {size}")
        out = [-(-(size - self._lost) // self.stride1) for size in sizes]
        s.out = (batch, (2 * self._radius + 1) ** 2, *out)
        known = [length + self._lost if self.stride1 == 1 else UNKNOWN for length in s.out[2:]]
        s.data1 = s.data2 = (s.out[0], UNKNOWN, *known)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data1")

    def temps(self, s: Any) -> Mapping[str, tuple[tuple[int, ...], Any]]:
        sums, (images, channels, height, width) = wide(s.dtype("data1")), s.data1
        image = (height + 2 * self.pad_size, width + 2 * self.pad_size, channels)
        plane = tuple(self._reach(length) for length in s.out[2:])
        block = max(1, min(images, BLOCK // math.prod(image)))
        padded = dict.fromkeys(("padded1", "padded2", "dpadded1", "dpadded2"), ((block, *image), sums))
        shapes = {"item": (block, *plane, channels), "plane": (block, *plane), "total": (block, *s.out[2:])}
        return {**padded, **{name: (shape, sums) for name, shape in shapes.items()}}

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        if not self.is_multiply:
            return ("data1", "data2")
        return [name for name, user in (("data2", "data1"), ("data1", "data2")) if user in want]

    def _reach(self, length: int) -> int:
        """Lines from the first square to the last, or the squares themselves where they are single places."""
        return length if self.kernel_size == 1 else (length - 1) * self.stride1 + self.kernel_size

    def _patches(self, plane: tuple[int, ...]) -> Iterator[tuple[int, Any, Any]]:
        """For every displacement: its number, the places of the squares in the first image, and in the second."""
        step = self.stride1 if self.kernel_size == 1 else 1
        first = [self.max_displacement] * 2
        steps = [i * self.stride2 for i in range(-self._radius, self._radius + 1)]

        def places(starts: Iterable[int]) -> Any:
            spans = (slice(i, i + (n - 1) * step + 1, step) for i, n in zip(starts, plane, strict=True))
            return (slice(None), *spans)

        plane = plane[-2:]
        for number, move in enumerate(combinations(steps, steps)):
            yield number, places(first), places(a + b for a, b in zip(first, move, strict=True))

    def _taps(self, plane: Array, shape: tuple[int, ...]) -> Iterator[Array]:
        """Views of ``plane``: for every place of a square, all squares' values there."""
        step = self.stride1 if self.kernel_size > 1 else 1
        for starts in combinations(range(self.kernel_size), range(self.kernel_size)):
            spans = (slice(i, i + (n - 1) * step + 1, step) for i, n in zip(starts, shape[-2:], strict=True))
            yield plane[(..., *spans)]

    def _fill(self, xp: Any, image: Array, padded: Array) -> None:
        padded.fill(0)
        xp.copyto(self._inner(padded), image)

    def _inner(self, padded: Array) -> Array:
        """The part of padded images (n, h, w, c) that is no padding, as (n, c, h, w)."""
        pad = self.pad_size
        inner = padded[:, pad : padded.shape[1] - pad, pad : padded.shape[2] - pad]
        return inner.transpose(0, 3, 1, 2)

    def _compare(self, xp: Any, one: Array, two: Array, both: Array, lines: Array) -> None:
        """``lines`` (n, h, w) = products or distances of two images (n, h, w, c), summed over channels."""
        if self.is_multiply and xp is np:
            xp.einsum("nhwc,nhwc->nhw", one, two, out=lines)  # neighbours in memory, nothing written in between
            return
        if self.is_multiply:
            xp.multiply(one, two, out=both)
        else:
            xp.subtract(one, two, out=both)
            xp.absolute(both, out=both)
        xp.sum(both, axis=-1, out=lines)

    def forward(
        self, xp: Any, data1: Array, data2: Array, out: Array,
        padded1: Temp, padded2: Temp, item: Temp, plane: Temp, total: Temp,
    ) -> None:  # fmt: skip
        share = 1 / (self.kernel_size**2 * data1.shape[1])
        for images in spans(data1.shape[0], total.shape[0]):
            count = images.stop - images.start
            one, two, both, lines, sums = (array[:count] for array in (padded1, padded2, item, plane, total))
            self._fill(xp, data1[images], one)
            self._fill(xp, data2[images], two)
            for number, first, second in self._patches(plane.shape):
                self._compare(xp, one[first], two[second], both, lines)
                sums.fill(0)
                for tap in self._taps(lines, sums.shape):
                    xp.add(sums, tap, out=sums)
                xp.multiply(sums, share, out=sums)
                xp.copyto(out[images, number], sums)

    def backward(
        self, xp: Any, dout: Array, data1: Array, data2: Array, ddata1: Array, ddata2: Array,
        padded1: Temp, padded2: Temp, dpadded1: Temp, dpadded2: Temp, item: Temp, plane: Temp, total: Temp,
    ) -> None:  # fmt: skip
        share = 1 / (self.kernel_size**2 * padded1.shape[-1])
        for images in spans(dout.shape[0], total.shape[0]):
            count = images.stop - images.start
            one, two, done, dtwo = (array[:count] for array in (padded1, padded2, dpadded1, dpadded2))
            both, lines, sums = (array[:count] for array in (item, plane, total))
            for data, padded, dpadded in ((data1, one, done), (data2, two, dtwo)):
                dpadded.fill(0)
                if data is not None:
                    self._fill(xp, data[images], padded)
            for number, first, second in self._patches(plane.shape):
                xp.multiply(dout[images, number], share, out=sums)
                lines.fill(0)
                for tap in self._taps(lines, sums.shape):
                    xp.add(tap, sums, out=tap)
                given = lines[..., None]
                if not self.is_multiply:
                    xp.subtract(one[first], two[second], out=both)
                    xp.add(both, 0.0, out=both)  # equal values count as a difference above 0, negative zeros too
                    xp.copysign(1, both, out=both)
                    xp.multiply(both, given, out=both)
                    xp.add(done[first], both, out=done[first])
                    xp.subtract(dtwo[second], both, out=dtwo[second])
                    continue
                if ddata1 is not None:
                    xp.multiply(two[second], given, out=both)
                    xp.add(done[first], both, out=done[first])
                if ddata2 is not None:
                    xp.multiply(one[first], given, out=both)
                    xp.add(dtwo[second], both, out=dtwo[second])
            for target, dpadded in ((ddata1, done), (ddata2, dtwo)):
                if target is not None:
                    xp.copyto(target[images], self._inner(dpadded))
