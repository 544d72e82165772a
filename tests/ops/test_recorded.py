"""Every operator in several settings against numbers recorded from MXNet 1.9.1: names, outputs, gradients, states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arrayexec import symbol  # noqa: F401  the operators
from arrayexec.registry import make_op, signature_of
from arrayexec.testing import NaiveRun
from tests.ops.runs import graph_of

ARCHIVE = np.load(Path(__file__).parent / "recorded" / "operators.npz", allow_pickle=False)
DATA: bytes = ARCHIVE["data"].tobytes()
CASES: dict[str, list[dict[str, Any]]] = {}
for _case in json.loads(str(ARCHIVE["cases"])):
    CASES.setdefault(_case["op"], []).append(_case)
TOLERANCES = {"float16": 2e-3, "float32": 2e-5, "float64": 5e-7}  # MXNet holds attributes and some sums in float32


def array(place: list[Any]) -> np.ndarray[Any, Any]:
    kind, start, shape = place
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(DATA, kind, count, start).reshape(shape).copy()


def compare(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: str) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted, what)
        return
    tolerance = TOLERANCES[wanted.dtype.name]
    largest = np.abs(np.where(np.isfinite(wanted), wanted, 0)).max(initial=1)
    np.testing.assert_allclose(found, wanted, tolerance, tolerance * largest, err_msg=what)


def check(case: dict[str, Any]) -> None:
    signature = signature_of(op := make_op(case["op"], case["attributes"]))
    assert [f"node_{suffix}" for suffix in signature.output_suffixes] == case["names"]
    assert op.total_outputs() == case["total"]
    inputs = {name: array(place) for name, place in case["inputs"].items()}
    aux = {name: array(place) for name, place in case.get("aux", {}).items()}
    assert list(signature.inputs) == list(inputs)
    assert list(signature.aux) == list(aux)
    heads = [array(place) for place in case["heads"]] if "heads" in case else None
    started = NaiveRun(graph_of(case["op"], **case["attributes"]), inputs, aux, case.get("train", True))
    outputs = started.forward()
    gradients = {} if heads is None else started.backward(heads)
    for i, (found, place) in enumerate(zip(outputs, case["outputs"], strict=True)):
        if "random" in case:
            assert [found.dtype.name, list(found.shape)] == [place[0], place[2]]
        else:
            compare(found, array(place), f"output {i} with {case['attributes']}")
    for name, place in case.get("gradients", {}).items():
        compare(gradients[name], array(place), f"gradient of {name} with {case['attributes']}")
    for name, place in case.get("aux_after", {}).items():
        compare(started.aux[name], array(place), f"{name} afterwards with {case['attributes']}")


@pytest.mark.parametrize("name", CASES)
def test_as_mxnet_computes(name: str) -> None:
    for case in CASES[name]:
        check(case)
