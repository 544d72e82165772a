"""Operators on windows and images with bfloat16 data: storage of 16 bits, sums in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.registry import get_op
from arrayexec.testing.trial import Trial
from tests.ops.runs import run

ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy alone has no bfloat16")

NAMES = (
    "Convolution Deconvolution UpSampling Pooling Pooling_v1 depth_to_space space_to_depth _contrib_BilinearResize2D "
    "_contrib_AdaptiveAvgPooling2D _contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution Correlation"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_results_are_rounded_once(name: str) -> None:
    for example in get_op(name).examples:
        trial = Trial(get_op(name), example)
        attributes = {key: value for key, value in example.items() if key in trial.cls.form.attributes}
        given = {key: array.astype(ml_dtypes.bfloat16) for key, array in trial.arrays().items()}
        heads = [head.astype(ml_dtypes.bfloat16) for head in trial.heads()]
        got = run(name, given, heads, **attributes)
        exact = run(name, {key: array.astype(np.float64) for key, array in given.items()},
                    [head.astype(np.float64) for head in heads], **attributes)  # fmt: skip
        found = {"out": got.out, **got.gradients}
        wanted: dict[str, Any] = {"out": exact.out, **exact.gradients}
        for key, array in wanted.items():
            assert found[key].dtype == ml_dtypes.bfloat16
            error = np.abs(found[key].astype(np.float64) - array).max() / max(np.abs(array).max(), 1e-30)
            assert error <= 2.0**-8, f"{name} {attributes}: {key} is off by {error}"
