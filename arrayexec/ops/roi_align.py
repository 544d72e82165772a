"""Pooling of regions by weights: ROIAlign.

A bin is ``Σ wy[y] · wx[x] · data[y, x]``: what a region takes of a row of pixels does not depend on the column. So
pooling is two matrix products, and its gradient their transposes. A value of data that is not finite makes every bin
that reads its channel NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating, check_pixels, check_sizes
from .precision import wide
from .roi import image_of, regions_of

Array = Any
MOST = 1024  # samples of a bin on a side: its mean no longer changes
VALUES = 1 << 21  # values of the largest array of one step: products of many rows are fast ones
OWN = 1 << 14  # the same where bins have channels of their own


def weighted_temps(data: tuple[int, ...], pooled: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    """Scratch of :func:`pool` and :func:`pool_back` for data (n, c, h, w)."""
    _, channels, height, width = data
    count = max(1, min(256, VALUES // max(1, pooled[0] * width * channels)))
    flat = {
        "pixels": (height, width, channels), "share": (height, width, channels),
        "across": (count, pooled[0], width, channels), "bins": (count, *pooled, channels),
    }  # fmt: skip
    return {name: (shape, wide(dtype)) for name, shape in flat.items()}


def pool(
    xp: Any, data: Array, image: Array, wy: Array, wx: Array, out: Array, pixels: Array, across: Array, bins: Array
) -> None:
    """``out`` (r, c, p, q) = data (n, c, h, w) under wy (r, p, h) and wx (r, q, w), regions of ``image`` (r,)."""
    out.fill(0)
    for number in range(data.shape[0]):
        xp.copyto(pixels, data[number].transpose(1, 2, 0))
        for rows, own in regions_of(xp, image, number, bins.shape[0]):
            lines, part = across[: rows.shape[0]], bins[: rows.shape[0]]
            _along_y(xp, wy[rows] * own[:, None, None], pixels, lines)
            xp.matmul(wx[rows][:, None], lines, out=part)
            out[rows] += part.transpose(0, 3, 1, 2)


def _along_y(xp: Any, weights: Array, pixels: Array, lines: Array) -> None:
    height, width, channels = pixels.shape
    flat = (math.prod(lines.shape[:2]), width * channels)
    xp.matmul(weights.reshape(flat[0], height), pixels.reshape(height, flat[1]), out=lines.reshape(flat))


def pool_back(
    xp: Any, dout: Array, image: Array, wy: Array, wx: Array, ddata: Array,
    pixels: Array, share: Array, across: Array, bins: Array,
) -> None:  # fmt: skip
    """``ddata`` = gradient of :func:`pool`."""
    height, width, channels = pixels.shape
    for number in range(ddata.shape[0]):
        pixels.fill(0)
        for rows, own in regions_of(xp, image, number, bins.shape[0]):
            lines, part = across[: rows.shape[0]], bins[: rows.shape[0]]
            xp.copyto(part, dout[rows].transpose(0, 2, 3, 1))
            xp.matmul((wx[rows] * own[:, None, None]).transpose(0, 2, 1)[:, None], part, out=lines)
            count = math.prod(lines.shape[:2])
            flat = (height, width * channels)
            xp.matmul(wy[rows].reshape(count, height).T, lines.reshape(count, flat[1]), out=share.reshape(flat))
            xp.add(pixels, share, out=pixels)
        xp.copyto(ddata[number], pixels.transpose(2, 0, 1), casting="same_kind")


def pool_own(
    xp: Any, data: Array, image: Array, wy: Array, wx: Array, out: Array, groups: Sequence[int] | None = None
) -> None:
    """As :func:`pool`, but every bin has channels of its own: data (n, c, p, q, h, w).

    ``groups``: which of them each p and q reads, if they are fewer than the bins or more.
    """
    at = range(max(out.shape[2:])) if groups is None else groups
    out.fill(0)
    channels, height = data.shape[1], data.shape[4]
    step = max(1, OWN // max(1, channels * height))
    for number in range(data.shape[0]):
        for rows, own in regions_of(xp, image, number, step):
            for p in range(out.shape[2]):
                weights = (wy[rows, p] * own[:, None]).T
                for q in range(out.shape[3]):
                    lines = xp.matmul(data[number, :, at[p], at[q]], wx[rows, q].T)
                    xp.multiply(lines, weights, out=lines)
                    out[rows, :, p, q] += xp.sum(lines, axis=1).T


def pool_own_back(
    xp: Any, dout: Array, image: Array, wy: Array, wx: Array, ddata: Array, groups: Sequence[int] | None = None
) -> None:
    """``ddata`` = gradient of :func:`pool_own`."""
    at = range(max(dout.shape[2:])) if groups is None else groups
    ddata.fill(0)
    channels, height = ddata.shape[1], ddata.shape[4]
    step = max(1, OWN // max(1, channels * height))
    for number in range(ddata.shape[0]):
        for rows, own in regions_of(xp, image, number, step):
            for p in range(dout.shape[2]):
                weights = (wy[rows, p] * own[:, None]).T
                for q in range(dout.shape[3]):
                    lines = dout[rows, :, p, q].T[:, None] * weights
                    ddata[number, :, at[p], at[q]] += xp.matmul(lines, wx[rows, q])


@register_op(name="_contrib_ROIAlign", aliases=("ROIAlign",))
class ROIAlign(Op):
    """``out`` (r, c, *pooled_size) = mean of bilinear samples of data (n, c, h, w) in every bin of rois (r, 5).

    Corners times ``spatial_scale`` (minus half a pixel with ``aligned``) are not rounded; a region is at least 1 × 1
    without ``aligned``. A bin has ``sample_ratio`` (at most 1,024) samples a side, or one for every pixel begun if that
    is not positive; a sample more than a pixel outside of [0, h] × [0, w] is 0, else it is moved into the image. With
    ``position_sensitive`` data has c · bins channels and every bin its own. A region of an image that is not there
    gives 0, a value that is not finite makes every bin of its channel NaN. rois have no gradient.
    """

    pooled_size: tuple[int, ...]
    spatial_scale: float
    sample_ratio: int = -1
    position_sensitive: bool = False
    aligned: bool = False
    no_gradient = ("rois",)
    examples = (
        {"data": (2, 6, 12, 13), "rois": Sample((6, 5), 0, 1.9), "pooled_size": (3, 2), "spatial_scale": 6.5},
        {"data": (2, 12, 12, 13), "rois": Sample((4, 5), 0, 1.9), "pooled_size": (2, 2), "spatial_scale": 6.5,
         "sample_ratio": 2, "position_sensitive": True, "aligned": True},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_sizes(self, "pooled_size")
        if self.sample_ratio > MOST:
            raise AttributeValueError(
                f"_contrib_ROIAlign: attribute 'sample_ratio' must be at most {MOST}, but it is {self.sample_ratio}"
            )

    def infer(self, s: Any) -> None:
        s.data, s.rois, s.out = (UNKNOWN,) * 4, (UNKNOWN, 5), (UNKNOWN, UNKNOWN, *self.pooled_size)
        bins = math.prod(self.pooled_size) if self.position_sensitive else 1
        if s.data[1] is not UNKNOWN and s.data[1] % bins:
            s.fail("data", f"must have a multiple of {bins} channels, but it is {format_shape(s.data)}")
        s.out = (s.rois[0], s.data[1] // bins, *self.pooled_size)
        s.rois, s.data = (s.out[0], 5), (UNKNOWN, s.out[1] * bins, UNKNOWN, UNKNOWN)
        check_pixels(s)

    def types(self, t: Any) -> None:
        t.same()
        t.rois = t.data
        t.data = t.rois
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        shape = (0, 0, 0, 0) if self.position_sensitive else s.data
        return weighted_temps(shape, self.pooled_size, s.dtype("data"))

    def _weights(self, xp: Any, rois: Array, axis: int, size: int) -> Array:
        """What every bin (r, pooled) takes of the pixels along y (0) or x (1): (r, pooled, size)."""
        kind, pooled = wide(rois.dtype), self.pooled_size[axis]
        start, stop = (rois[:, 2 - axis + side].astype(kind) * self.spatial_scale for side in (0, 2))
        length = stop - start
        if self.aligned:
            start = start - 0.5
        else:
            length = xp.maximum(length, 1)
        step = length / pooled
        adaptive = self.sample_ratio <= 0
        samples = xp.maximum(xp.ceil(step), 0) if adaptive else xp.full(step.shape, self.sample_ratio, kind)
        samples = xp.where(samples == samples, samples, 0)
        gap = (step / xp.maximum(samples, 1))[:, None]
        low = start[:, None] + xp.arange(pooled).astype(kind) * step[:, None]
        # samples before the image give nothing: begin with the first that does, so that they are never more than 2h + 4
        skip = xp.where(gap > 0, xp.floor((-1 - low) / xp.where(gap > 0, gap, 1) - 0.5), 0)
        skip = xp.clip(skip, 0, xp.maximum(samples[:, None] - 1, 0))
        pixels, total = xp.arange(size).astype(kind), xp.zeros((*low.shape, size), kind)
        most = self._most(xp, samples, size)
        for i in range(most):
            number = skip + i
            at = low + (number + 0.5) * gap
            there = (at >= -1) & (at <= size) & (number < samples[:, None])
            near = xp.clip(xp.where(there, at, 0), 0, size - 1)
            total += xp.maximum(1 - xp.abs(near[..., None] - pixels), 0) * there[..., None]
        return total / xp.maximum(samples, 1)[:, None, None]

    def _most(self, xp: Any, samples: Array, size: int) -> int:
        """Samples of a bin that may lie in the image: gaps are at least half a pixel, or as many as sample_ratio."""
        if self.sample_ratio > 0:
            return self.sample_ratio
        bound = 2 * size + 6
        return int(min(bound, samples.max(initial=0))) if xp is np else bound

    def _split(self, data: Array) -> Array:
        """``data`` with axes for the bins."""
        count, channels, height, width = data.shape
        return data.reshape(count, channels // math.prod(self.pooled_size), *self.pooled_size, height, width)

    def forward(
        self, xp: Any, data: Array, rois: Array, out: Array, pixels: Temp, across: Temp, bins: Temp
    ) -> None:  # fmt: skip
        weights = (self._weights(xp, rois, 0, data.shape[2]), self._weights(xp, rois, 1, data.shape[3]))
        image = image_of(xp, rois, data.shape[0])
        if self.position_sensitive:
            pool_own(xp, self._split(data), image, *weights, out)
        else:
            pool(xp, data, image, *weights, out, pixels, across, bins)

    def backward(
        self, xp: Any, dout: Array, rois: Array, ddata: Array, pixels: Temp, share: Temp, across: Temp, bins: Temp
    ) -> None:  # fmt: skip
        weights = (self._weights(xp, rois, 0, ddata.shape[2]), self._weights(xp, rois, 1, ddata.shape[3]))
        image = image_of(xp, rois, ddata.shape[0])
        if self.position_sensitive:
            pool_own_back(xp, dout, image, *weights, self._split(ddata))
        else:
            pool_back(xp, dout, image, *weights, ddata, pixels, share, across, bins)
