"""Sampling images at places that are computed: BilinearSampler, GridGenerator, SpatialTransformer.

A grid (n, 2, h, w) holds x and y: -1 is the center of the first pixel of an axis, 1 that of the last. Outside is 0.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from ..dims import ANY, UNKNOWN
from ..registry import Op, Sample, Temp, register_op
from .checks import check_floating, check_pixels, check_sizes
from .index import gather
from .precision import wide

Array = Any


def sampler_temps(s: Any, grid: tuple[int, ...]) -> dict[str, Any]:
    """Scratch of :func:`sample` and :func:`sample_back`, for one image."""
    kind, channels, points = wide(s.dtype("data")), s.data[1], math.prod(grid[2:])
    flat = {"share": (6, points), "corner": (channels, points), "total": (channels, points), "image": s.data[1:]}
    return {**{name: (shape, kind) for name, shape in flat.items()}, "place": ((4, points), "int64")}


def _corners(xp: Any, grid: Array, height: int, width: int, place: Array, share: Array) -> None:
    """The four pixels around every point and their shares; ``share[4:]`` = parts of the way to the second ones."""
    points = share.shape[1]
    low, inside = xp.empty((2, points), share.dtype), xp.empty((2, 2, points), "bool")
    for axis, length in ((0, width), (1, height)):
        part = share[4 + axis]
        xp.copyto(part, grid[axis].reshape(points))  # 16-bit places are too coarse to be reckoned with
        xp.add(part, 1, out=part)
        xp.multiply(part, (length - 1) / 2, out=part)
        xp.floor(part, out=low[axis])
        xp.subtract(part, low[axis], out=part)
        xp.copyto(part, 0, where=part != part)  # of a place that is no number
        for side in (0, 1):
            at = low[axis] + side
            inside[axis, side] = xp.logical_and(at >= 0, at <= length - 1)
    first = xp.where(low == low, xp.clip(low, -2, max(height, width)), -2).astype("int64")
    for corner in range(4):
        down, right = divmod(corner, 2)
        x = share[4] if right else 1 - share[4]
        y = share[5] if down else 1 - share[5]
        there = xp.logical_and(inside[0, right], inside[1, down])
        xp.multiply(x, y, out=share[corner])
        xp.copyto(share[corner], 0, where=~there)
        row, column = xp.clip(first[1] + down, 0, height - 1), xp.clip(first[0] + right, 0, width - 1)
        xp.add(row * width, column, out=place[corner])


def sample(
    xp: Any, data: Array, grid: Array, out: Array, place: Array, share: Array, corner: Array, total: Array, image: Array
) -> None:
    """``out`` (c, points) = data (c, h, w) at grid (2, …), bilinear; zeros outside."""
    _corners(xp, grid, data.shape[1], data.shape[2], place, share)
    xp.copyto(image, data)
    pixels = image.reshape(image.shape[0], math.prod(image.shape[1:]))
    total.fill(0)
    for i in range(4):
        gather(xp, pixels, place[i], 1, corner)
        xp.multiply(corner, share[i], out=corner)
        xp.add(total, corner, out=total)
    xp.copyto(out, total, casting="same_kind")


def sample_back(
    xp: Any, dout: Array, data: Array, grid: Array, ddata: Array, dgrid: Array,
    place: Array, share: Array, corner: Array, total: Array, image: Array,
) -> None:  # fmt: skip
    """Gradients of :func:`sample`; ``ddata`` (c, h, w) or ``dgrid`` (2, …) may be None."""
    channels, height, width = data.shape
    _corners(xp, grid, height, width, place, share)
    if ddata is not None:
        pixels = image.reshape(-1)
        pixels.fill(0)
        start = (xp.arange(channels) * (height * width))[:, None]
        for i in range(4):
            xp.multiply(dout, share[i], out=corner)
            for c in range(channels):
                xp.add.at(pixels, place[i] + start[c], corner[c])
        xp.copyto(ddata, image, casting="same_kind")
    if dgrid is not None:
        xp.copyto(image, data)
        pixels = image.reshape(channels, height * width)
        slope = xp.zeros((2, share.shape[1]), share.dtype)
        right, down = share[4], share[5]
        for i in range(4):
            gather(xp, pixels, place[i], 1, corner)
            xp.multiply(corner, dout, out=corner)
            inner = xp.sum(corner, axis=0)
            xp.copyto(inner, 0, where=~_inside(xp, grid, i, height, width))
            slope[0] += inner * ((down if i >= 2 else 1 - down) * (1 if i % 2 else -1))
            slope[1] += inner * ((right if i % 2 else 1 - right) * (1 if i >= 2 else -1))
        for axis, length in ((0, width), (1, height)):
            dgrid[axis] = (slope[axis] * ((length - 1) / 2)).reshape(dgrid.shape[1:])


def _inside(xp: Any, grid: Array, corner: int, height: int, width: int) -> Array:
    """Whether this corner of every point lies in the image."""
    down, right = divmod(corner, 2)
    there = None
    for axis, length, step in ((0, width, right), (1, height, down)):
        at = xp.floor((grid[axis].reshape(-1).astype(wide(grid.dtype)) + 1) * ((length - 1) / 2)) + step
        here = xp.logical_and(at >= 0, at <= length - 1)
        there = here if there is None else xp.logical_and(there, here)
    return there


def affine_grid(xp: Any, theta: Array, grid: Array) -> None:
    """``grid`` (n, 2, h, w) = theta (n, 6), as (2, 3) matrices, times (x, y, 1) of every output pixel."""
    x, y = _axis(xp, grid.shape[3], grid.dtype), _axis(xp, grid.shape[2], grid.dtype)[:, None]
    for i in range(grid.shape[0]):
        for axis in (0, 1):
            a, b, c = (theta[i, 3 * axis + k, None] for k in range(3))
            xp.add(a * x, b * y + c, out=grid[i, axis], casting="same_kind")


def affine_back(xp: Any, dgrid: Array, dtheta: Array) -> None:
    """Gradient of :func:`affine_grid`."""
    x, y = _axis(xp, dgrid.shape[3], dtheta.dtype), _axis(xp, dgrid.shape[2], dtheta.dtype)
    for i in range(dgrid.shape[0]):
        for axis in (0, 1):
            columns = xp.sum(dgrid[i, axis], axis=0, dtype=x.dtype)
            dtheta[i, 3 * axis] = xp.sum(columns * x)
            dtheta[i, 3 * axis + 1] = xp.sum(xp.sum(dgrid[i, axis], axis=1, dtype=x.dtype) * y)
            dtheta[i, 3 * axis + 2] = xp.sum(columns)


def _axis(xp: Any, length: int, dtype: Any) -> Array:
    """Places of ``length`` pixels between -1 and 1; one alone lies at -1."""
    return (xp.arange(length) * (2 / (length - 1) if length > 1 else 0) - 1).astype(wide(dtype))


@register_op
class BilinearSampler(Op):
    """``out`` (n, c, h', w') = data (n, c, h, w) at grid (n, 2, h', w'), bilinear between pixels, zeros outside.

    A grid value of NaN or infinity lies outside. At a pixel's very center the gradient of grid is that to its right.
    """

    cudnn_off: bool | None = None
    hints = ("cudnn_off",)
    rows = "parallel"
    examples = ({"data": (2, 3, 14, 16), "grid": Sample((2, 2, 12, 13), -1.2, 1.2)},)

    def infer(self, s: Any) -> None:
        s.data = s.out = (UNKNOWN,) * 4
        s.grid = (s.data[0], 2, *s.out[2:])
        s.out = (s.grid[0], s.data[1], *s.grid[2:])
        s.data = (*s.out[:2], UNKNOWN, UNKNOWN)
        s.grid = (s.out[0], 2, *s.out[2:])
        check_pixels(s)

    def total_outputs(self) -> int:
        return 2  # the files count a workspace

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def temps(self, s: Any) -> dict[str, Any]:
        return sampler_temps(s, s.grid)

    def forward(
        self, xp: Any, data: Array, grid: Array, out: Array,
        place: Temp, share: Temp, corner: Temp, total: Temp, image: Temp,
    ) -> None:  # fmt: skip
        for i in range(data.shape[0]):
            sample(xp, data[i], grid[i], out[i].reshape(total.shape), place, share, corner, total, image)

    def backward(
        self, xp: Any, dout: Array, data: Array, grid: Array, ddata: Array, dgrid: Array,
        place: Temp, share: Temp, corner: Temp, total: Temp, image: Temp,
    ) -> None:  # fmt: skip
        for i in range(data.shape[0]):
            into, onto = (None if array is None else array[i] for array in (ddata, dgrid))
            head = dout[i].reshape(total.shape)
            sample_back(xp, head, data[i], grid[i], into, onto, place, share, corner, total, image)


@register_op
class GridGenerator(Op):
    """``out`` (n, 2, h, w) = places to sample: of data (n, 6) on ``target_shape``, or of a flow (n, 2, h, w).

    ``affine``: the matrix [[a, b, c], [d, e, f]] times (x, y, 1), x and y going from -1 to 1 over the target;
    a single row or column lies at -1.
    ``warp``: pixel + flow, in pixels, scaled to [-1, 1].
    """

    transform_type: Literal["affine", "warp"]
    target_shape: tuple[int, ...] = (0, 0)
    rows = "parallel"
    examples = (
        {"data": (2, 6), "transform_type": "affine", "target_shape": (12, 13)},
        {"data": (2, 2, 3, 4), "transform_type": "warp"},
    )

    def __post_init__(self) -> None:
        if self.transform_type == "affine":
            check_sizes(self, "target_shape")

    def infer(self, s: Any) -> None:
        if self.transform_type == "affine":
            s.data = (s.out[0], 6) if s.out is not ANY else (UNKNOWN, 6)
            s.out = (s.data[0], 2, *self.target_shape)
            s.data = (s.out[0], 6)
        else:
            s.data = (UNKNOWN, 2, UNKNOWN, UNKNOWN)
            s.out = s.data
            s.data = s.out

    def total_outputs(self) -> int:
        return 2  # the files count a workspace

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        if self.transform_type == "affine":
            affine_grid(xp, data, out)
            return
        height, width = out.shape[2:]
        for axis, place, length in ((0, xp.arange(width), width), (1, xp.arange(height)[:, None], height)):
            xp.add(data[:, axis], place.astype(wide(out.dtype)), out=out[:, axis], casting="same_kind")
            xp.divide(out[:, axis], max(length - 1, 1) / 2, out=out[:, axis])
            xp.subtract(out[:, axis], 1, out=out[:, axis])

    def backward(self, xp: Any, dout: Array, ddata: Array) -> None:
        if self.transform_type == "affine":
            affine_back(xp, dout, ddata)
            return
        for axis, length in ((0, dout.shape[3]), (1, dout.shape[2])):
            xp.divide(dout[:, axis], max(length - 1, 1) / 2, out=ddata[:, axis])


@register_op
class SpatialTransformer(Op):
    """``out`` (n, c, *target_shape) = BilinearSampler of data (n, c, h, w) on the affine grid of loc (n, 6)."""

    target_shape: tuple[int, ...] = (0, 0)
    transform_type: Literal["affine"]
    sampler_type: Literal["bilinear"]
    cudnn_off: bool | None = None
    hidden = ("grid",)
    hints = ("cudnn_off", "transform_type", "sampler_type")
    rows = "parallel"
    examples = (
        {"data": (2, 3, 14, 16), "loc": (2, 6), "target_shape": (12, 13), "transform_type": "affine",
         "sampler_type": "bilinear"},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_sizes(self, "target_shape")

    def infer(self, s: Any) -> None:
        s.data = s.out = (UNKNOWN,) * 4
        s.loc = (s.data[0], 6)
        s.out = (s.loc[0], s.data[1], *self.target_shape)
        s.data = (*s.out[:2], UNKNOWN, UNKNOWN)
        s.loc = (s.out[0], 6)
        s.grid = (s.out[0], 2, *self.target_shape)
        check_pixels(s)

    def total_outputs(self) -> int:
        return 3  # the files count grid and a workspace

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")
        t.grid = None if t.data is None else wide(t.data)

    def temps(self, s: Any) -> dict[str, Any]:
        return {**sampler_temps(s, s.grid), "dgrid": (s.grid, wide(s.dtype("data")))}

    def forward(
        self, xp: Any, data: Array, loc: Array, out: Array, grid: Array,
        place: Temp, share: Temp, corner: Temp, total: Temp, image: Temp,
    ) -> None:  # fmt: skip
        affine_grid(xp, loc, grid)
        for i in range(data.shape[0]):
            sample(xp, data[i], grid[i], out[i].reshape(total.shape), place, share, corner, total, image)

    def backward(
        self, xp: Any, dout: Array, data: Array, grid: Array, ddata: Array, dloc: Array, dgrid: Temp,
        place: Temp, share: Temp, corner: Temp, total: Temp, image: Temp,
    ) -> None:  # fmt: skip
        for i in range(data.shape[0]):
            into, onto = None if ddata is None else ddata[i], None if dloc is None else dgrid[i]
            head = dout[i].reshape(total.shape)
            sample_back(xp, head, data[i], grid[i], into, onto, place, share, corner, total, image)
        if dloc is not None:
            affine_back(xp, dgrid, dloc)
