"""Position-sensitive pooling of moved bins against numbers of MXNet 1.9.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.runs import run

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recorded" / "deformed_pooling.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_as_recorded(case: dict[str, Any]) -> None:
    arrays = {"data": np.array(case["data"]).reshape(case["shape"]), "rois": np.array(case["rois"])}
    if case["trans"] is not None:
        arrays["trans"] = np.array(case["trans"]).reshape(case["parts"])
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    size, dim = case["attributes"]["pooled_size"], case["attributes"]["output_dim"]
    head = np.array(case["head"], np.float32).reshape(-1, dim, size, size)
    found = run("_contrib_DeformablePSROIPooling", arrays, [head], **case["attributes"])
    np.testing.assert_allclose(found.out.ravel(), case["out"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.gradients["data"].ravel(), case["ddata"], rtol=1e-4, atol=2e-5)
    if case["trans"] is not None:
        np.testing.assert_allclose(found.gradients["trans"].ravel(), case["dtrans"], rtol=1e-3, atol=1e-4)


def test_a_region_of_an_image_that_is_not_there_gives_nothing() -> None:
    arrays = {"data": np.ones((1, 1, 4, 4)), "rois": np.array([[0.0, 0, 0, 3, 3], [1, 0, 0, 3, 3], [-1, 0, 0, 3, 3]])}
    found = run("_contrib_DeformablePSROIPooling", arrays, [np.ones((3, 1, 2, 2))], spatial_scale=1, output_dim=1,
                group_size=1, pooled_size=2, no_trans=True)  # fmt: skip
    np.testing.assert_allclose(found.out[:, 0], np.array([1.0, 0, 0])[:, None, None] * np.ones((2, 2)))
    np.testing.assert_allclose(found.gradients["data"].sum(), 4)
