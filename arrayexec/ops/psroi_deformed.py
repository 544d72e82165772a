"""Position-sensitive pooling of regions whose bins are moved, as deformable R-FCN has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..dims import ANY, UNKNOWN
from ..errors import format_shape
from ..registry import Op, Sample, register_op
from .checks import check_floating, check_least
from .precision import wide
from .psroi import infer_bins
from .roi import FAR, image_of

Array = Any
VALUES, DEVICE_VALUES = 1 << 11, 1 << 20  # values of the result that are gone through at once


class _Bins(NamedTuple):
    """One row of bins of some regions, as (regions, classes, channels of a class, columns of bins)."""

    regions: slice
    row: int
    start: list[Array]  # of each bin along y and x
    step: list[Array]  # between samples
    size: list[Array]  # of the regions
    channel: Array  # first value of each bin's channel in flat data
    there: Array  # whether the image is


class _Corner(NamedTuple):
    """One of the four pixels around the samples: places in flat data, and the shares along y and x."""

    place: Array
    shares: tuple[Array, Array]
    signs: tuple[int, int]


@register_op(name="_contrib_DeformablePSROIPooling")
class DeformablePSROIPooling(Op):
    """``out`` (r, output_dim, p, p) = mean of bilinear samples in the moved bins of rois (r, 5), p = ``pooled_size``.

    data (n, output_dim · g², h, w), g = ``group_size``: bin (i, j) reads the channels of the group (⌊i · g / p⌋,
    ⌊j · g / p⌋). Corners are rounded, the last pixel belongs to the region, then all is multiplied by ``spatial_scale``
    and half a pixel taken off; a region is at least 0.1 wide. trans (r, 2 · classes, q, q), q = ``part_size`` (0: p):
    times ``trans_std`` and the region's size it moves the bins of each class's channels, x first. A bin has
    ``sample_per_part``² samples from its corner on; those more than half a pixel outside do not count, others are moved
    into the image. Without a sample, or an image, a bin is 0. rois have no gradient.
    """

    spatial_scale: float
    output_dim: int
    group_size: int
    pooled_size: int
    part_size: int = 0
    sample_per_part: int = 1
    trans_std: float = 0.0
    no_trans: bool = False
    no_gradient = ("rois",)
    examples = (
        {"data": (2, 8, 6, 7), "rois": Sample((4, 5), 0, 1.9), "trans": (4, 4, 2, 2), "spatial_scale": 2.3,
         "output_dim": 2, "group_size": 2, "pooled_size": 3, "part_size": 2, "sample_per_part": 2, "trans_std": 0.1},
        {"data": (1, 3, 6, 7), "rois": Sample((3, 5), 0, 0.9), "spatial_scale": 3.7, "output_dim": 3, "group_size": 1,
         "pooled_size": 2, "no_trans": True},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_least(self, "output_dim", "group_size", "pooled_size", "sample_per_part")
        check_least(self, "part_size", least=0)

    def total_outputs(self) -> int:
        return 2  # the files count how many samples there were

    def inputs(self) -> tuple[str, ...]:
        return ("data", "rois") if self.no_trans else ("data", "rois", "trans")

    @property
    def _parts(self) -> int:
        return self.part_size or self.pooled_size

    def infer(self, s: Any) -> None:
        infer_bins(s, self.output_dim, self.group_size, self.pooled_size)
        s.trans = (s.out[0], UNKNOWN, self._parts, self._parts)
        if not self.no_trans and s.trans is not ANY and s.trans[1] is not UNKNOWN:
            pairs = s.trans[1]
            if pairs < 2 or pairs % 2 or self.output_dim % (pairs // 2):
                s.fail("trans", f"must have 2 channels a class that divides output_dim={self.output_dim}, but it is "
                       f"{format_shape(s.trans)}")  # fmt: skip

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def _rows(self, xp: Any, shape: tuple[int, ...], rois: Array, trans: Array) -> Iterator[_Bins]:
        """Rows of bins of a few regions at a time."""
        count, channels, height, width = shape
        p, g, classes = self.pooled_size, self.group_size, 1 if trans is None else trans.shape[1] // 2
        column = xp.arange(p)
        number = xp.arange(self.output_dim).reshape(classes, -1, 1)
        room = VALUES if xp is np else DEVICE_VALUES
        some = max(1, room // (self.output_dim * p))
        for begin in range(0, len(rois), some):
            part = slice(begin, begin + some)
            first, size = self._boxes(xp, rois[part])
            image = image_of(xp, rois[part], count)
            there = (image < count).reshape(-1, 1, 1, 1)
            image = xp.minimum(image, count - 1).astype("int64").reshape(-1, 1, 1, 1)
            for row in range(p):
                start = [first[0] + row * size[0] / p, first[1] + column.astype(size[1].dtype) * size[1] / p]
                if trans is not None:
                    moves = self._moves(trans[part], row).astype(size[0].dtype) * self.trans_std
                    start = [start[0] + moves[:, :, 1][:, :, None] * size[0],
                             start[1] + moves[:, :, 0][:, :, None] * size[1]]  # fmt: skip
                channel = (number * g + row * g // p) * g + column * g // p
                channel = (image * channels + channel) * (height * width)
                step = [length / (p * self.sample_per_part) for length in size]
                yield _Bins(part, row, start, step, size, channel, there)

    def _boxes(self, xp: Any, rois: Array) -> tuple[list[Array], list[Array]]:
        """First corner and size along y and x, each (r, 1, 1, 1)."""
        kind, first, size = wide(rois.dtype), [], []
        for axis in (2, 1):
            low, high = (xp.clip(rois[:, axis + side].astype(kind), -FAR, FAR).reshape(-1, 1, 1, 1) for side in (0, 2))
            low, high = (xp.copysign(xp.floor(xp.abs(end) + 0.5), end) for end in (low, high))
            first.append(low * self.spatial_scale - 0.5)
            size.append(xp.maximum((high + 1) * self.spatial_scale - 0.5 - first[-1], 0.1))
        return first, size

    def _columns(self) -> list[int]:
        """Which part each column (or row) of bins has."""
        return [i * self._parts // self.pooled_size for i in range(self.pooled_size)]

    def _moves(self, trans: Array, row: int) -> Array:
        """(regions, classes, 2, columns): what moves a row of bins."""
        parts = self._columns()
        line = trans[:, :, parts[row]][:, :, parts]
        return line.reshape(line.shape[0], -1, 2, len(parts))

    def _samples(self, xp: Any, bins: _Bins, height: int, width: int) -> Iterator[tuple[Array, list[_Corner]]]:
        """For each sample of a bin: whether it counts, and the pixels around it."""
        for i in range(self.sample_per_part):
            for j in range(self.sample_per_part):
                y, x = bins.start[0] + i * bins.step[0], bins.start[1] + j * bins.step[1]
                counts = (y >= -0.5) & (y <= height - 0.5) & (x >= -0.5) & (x <= width - 0.5) & bins.there
                y, x = (xp.where(counts, xp.clip(at, 0, size - 1), 0) for at, size in ((y, height), (x, width)))
                lines, corners = [(xp.floor(at), xp.ceil(at), at - xp.floor(at)) for at in (y, x)], []
                for sy in (0, 1):
                    for sx in (0, 1):
                        line = lines[0][sy].astype("int64") * width + lines[1][sx].astype("int64")
                        shares = tuple(
                            share if side else 1 - share for side, (_, _, share) in zip((sy, sx), lines, strict=True)
                        )
                        corners.append(_Corner(bins.channel + line, shares, (2 * sy - 1, 2 * sx - 1)))
                yield counts, corners

    def forward(self, xp: Any, data: Array, rois: Array, trans: Array, out: Array) -> None:
        if not data.shape[0]:
            out.fill(0)
            return
        values, (height, width) = data.reshape(-1), data.shape[2:]
        for bins in self._rows(xp, data.shape, rois, trans):
            total, number = 0.0, 0.0
            for counts, corners in self._samples(xp, bins, height, width):
                for corner in corners:
                    total = total + xp.take(values, corner.place) * (corner.shares[0] * corner.shares[1] * counts)
                number = number + counts
            mean = total / xp.maximum(number, 1)
            xp.copyto(out[bins.regions, :, bins.row], mean.reshape(-1, self.output_dim, self.pooled_size),
                      casting="same_kind")  # fmt: skip

    def backward(
        self, xp: Any, dout: Array, data: Array, rois: Array, trans: Array, ddata: Array, dtrans: Array
    ) -> None:
        for target in (ddata, dtrans):
            if target is not None:
                target.fill(0)
        if not data.shape[0]:
            return
        values, (height, width), parts = data.reshape(-1), data.shape[2:], self._columns()
        for bins in self._rows(xp, data.shape, rois, trans):
            number = sum((counts for counts, _ in self._samples(xp, bins, height, width)), 0.0)
            share = dout[bins.regions, :, bins.row].reshape(len(bins.there), *bins.channel.shape[1:])
            share = share / xp.maximum(number, 1)
            pulls: list[Any] = [0.0, 0.0]
            for counts, corners in self._samples(xp, bins, height, width):
                given = share * counts
                for corner in corners:
                    if ddata is not None:
                        part = given * (corner.shares[0] * corner.shares[1])
                        xp.add.at(ddata.reshape(-1), corner.place, part.astype(ddata.dtype))
                    if dtrans is not None:
                        slope = given * xp.take(values, corner.place)
                        pulls[0] = pulls[0] + slope * (corner.signs[0] * corner.shares[1])
                        pulls[1] = pulls[1] + slope * (corner.signs[1] * corner.shares[0])
            if dtrans is None:
                continue
            for axis in (0, 1):
                pull = xp.sum(pulls[axis] * bins.size[axis], axis=2) * self.trans_std
                for column, part in enumerate(parts):
                    moved = dtrans[bins.regions, 1 - axis :: 2, parts[bins.row], part]
                    moved += pull[:, :, column].astype(dtrans.dtype)
