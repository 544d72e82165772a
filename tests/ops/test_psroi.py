"""Position-sensitive pooling of regions against its definition, one bin after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, uniform

BOXES = [
    [0, 0, 0, 7, 8], [1, 2.5, 3.5, 5.5, 4.4], [0, 6, 1, 6, 1], [1, -4, -3, 2, 2], [0, 3, 3, 40, 50], [1, 5, 6, 2, 1],
    [2, 0, 0, 5, 5], [-1, 0, 0, 5, 5], [0, 30, 30, 40, 40], [0, np.nan, 0, 5, 5],
]  # fmt: skip


def nearest(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value)


def one_after_the_other(data: Any, rois: Any, dout: Any, scale: float, dim: int, p: int, g: int) -> tuple[Any, Any]:
    """Outputs and the gradient of data."""
    count, _, height, width = data.shape
    out, ddata = np.zeros((len(rois), dim, p, p)), np.zeros_like(data)
    for r, (number, *corners) in enumerate(rois):
        if not 0 <= number < count or np.isnan(corners).any():
            continue
        x1, y1, x2, y2 = (nearest(corner) for corner in corners)
        x1, y1, x2, y2 = x1 * scale, y1 * scale, (x2 + 1) * scale, (y2 + 1) * scale
        step_y, step_x = max(y2 - y1, 0.1) / p, max(x2 - x1, 0.1) / p
        for i in range(p):
            for j in range(p):
                top, bottom = max(math.floor(i * step_y + y1), 0), min(math.ceil((i + 1) * step_y + y1), height)
                left, right = max(math.floor(j * step_x + x1), 0), min(math.ceil((j + 1) * step_x + x1), width)
                if bottom <= top or right <= left:
                    continue
                for c in range(dim):
                    channel = (c * g + i * g // p) * g + j * g // p
                    where = (int(number), channel, slice(top, bottom), slice(left, right))
                    out[r, c, i, j] = data[where].mean()
                    ddata[where] += dout[r, c, i, j] / data[where].size
    return out, ddata


@pytest.mark.parametrize(("p", "g"), [(3, 0), (3, 2), (2, 3), (1, 1), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
def test_every_bin_reads_its_own_channels(p: int, g: int, scale: float) -> None:
    groups = g or p
    data, rois = uniform((2, 2 * groups**2, 9, 8)), np.array(BOXES)
    dout = uniform((len(rois), 2, p, p), 1)
    out, ddata = one_after_the_other(data, rois, dout, scale, 2, p, groups)
    found = run("PSROIPooling", {"data": data, "rois": rois}, dout, spatial_scale=scale, output_dim=2, pooled_size=p,
                group_size=g)  # fmt: skip
    close(found.out, out)
    close(found.gradients["data"], ddata)


def test_shapes() -> None:
    attributes = dict(spatial_scale=0.0625, output_dim=21, pooled_size=7)
    symbol = ax.sym.contrib.PSROIPooling(ax.sym.Variable("data"), ax.sym.Variable("rois"), **attributes)
    known = symbol.infer_shape_partial(rois=(300, 5))
    assert known == ([(0, 21 * 49, 0, 0), (300, 5)], [(300, 21, 7, 7)], [])
    with pytest.raises(ShapeError, match="must have output_dim · group_size² = 1029 channels"):
        shapes_of("_contrib_PSROIPooling", {"data": (1, 1028, 4, 4), "rois": (300, 5)}, **attributes)
    for wrong in ({"output_dim": 0}, {"pooled_size": 0}, {"group_size": -1}):
        with pytest.raises(AttributeValueError, match=f"attribute '{next(iter(wrong))}' must be at least 1"):
            graph_of("_contrib_PSROIPooling", **{**attributes, **wrong})


def test_contract() -> None:
    ax.testing.check_op("_contrib_PSROIPooling")
