"""SVMOutput and IdentityAttachKLSparseReg against loops and closed forms; labels that are no class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, types_of, uniform


def hinge(x: Any, label: Any, margin: float, c: float, linear: bool) -> Any:
    """Gradient class by class."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        y = 1 if place[-1] == int(label[place[:-1]]) else -1
        gap = margin - y * x[place]
        found[place] = (-c * y * (gap > 0)) if linear else -2 * c * y * max(0.0, gap)
    return found


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("kind", [np.float64, np.int8])
def test_svm_output(linear: bool, kind: Any) -> None:
    for shape in ((5, 4), (2, 3, 4)):
        data = 2 * uniform(shape)
        label = np.resize(np.array([0, 3, -1, 4, 2.9]), shape[:-1]).astype(kind)  # -1 and 4 are no class
        arrays = {"data": data, "label": label}
        found = run("SVMOutput", arrays, [None], margin=0.6, regularization_coefficient=0.7, use_linear=linear)
        np.testing.assert_array_equal(found.out, data)
        close(found.gradients["data"], hinge(data, label, 0.6, 0.7, linear))
    assert make_op("SVMOutput", {}).margin == make_op("SVMOutput", {}).regularization_coefficient == 1


def test_svm_output_at_the_edges() -> None:
    data = np.array([[np.nan, 0.5, -1.0]])
    squared = run("SVMOutput", {"data": data, "label": np.array([1])}, [None]).gradients["data"]
    linear = run("SVMOutput", {"data": data, "label": np.array([1])}, [None], use_linear=True).gradients["data"]
    assert (np.isnan(squared).tolist(), linear.tolist()) == ([[True, False, False]], [[0, -1, 0]])
    lost = run("SVMOutput", {"data": np.zeros((1, 2)), "label": np.array([np.nan])}, [None]).gradients["data"]
    assert lost.tolist() == [[2, 2]]
    assert run("SVMOutput", {"data": np.zeros((0, 3)), "label": np.zeros(0)}, [None]).gradients["data"].size == 0
    assert shapes_of("SVMOutput", {"label": (4,), "data": (UNKNOWN, 3)})["node_output"] == (4, 3)
    assert shapes_of("SVMOutput", {"data": (1 << 20, 1 << 13)})["label"] == (1 << 20,)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4)])
def test_sparse_regulariser(shape: tuple, train: bool) -> None:
    data, head, moving = 0.5 + 0.4 * uniform(shape), uniform(shape, 1), np.array([0.1, 0.5, 0.7])
    given = {"sparseness_target": 0.2, "penalty": 0.3, "momentum": 0.6}
    found = run("IdentityAttachKLSparseReg", {"data": data}, head, {"moving_avg": moving}, train, **given)
    mean = 0.6 * moving + 0.4 * data.mean(axis=(0, *range(2, data.ndim))) if train else moving
    pull = 0.3 * (0.8 / (1 - mean) - 0.2 / mean)
    np.testing.assert_array_equal(found.out, data)
    close(found.aux["moving_avg"], mean)
    close(found.gradients["data"], head + pull.reshape(-1, *(1,) * (data.ndim - 2)))


def test_sparse_regulariser_at_the_edges() -> None:
    op = make_op("IdentityAttachKLSparseReg", {})
    assert (op.sparseness_target, op.penalty, op.momentum, op.total_outputs()) == (0.1, 0.001, 0.9, 1)
    assert op.variable_attributes("moving_avg") == {"__init__": '["zero", {}]'}
    empty = {"data": np.zeros((0, 3))}
    found = run("IdentityAttachKLSparseReg", empty, np.zeros((0, 3)), {"moving_avg": np.full(3, 0.5)})
    assert found.aux["moving_avg"].tolist() == [0.5] * 3
    assert types_of("IdentityAttachKLSparseReg", {"data": np.float16})["moving_avg"] == np.float32
    assert shapes_of("IdentityAttachKLSparseReg", {"data": (2, UNKNOWN), "moving_avg": (3,)})["data"] == (2, 3)
