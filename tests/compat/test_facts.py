"""What MXNet 1.9.1 gave for several hundred expressions, and what the drop-in namespace gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import arrayexec.compat.mxnet as mx
from tests.compat import evaluate

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))
OVERLAP = "operands that overlap what is written are read first"
FRACTION = "whole numbers are compared with the fraction itself"
NUMPY = "what numpy.ndarray has beside MXNet's own stays"
DIFFERENT = {
    "repr(nd.zeros((0, 2)))": "empty arrays are arrays",
    "x = nd.zeros(());; x[:] = 3;; x": "arrays without dims are arrays",
    "bool(nd.zeros((0,)))": "empty arrays are arrays",
    "float(S)": "one element is a number where Python asks for one",
    "int(S)": "one element is a number where Python asks for one",
    "A.grad": "there is no autograd",
    "A.attach_grad": "there is no autograd",
    "np.array(V)": "NumPy reads NDArrays",
    "np.asarray(A).shape": "NumPy reads NDArrays",
    "A == None": "comparing with None is no error",
    "A != None": "comparing with None is no error",
    "T.transpose(2, 0, 1).shape": "axes one by one as well as in a tuple",
    "A.wait_to_write()": "MXNet 1.0 had it",
    **dict.fromkeys(("A.any", "A.tolist", "A.fill(2)", "A.item", "A.view", "A.std", "A.cumsum(axis=0)"), NUMPY),
    **dict.fromkeys(("I == 4.5", "I != 4.5", "4.5 > I"), FRACTION),
    "a = nd.array([1, 2, 3, 4]);; a[1:3] += a[0:2];; a": OVERLAP,
    "a = A.copy();; a[[1, 0]] = a;; a": OVERLAP,
    "a = A.copy();; b = a[0];; a -= b;; [a, b]": OVERLAP,
    "type(A.sum()).__name__": "the class on host memory is HostNDArray, a subclass of NDArray",
    "it = mx.io.NDArrayIter(np.zeros((4, 2)), np.zeros(4), 2, label_name='lab');; b = next(it);; [b.provide_label if b.provide_label is None else b.provide_label[0][0], type(b).__name__]": "batches say what they hold",
    "mx.sym.Group([mx.sym.var('x') + 1, mx.sym.var('x') * 2]).eval(x=V)": "D6: variables of one name are one argument",
}


def close(found: Any, wanted: Any) -> bool:
    """Equal, numbers within the five digits that were recorded."""
    if isinstance(wanted, dict) and "error" in wanted:
        return isinstance(found, dict) and "error" in found
    if isinstance(wanted, dict):
        return isinstance(found, dict) and found.keys() == wanted.keys() and all(close(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(close, found, wanted))
    try:
        return found == wanted or float(found) == pytest.approx(float(wanted), rel=2e-4, abs=1e-6)
    except (TypeError, ValueError):
        return False


def test_the_table_is_complete() -> None:
    assert list(FACTS) == evaluate.lines()
    assert FACTS.keys() >= DIFFERENT.keys()
    assert len(FACTS) > 700


@pytest.mark.parametrize("line", [line for line in FACTS if line not in DIFFERENT])
def test_as_recorded(line: str) -> None:
    found = json.loads(json.dumps(evaluate.evaluate(mx, line)))
    if "_mul" in str(FACTS[line]):  # nodes are counted from another number
        found, wanted = list(found.values()), list(FACTS[line].values())
    else:
        wanted = FACTS[line]
    assert close(found, wanted), f"{found}\nrecorded: {wanted}"


@pytest.mark.parametrize("line", DIFFERENT)
def test_differs_as_listed(line: str) -> None:
    found = json.loads(json.dumps(evaluate.evaluate(mx, line)))
    assert not close(found, FACTS[line]), "it is as recorded: strike it from the list"
