"""Values that hardly anybody binds on purpose: no end of a box, a negative zero for a parameter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.runs import run


@pytest.mark.parametrize("far", [np.inf, -np.inf, np.nan, 3e38])
def test_a_box_without_an_end_reads_nothing(far: float) -> None:
    data = np.ones((1, 1, 4, 4), np.float32)
    rois = np.array([[0, 0, 0, 3, 3], [0, 0, 0, far, far]], np.float32)
    found = run("_contrib_ROIAlign", {"data": data, "rois": rois}, np.ones((2, 1, 2, 2), np.float32), pooled_size=(2, 2),
                spatial_scale=1.0)  # fmt: skip
    assert (found.out[0] == 1).all() and not (abs(found.out[1]) > 1).any()
    first = run("_contrib_ROIAlign", {"data": data, "rois": rois[:1]}, np.ones((1, 1, 2, 2), np.float32),
                pooled_size=(2, 2), spatial_scale=1.0)  # fmt: skip
    assert np.isfinite(found.gradients["data"]).all()
    assert (found.gradients["data"] >= first.gradients["data"]).all()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gamma", ("alpha", "beta")), ("normal", ("mu", "sigma")), ("generalized_negative_binomial", ("mu", "alpha"))],
)
@pytest.mark.parametrize("shape", [(3,), (5000,)])
def test_a_negative_zero_is_a_zero(name: str, parameters: tuple[str, ...], shape: tuple[int, ...]) -> None:
    zeros = run(f"_sample_{name}", dict.fromkeys(parameters, np.zeros(2)), shape=shape).out
    found = run(f"_sample_{name}", dict.fromkeys(parameters, -np.zeros(2)), shape=shape).out
    np.testing.assert_array_equal(found, zeros)
