"""Position-sensitive pooling of regions of interest, as R-FCN has it."""

from __future__ import annotations

from typing import Any

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, register_op
from .checks import check_floating, check_least, check_pixels
from .precision import wide
from .roi import FAR, image_of
from .roi_align import pool_own, pool_own_back

Array = Any


def infer_bins(s: Any, channels: int, groups: int, bins: int) -> None:
    """Shapes of data (n, channels · groups², h, w), rois (r, 5) and out (r, channels, bins, bins)."""
    wanted = channels * groups**2
    s.data, s.rois = (UNKNOWN,) * 4, (UNKNOWN, 5)
    s.out = (s.rois[0], channels, bins, bins)
    s.rois = (s.out[0], 5)
    if s.data[1] is not UNKNOWN and s.data[1] != wanted:
        product = f"output_dim · group_size² = {wanted}"
        s.fail("data", f"must have {product} channels, but it is {format_shape(s.data)}")
    s.data = (UNKNOWN, wanted, UNKNOWN, UNKNOWN)
    check_pixels(s)


@register_op(name="_contrib_PSROIPooling", aliases=("PSROIPooling",))
class PSROIPooling(Op):
    """``out`` (r, output_dim, p, p) = mean of a bin of each region rois (r, 5), in channels of data of its own.

    data has output_dim · g² channels, g = ``group_size`` (0: ``pooled_size``): bin (i, j) reads those of the group
    (⌊i · g / p⌋, ⌊j · g / p⌋). Corners are rounded, halves away from 0, the last pixel belongs to the region, then all
    is multiplied by ``spatial_scale``; a region is at least 0.1 wide. A bin has the pixels from the floor of its start
    to the ceiling of its end, cut to the image; one without pixels gives 0, and so does a region of an image that is
    not there. rois have no gradient.
    """

    spatial_scale: float
    output_dim: int
    pooled_size: int
    group_size: int = 0
    no_gradient = ("rois",)
    examples = (
        {"data": (2, 12, 9, 8), "rois": Sample((5, 5), 0, 1.9), "pooled_size": 2, "output_dim": 3,
         "spatial_scale": 3.5},
        {"data": (1, 8, 9, 8), "rois": Sample((4, 5), 0, 0.9), "pooled_size": 3, "output_dim": 2, "group_size": 2,
         "spatial_scale": 5.0},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_least(self, "output_dim", "pooled_size")
        if self.group_size < 0:
            raise AttributeValueError(
                "_contrib_PSROIPooling: attribute 'group_size' must be at least 1, or 0 for pooled_size, but it is "
                f"{self.group_size}"
            )

    @property
    def _groups(self) -> int:
        return self.group_size or self.pooled_size

    def infer(self, s: Any) -> None:
        infer_bins(s, self.output_dim, self._groups, self.pooled_size)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def _weights(self, xp: Any, rois: Array, axis: int, size: int) -> Array:
        """What every bin (r, p) takes of the pixels along y (0) or x (1): (r, p, size)."""
        kind = wide(rois.dtype)
        ends = [xp.clip(rois[:, 2 - axis + side].astype(kind), -FAR, FAR) for side in (0, 2)]  # NaN: no pixel is inside
        start, last = (xp.copysign(xp.floor(xp.abs(end) + 0.5), end) for end in ends)
        start, stop = start * self.spatial_scale, (last + 1) * self.spatial_scale
        step = (xp.maximum(stop - start, 0.1) / self.pooled_size)[:, None]
        number, pixels = xp.arange(self.pooled_size).astype(kind), xp.arange(size).astype(kind)
        low, high = xp.floor(number * step + start[:, None]), xp.ceil((number + 1) * step + start[:, None])
        inside = xp.logical_and(pixels >= low[..., None], pixels < high[..., None]).astype(kind)
        return inside / xp.maximum(xp.sum(inside, axis=-1, keepdims=True), 1)

    def _bins(self, xp: Any, data: Array, rois: Array) -> tuple[Any, ...]:
        """``data`` with axes for the groups, images of the regions, weights along y and x, groups of the bins."""
        count, _, height, width = data.shape
        groups = [i * self._groups // self.pooled_size for i in range(self.pooled_size)]
        split = data.reshape(count, self.output_dim, self._groups, self._groups, height, width)
        weights = (self._weights(xp, rois, axis, size) for axis, size in enumerate((height, width)))
        return split, image_of(xp, rois, count), *weights, groups

    def forward(self, xp: Any, data: Array, rois: Array, out: Array) -> None:
        split, image, wy, wx, groups = self._bins(xp, data, rois)
        pool_own(xp, split, image, wy, wx, out, groups)

    def backward(self, xp: Any, dout: Array, rois: Array, ddata: Array) -> None:
        split, image, wy, wx, groups = self._bins(xp, ddata, rois)
        pool_own_back(xp, dout, image, wy, wx, split, groups)
