"""Values that hardly anybody means: no end of a box, a negative zero for a parameter, attributes that are no number."""

from __future__ import annotations

import re

import numpy as np
import pytest

from arrayexec.errors import AttributeValueError
from arrayexec.registry import make_op
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


@pytest.mark.parametrize(
    ("name", "attributes", "text"),
    [
        ("SoftmaxOutput", {"ignore_label": "nan"}, "'ignore_label' must be a finite number, but it is nan"),
        ("_contrib_Proposal", {"ratios": "(1, nan)"}, "'ratios' must hold positive numbers"),
        ("_contrib_MultiProposal", {"scales": "inf"}, "'scales' must hold positive numbers"),
        ("_contrib_BilinearResize2D", {"scale_height": "nan"}, "'scale_height' must be positive, but it is nan"),
        ("_contrib_BilinearResize2D", {"scale_width": "inf"}, "'scale_width' must be positive, but it is inf"),
        ("_split_v2", {"indices": "(0,)", "sections": "1000000000000"}, "'sections' must be at most 100000"),
        ("multi_sum_sq", {"num_arrays": "1000000000000"}, "'num_arrays' must be at most 100000"),
    ],
)
def test_attributes_that_no_layer_has(name: str, attributes: dict[str, str], text: str) -> None:
    with pytest.raises(AttributeValueError, match=f"{name} 'n': attribute {re.escape(text)}"):
        make_op(name, attributes, " 'n'")


def test_a_slope_of_nan_makes_nan() -> None:
    found = run("LeakyReLU", {"data": np.array([-1.0, 2.0])}, [np.ones(2)], slope="nan")
    assert np.isnan(found.out[0]) and np.isnan(found.gradients["data"][0])
