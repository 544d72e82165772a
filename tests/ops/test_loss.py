"""Loss heads against losses written out row by row; label shapes, what is ignored, how gradients are scaled."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import BindError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, uniform


def probabilities(data: Any, axis: int) -> Any:
    powers = np.exp(data - data.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def gradient(p: Any, label: Any, **given: Any) -> Any:
    """Gradient of one SoftmaxOutput as a loop: ``p`` (rows, classes, places), ``label`` (rows, places)."""
    scale, ignore = given.get("grad_scale", 1.0), int(given.get("ignore_label", -1))
    alpha, (rows, classes, places) = given.get("smooth_alpha", 0.0), p.shape
    valid = max(1, sum(int(x) != ignore for x in label.ravel()))
    divisor = {"null": places, "batch": rows * places, "valid": valid}[given.get("normalization", "null")]
    found = np.zeros_like(p)
    for row, place in itertools.product(range(rows), range(places)):
        known = int(label[row, place])
        if given.get("use_ignore") and known == ignore:
            continue
        for c in range(classes):
            target = 1 - alpha if c == known else alpha / (classes - 1)
            if not 0 <= known < classes:
                target = alpha / (classes - 1)
            found[row, c, place] = (p[row, c, place] - target) * scale / divisor
    return found


SETTINGS = [
    dict(zip(("normalization", "use_ignore", "ignore_label", "smooth_alpha", "grad_scale"), values, strict=True))
    for values in itertools.product(("null", "batch", "valid"), (False, True), (-1.0, 1.0), (0.0, 0.3), (1.0, 2.5))
]


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: "-".join(map(str, given.values())))
def test_softmax_output(given: dict[str, Any]) -> None:
    data = 3 * uniform((5, 4))
    label = np.array([1.0, 3.9, -1.0, 0.0, 7.0])
    p = probabilities(data, 1)
    found = run("SoftmaxOutput", {"data": data, "label": label}, [None], **given)
    close(found.out, p)
    close(found.gradients["data"], gradient(p[:, :, None], label[:, None], **given)[:, :, 0])
    assert not found.gradients["label"].any()

    data = 3 * uniform((2, 4, 3))
    label = np.array([[1, 3, -1], [0, 1, 4]])
    p = probabilities(data, 1)
    found = run("SoftmaxOutput", {"data": data, "label": label}, [None], multi_output=True, **given)
    close(found.out, p)
    close(found.gradients["data"], gradient(p, label, **given))

    data = data.swapaxes(1, 2)
    p = probabilities(data, 2)
    found = run("SoftmaxOutput", {"data": data, "label": label}, [None], preserve_shape=True, **given)
    wanted = gradient(p.reshape(6, 4, 1), label.reshape(6, 1), **given)
    close(found.out, p)
    close(found.gradients["data"], wanted.reshape(data.shape))


def test_all_ignored_is_zero() -> None:
    given: dict[str, Any] = {"use_ignore": True, "ignore_label": 2, "normalization": "valid"}
    found = run("SoftmaxOutput", {"data": uniform((3, 4)), "label": np.full(3, 2.0)}, [None], **given)
    assert not found.gradients["data"].any()


def test_an_ignored_row_of_nan_is_zero() -> None:
    data = uniform((2, 3))
    data[0] = np.nan
    found = run("SoftmaxOutput", {"data": data, "label": np.array([-1, 0])}, [None], use_ignore=True)
    assert not found.gradients["data"][0].any()
    assert found.gradients["data"][1].any()


def test_a_label_that_is_no_number_subtracts_nothing() -> None:
    data = uniform((2, 3))
    found = run("SoftmaxOutput", {"data": data, "label": np.array([np.nan, np.inf])}, [None])
    close(found.gradients["data"], probabilities(data, 1))


@pytest.mark.parametrize("shape", [(2, 12), (2, 4, 3), (2, 1, 4, 3)])
def test_label_shapes_of_multi_output(shape: tuple[int, ...]) -> None:
    data, label = uniform((2, 5, 4, 3)), np.random.default_rng(1).integers(0, 5, shape)
    found = run("SoftmaxOutput", {"data": data, "label": label}, [None], multi_output=True)
    wanted = gradient(probabilities(data, 1).reshape(2, 5, 12), label.reshape(2, 12))
    close(found.gradients["data"], wanted.reshape(data.shape))


@pytest.mark.parametrize("more", [{}, {"multi_output": True}, {"preserve_shape": True}])
def test_probabilities_as_labels(more: dict[str, Any]) -> None:
    data, label = uniform((2, 3, 4)), np.abs(uniform((2, 3, 4), 1))
    axis = 1 if "multi_output" in more else 2
    p = probabilities(data, axis) if more else probabilities(data.reshape(2, 12), 1).reshape(data.shape)
    given = {"grad_scale": 3.0, "normalization": "batch", "smooth_alpha": 0.2, **more}
    found = run("SoftmaxOutput", {"data": data, "label": label}, [None], **given)
    close(found.out, p)
    close(found.gradients["data"], 3 * (p - label))


def test_out_grad_multiplies_with_what_arrives() -> None:
    data, label, head = uniform((3, 4)), np.array([1, 0, 3]), uniform((3, 4), 1)
    arrays = {"data": data, "label": label}
    alone = run("SoftmaxOutput", arrays, [None], grad_scale=2.0).gradients["data"]
    close(run("SoftmaxOutput", arrays, [head], out_grad=True, grad_scale=2.0).gradients["data"], alone * head)
    close(run("SoftmaxOutput", arrays, [head], grad_scale=2.0).gradients["data"], alone)
    with pytest.raises(BindError, match="needs out_grads"):
        run("SoftmaxOutput", arrays, [None], out_grad=True)


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8, np.float16, np.float64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_labels_of_any_type(kind: Any, dtype: Any) -> None:
    data = uniform((3, 4), 0, dtype)
    found = run("SoftmaxOutput", {"data": data, "label": np.array([1, 3, 0], kind)}, [None], normalization="valid")
    p = probabilities(data.astype(float), 1)
    close(
        found.gradients["data"], gradient(p[:, :, None], np.array([[1], [3], [0]]), normalization="valid")[:, :, 0], 2
    )
    assert found.gradients["data"].dtype == dtype


def test_softmax_output_infers_labels() -> None:
    def label(data: Any, label: Any = None, **given: Any) -> Any:
        shapes = {"data": data} if label is None else {"data": data, "label": label}
        return shapes_of("SoftmaxOutput", shapes, **given)["label"]

    assert label((4, 3)) == (4,)
    assert label((4, 3, 5, 2), multi_output=True) == (4, 10)
    assert label((4, 3, 5), preserve_shape=True) == (4, 3)
    assert label((4, 3), (UNKNOWN,)) == (4,)
    assert label((4, 3, 5), (4, UNKNOWN, 5)) == (4, 3, 5)
    assert label((4, 3), (4, 3)) == (4, 3)


def test_softmax_output_refuses_labels() -> None:
    with pytest.raises(ShapeError, match=r"label 'label' must be \(4,\), but it is \(5,\) \(differs in dim 0\)"):
        shapes_of("SoftmaxOutput", {"data": (4, 3), "label": (5,)})
    with pytest.raises(
        ShapeError, match=r"must be \(4, 3, 5\) .* it is \(4, 3\); multi_output=True or preserve_shape=True"
    ):
        shapes_of("SoftmaxOutput", {"data": (4, 3, 5), "label": (4, 3)})
    with pytest.raises(ShapeError, match=r"must be \(2, 12\) or \(2, 4, 3\) or \(2, 1, 4, 3\) or \(2, 5, 4, 3\)"):
        shapes_of("SoftmaxOutput", {"data": (2, 5, 4, 3), "label": (2,)}, multi_output=True)
    with pytest.raises(ShapeError, match=r"must have an axis 1, but it is \(4,\)"):
        shapes_of("SoftmaxOutput", {"data": (4,)})


REGRESSIONS = {
    "LinearRegressionOutput": (lambda x: x, lambda y, label: y - label),
    "LogisticRegressionOutput": (lambda x: 1 / (1 + np.exp(-x)), lambda y, label: y - label),
    "MAERegressionOutput": (lambda x: x, lambda y, label: np.where(y > label, 1.0, -1.0)),
}


@pytest.mark.parametrize("operator", REGRESSIONS)
@pytest.mark.parametrize(
    ("shape", "label_shape"), [((4, 3), (4, 3)), ((4, 1), (4,)), ((4, 1), (4, 1)), ((2, 3, 2), (2, 6)), ((4,), (4,))]
)
@pytest.mark.parametrize("kind", [np.float64, np.int32])
def test_regression(operator: str, shape: Any, label_shape: Any, kind: Any) -> None:
    value, slope = REGRESSIONS[operator]
    data, label = 2 * uniform(shape), (3 * uniform(label_shape, 1)).astype(kind)
    if operator != "LogisticRegressionOutput":
        data.flat[1] = label.flat[1]  # equality counts as below
    y = value(data)
    wanted = slope(y, label.reshape(shape)) * 2.5 / np.prod(label_shape[1:])
    found = run(operator, {"data": data, "label": label}, [None], grad_scale=2.5)
    close(found.out, y)
    close(found.gradients["data"], wanted)
    assert not found.gradients["label"].any()


def test_regression_infers_labels() -> None:
    for data, label in (((4, 1), (4,)), ((4, 3), (4, 3)), ((4, 1, 1), (4, 1, 1))):
        assert shapes_of("LinearRegressionOutput", {"data": data})["label"] == label
    with pytest.raises(ShapeError, match=r"must have as many values as data \(4, 3\), but it is \(4, 2\)"):
        shapes_of("MAERegressionOutput", {"data": (4, 3), "label": (4, 2)})
    with pytest.raises(ShapeError, match=r"label 'label' must be \(4,\), but it is \(3,\)"):
        shapes_of("LinearRegressionOutput", {"data": (4, 1), "label": (3,)})


def test_make_loss() -> None:
    data = np.array([[0.5, -1.0], [0.2, 0.3], [0.9, -0.1]])
    for given, wanted in (
        ({}, 2.0),
        ({"normalization": "batch"}, 2 / 3),
        ({"normalization": "valid"}, 2 / 4),
        ({"normalization": "valid", "valid_thresh": 0.25}, 2 / 3),
        ({"normalization": "valid", "valid_thresh": 5.0}, 2.0),
    ):
        found = run("MakeLoss", {"data": data}, [None], grad_scale=2.0, **given)
        np.testing.assert_array_equal(found.out, data)
        close(found.gradients["data"], np.full(data.shape, wanted))
    assert run("make_loss", {"data": data}, [None]).gradients["data"].tolist() == [[1, 1]] * 3
    assert graph_of("MakeLoss").nodes[-1].op.keeps(frozenset({"data"})) == ()


def test_nothing_flows_through_block_grad() -> None:
    for operator in ("BlockGrad", "stop_gradient"):
        found = run(operator, {"data": uniform((2, 3))}, [None])
        np.testing.assert_array_equal(found.out, uniform((2, 3)))
        assert not found.gradients["data"].any()


def test_softmax_cross_entropy() -> None:
    data, label, head = 3 * uniform((4, 3)), np.array([2, 0, 1, 5]), np.array([0.7])
    p = probabilities(data, 1)
    found = run("softmax_cross_entropy", {"data": data, "label": label}, [head])
    close(found.out, [-np.log(p[[0, 1, 2], label[:3]]).sum()])
    onehot = np.eye(6)[label][:, :3]
    close(found.gradients["data"], 0.7 * np.where(label[:, None] < 3, p - onehot, 0))
    far = run("softmax_cross_entropy", {"data": np.array([[0.0, 99.0]]), "label": np.array([0])})
    close(far.out, [-np.log(1e-8)])
    assert shapes_of("softmax_cross_entropy", {"data": (4, 3)})["label"] == (4,)


HARD = np.array([[1.0, np.nan, 2.0], [0.0, 1.0, 2.0]])
ROW, VALUE = [[True] * 3, [False] * 3], [[False, True, False], [False] * 3]


@pytest.mark.parametrize(
    ("operator", "shape", "nan_out", "nan_gradient"),
    [
        ("SoftmaxOutput", (2,), ROW, ROW),
        ("LinearRegressionOutput", (2, 3), VALUE, VALUE),
        ("LogisticRegressionOutput", (2, 3), VALUE, VALUE),
        ("MAERegressionOutput", (2, 3), VALUE, [[False] * 3] * 2),
        ("MakeLoss", None, VALUE, [[False] * 3] * 2),
        ("make_loss", None, VALUE, [[False] * 3] * 2),
    ],
)
def test_nan_and_no_rows(operator: str, shape: Any, nan_out: Any, nan_gradient: Any) -> None:
    arrays = {"data": HARD} | ({} if shape is None else {"label": np.zeros(shape)})
    found = run(operator, arrays, [None])
    assert np.isnan(found.out).tolist() == nan_out
    assert np.isnan(found.gradients["data"]).tolist() == nan_gradient
    settings: list[dict[str, Any]] = [{}]
    if operator in ("SoftmaxOutput", "MakeLoss"):
        settings = [{"normalization": name} for name in ("null", "batch", "valid")]
    for given in settings:
        none = {name: array[:0] for name, array in arrays.items()}
        found = run(operator, none, [None], **given)
        assert found.out.shape == found.gradients["data"].shape == (0, 3)


def test_nan_and_no_rows_of_the_cross_entropy() -> None:
    found = run("softmax_cross_entropy", {"data": HARD, "label": np.array([0, 1])}, np.ones(1))
    assert np.isnan(found.out).tolist() == [True]
    assert np.isnan(found.gradients["data"]).tolist() == ROW
    found = run("softmax_cross_entropy", {"data": HARD, "label": np.array([-1, np.nan])}, np.ones(1))
    assert np.isnan(found.out).tolist() == [True]
    assert not found.gradients["data"].any()
    found = run("softmax_cross_entropy", {"data": HARD[:0], "label": np.zeros(0)}, np.ones(1))
    assert found.out.tolist() == [0]


@pytest.mark.parametrize("scalar", [1.0, 2.0])
def test_smooth_l1(scalar: float) -> None:
    data, head = np.array([-3.0, -0.1, 0.0, 0.2, 5.0, np.nan]), np.arange(6.0) + 1
    wide, s = np.abs(data) > 1 / scalar**2, scalar**2
    found = run("smooth_l1", {"data": data}, head, scalar=scalar)
    close(found.out, np.where(wide, np.abs(data) - 0.5 / s, 0.5 * s * data**2))
    close(found.gradients["data"][:5], (head * np.where(wide, np.sign(data), s * data))[:5])
