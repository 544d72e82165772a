"""Operators of detection on random inputs with ties, padding and degenerate boxes, as recorded from MXNet 1.9.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec.registry import make_op, signature_of
from tests.ops.runs import run

ARCHIVE = np.load(Path(__file__).parent / "recorded" / "detection.npz", allow_pickle=False)
CASES: dict[str, Any] = json.loads(str(ARCHIVE["cases"]))


@pytest.mark.parametrize("name", CASES)
def test_as_recorded(name: str) -> None:
    case = CASES[name]
    inputs = {key: ARCHIVE[f"{name}/in/{key}"] for key in case["inputs"]}
    attributes = {key: tuple(v) if isinstance(v, list) else v for key, v in case["attributes"].items()}
    assert list(signature_of(make_op(case["op"], attributes)).arguments) == case["inputs"]
    heads = [ARCHIVE[f"{name}/head"]] if case["gradients"] else None
    result = run(case["op"], inputs, heads, **attributes)
    assert len(result.outputs) == case["outputs"]
    for i, out in enumerate(result.outputs):
        np.testing.assert_allclose(out, ARCHIVE[f"{name}/out/{i}"], rtol=2e-5, atol=2e-5)
    for key in case["gradients"]:
        np.testing.assert_allclose(result.gradients[key], ARCHIVE[f"{name}/grad/{key}"], rtol=2e-5, atol=2e-5)
