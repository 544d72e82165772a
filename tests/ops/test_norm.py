"""BatchNorm against its formula in float64: training, inference, moving statistics, narrow types, hard numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import ShapeError
from arrayexec.ops import norm
from arrayexec.registry import make_op, signature_of
from tests.ops.runs import close, run, shapes_of, types_of, uniform

Array = Any


def reference(x: Array, gamma: Array, beta: Array, head: Array, axis: int, eps: float) -> tuple[Array, ...]:
    """Output and gradients of data, gamma and beta in training, from the textbook's chain of derivatives."""
    x, head = np.moveaxis(x, axis, -1), np.moveaxis(head, axis, -1)
    axes = tuple(range(x.ndim - 1))
    n, mean = x[..., 0].size, x.mean(axis=axes)
    var = ((x - mean) ** 2).mean(axis=axes)
    normal = (x - mean) / np.sqrt(var + eps)
    dnormal = head * gamma
    dvar = (dnormal * (x - mean)).sum(axis=axes) * -0.5 * (var + eps) ** -1.5
    dmean = -dnormal.sum(axis=axes) / np.sqrt(var + eps)
    dx = dnormal / np.sqrt(var + eps) + dvar * 2 * (x - mean) / n + dmean / n
    out = normal * gamma + beta
    return np.moveaxis(out, -1, axis), np.moveaxis(dx, -1, axis), (head * normal).sum(axis=axes), head.sum(axis=axes)


def setting(
    shape: tuple[int, ...], axis: int, dtype: Any = np.float64
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    c = (shape[axis],)
    arrays = {"data": uniform(shape, 0, dtype), "gamma": uniform(c, 1) + 2, "beta": uniform(c, 2)}
    return arrays, {"moving_mean": uniform(c, 3), "moving_var": uniform(c, 4) + 2}, uniform(shape, 5, dtype)


@pytest.fixture(params=[norm.BLOCK, 7], ids=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "BLOCK", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 3), 1), ((8, 600), 1), ((4, 3, 5), 1), ((4, 3, 2, 2), 1), ((3, 2, 2, 4), -1), ((5, 4, 3), 0)],
)
def test_training_normalises_by_the_batch(shape: tuple, axis: int, fixed: bool) -> None:
    arrays, aux, head = setting(shape, axis)
    gamma = np.ones(shape[axis]) if fixed else arrays["gamma"]
    out, dx, dgamma, dbeta = reference(arrays["data"], gamma, arrays["beta"], head, axis, 0.01)
    got = run("BatchNorm", arrays, head, aux, eps=0.01, momentum=0.7, axis=axis, fix_gamma=fixed)
    close(got.out, out, 12)
    close(got.gradients["data"], dx, 12)
    close(got.gradients["gamma"], dgamma * (not fixed), 12)
    close(got.gradients["beta"], dbeta, 12)
    others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
    close(got.aux["moving_mean"], 0.7 * aux["moving_mean"] + 0.3 * arrays["data"].mean(axis=others), 12)
    close(got.aux["moving_var"], 0.7 * aux["moving_var"] + 0.3 * arrays["data"].var(axis=others), 12)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("train", "options"), [(False, {}), (True, {"use_global_stats": True})])
def test_inference_normalises_by_the_moving_statistics(train: bool, options: dict, fixed: bool) -> None:
    arrays, aux, head = setting((4, 3, 5), 1)
    got = run("BatchNorm", arrays, head, aux, train, eps=0.01, fix_gamma=fixed, **options)
    gamma = np.ones(3) if fixed else arrays["gamma"]
    mean, scale = aux["moving_mean"][:, None], 1 / np.sqrt(aux["moving_var"] + 0.01)[:, None]
    normal = (arrays["data"] - mean) * scale
    close(got.out, normal * gamma[:, None] + arrays["beta"][:, None])
    close(got.gradients["data"], head * scale * gamma[:, None])
    close(got.gradients["gamma"], (head * normal).sum(axis=(0, 2)) * (not fixed), 12)
    close(got.gradients["beta"], head.sum(axis=(0, 2)))
    for name, array in aux.items():
        np.testing.assert_array_equal(got.aux[name], array)


def test_a_fixed_gamma_is_neither_read_nor_changed() -> None:
    arrays, aux, head = setting((4, 3), 1)
    plain = run("BatchNorm", arrays, head, aux)
    strange = {**arrays, "gamma": np.full(3, np.nan)}
    got = run("BatchNorm", strange, head, aux)
    np.testing.assert_array_equal(got.out, plain.out)
    np.testing.assert_array_equal(got.gradients["data"], plain.gradients["data"])
    assert np.isnan(strange["gamma"]).all()
    assert not got.gradients["gamma"].any()


def test_shown_statistics_are_mean_and_one_over_the_deviation() -> None:
    arrays, aux, head = setting((4, 3, 2), 1)
    op = make_op("BatchNorm", {"output_mean_var": True})
    assert signature_of(op).output_suffixes == ("output", "mean", "var")
    assert op.total_outputs() == make_op("BatchNorm", {}).total_outputs() == 3
    ignored = [head, uniform((3,), 8), uniform((3,), 9)]
    got = run("BatchNorm", arrays, ignored, aux, output_mean_var=True, eps=0.1)
    close(got.outputs[1], arrays["data"].mean(axis=(0, 2)))
    close(got.outputs[2], 1 / np.sqrt(arrays["data"].var(axis=(0, 2)) + 0.1))
    plain = run("BatchNorm", arrays, head, aux, eps=0.1)
    np.testing.assert_array_equal(got.gradients["data"], plain.gradients["data"])


def test_unbiased_moves_the_variance_by_n_over_n_minus_one() -> None:
    arrays, aux, _ = setting((4, 3, 2), 1)
    got = run("BatchNorm", arrays, None, aux, unbiased=True, momentum=0.5)
    close(got.aux["moving_var"], 0.5 * aux["moving_var"] + 0.5 * arrays["data"].var(axis=(0, 2), ddof=1), 12)


@pytest.mark.parametrize("options", [{}, {"axis": -1}])
def test_sixteen_bit_data_have_statistics_in_thirty_two(options: dict) -> None:
    axis = options.get("axis", 1)
    arrays, aux, head = setting((40, 3, 30), axis, np.float16)
    arrays = {"data": arrays["data"] + np.float16(8), **{k: arrays[k].astype(np.float32) for k in ("gamma", "beta")}}
    aux = {name: array.astype(np.float32) for name, array in aux.items()}
    got = run("BatchNorm", arrays, head, aux, fix_gamma=False, **options)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    out, dx, dgamma, _ = reference(wide["data"], wide["gamma"], wide["beta"], head.astype(np.float64), axis, 1e-3)
    assert (got.out.dtype, got.gradients["data"].dtype, got.gradients["gamma"].dtype) == (
        np.float16,
        np.float16,
        np.float32,
    )
    assert got.aux["moving_var"].dtype == np.float32
    np.testing.assert_allclose(got.out, out, rtol=2.0**-11 * 1.01, atol=2e-5)
    np.testing.assert_allclose(got.gradients["data"], dx, rtol=2.0**-11 * 1.01, atol=2e-5)
    np.testing.assert_allclose(got.gradients["gamma"], dgamma, rtol=1e-4, atol=1e-3)


def test_a_large_mean_does_not_drown_the_variance() -> None:
    x = (uniform((64, 2, 16)) + 1e4).astype(np.float32)
    arrays = {"data": x, "gamma": np.ones(2, np.float32), "beta": np.zeros(2, np.float32)}
    aux = {"moving_mean": np.zeros(2, np.float32), "moving_var": np.ones(2, np.float32)}
    head = uniform(x.shape, 1, np.float32)
    got = run("BatchNorm", arrays, head, aux, fix_gamma=False)
    wide = x.astype(np.float64)
    out, dx, _, _ = reference(wide, np.ones(2), np.zeros(2), head.astype(np.float64), 1, 1e-3)
    np.testing.assert_allclose(got.out, out, atol=3e-3)  # the mean itself is known to 1e-3 in float32
    np.testing.assert_allclose(got.gradients["data"], dx, atol=3e-3)


def test_nothing_moves_for_a_batch_without_rows() -> None:
    arrays, aux, _ = setting((4, 3), 1)
    got = run("BatchNorm", {**arrays, "data": np.zeros((0, 3))}, np.zeros((0, 3)), aux)
    for name, array in aux.items():
        np.testing.assert_array_equal(got.aux[name], array)
    assert not got.gradients["beta"].any()


def test_it_keeps_what_the_wanted_gradients_need() -> None:
    op = make_op("BatchNorm", {"fix_gamma": False})
    assert set(op.keeps(frozenset({"beta"}))) == set()
    assert set(op.keeps(frozenset({"gamma"}))) == {"data", "mean", "var"}
    assert set(op.keeps(frozenset({"data"}))) == {"data", "mean", "var", "gamma"}
    assert set(make_op("BatchNorm", {}).keeps(frozenset({"data", "gamma"}))) == {"data", "mean", "var"}
    assert set(make_op("BatchNorm", {"use_global_stats": True}).keeps(frozenset({"data", "gamma"}))) == {"var"}


def test_shapes_follow_both_ways_and_types_too() -> None:
    found = shapes_of("BatchNorm", {"data": (UNKNOWN, UNKNOWN, 4), "beta": (3,)})
    assert (str(found["data"]), found["moving_var"]) == ("(?, 3, 4)", (3,))
    kinds = types_of("BatchNorm", {"data": np.float16})
    assert (kinds["gamma"], kinds["moving_mean"], kinds["node_output"]) == (np.float32, np.float32, np.float16)
    assert types_of("BatchNorm", {"gamma": np.float64})["data"] == np.float64
    with pytest.raises(ShapeError, match=r"gamma 'gamma' must be \(3,\), but it is \(4,\)"):
        shapes_of("BatchNorm", {"data": (2, 3), "gamma": (4,)})
    with pytest.raises(ShapeError, match=r"data 'data' must have an axis 3, but it is \("):
        shapes_of("BatchNorm", {"data": (2, 3)}, axis=3)


def test_its_states_start_at_zero_and_one() -> None:
    op = make_op("BatchNorm", {})
    assert op.variable_attributes("moving_mean") == {"__init__": '["zero", {}]'}
    assert op.variable_attributes("moving_var") == {"__init__": '["one", {}]'}
    assert op.variable_attributes("gamma") == {}


@pytest.mark.parametrize("operator", ["BatchNorm_v1", "_contrib_SyncBatchNorm", "CuDNNBatchNorm", "SyncBatchNorm"])
def test_older_and_synchronised_names_give_the_same_numbers(operator: str) -> None:
    arrays, aux, head = setting((4, 3, 2), 1)
    plain = run("BatchNorm", arrays, head, aux, fix_gamma=False)
    options = {"ndev": 4, "key": "bn0"} if "Sync" in operator else {}
    got = run(operator, arrays, head, aux, fix_gamma=False, **options)
    close(got.out, plain.out)
    for name in plain.gradients:
        close(got.gradients[name], plain.gradients[name], 12)
    for name in aux:
        close(got.aux[name], plain.aux[name])
    shown = run(operator, arrays, None, aux, output_mean_var=True).outputs[2]
    variance = arrays["data"].var(axis=(0, 2))
    close(shown, 1 / np.sqrt(variance + 1e-3) if operator == "CuDNNBatchNorm" else variance)


RELU_DATA = [1.76, 0.4, 0.98, 2.24, 1.87, -0.98, 0.95, -0.15, -0.1, 0.41, 0.14, 1.45, 0.76, 0.12, 0.44, 0.33]
RELU_HEAD = [1.49, -0.21, 0.31, -0.85, -2.55, 0.65, 0.86, -0.74, 2.27, -1.45, 0.05, -0.19, 1.53, 1.47, 0.15, 0.38]
RELU_TRAIN = [1.725986, 0, 0.233905, 2.644189, 0.728883, 0, 0.140537, 0, 0, 0, 0, 1.132979, 0.019031, 0, 0, 0]
RELU_SLOPE = [2.650316, -0.1708, 0.409779, -1.836212, -1.100948, -0.484637, 0.752304, -0.189206, -0.160086, -0.171014,
              -0.165229, -0.556754, 1.113145, -0.093102, 0.020799, -0.018355]  # fmt: skip


def test_batch_norm_with_relu_as_recorded() -> None:
    """What MXNet 1.9.1 gives with oneDNN."""
    arrays = {name: np.array(values, np.float32) for name, values in (("gamma", [1.5, 0.5]), ("beta", [0.1, -0.2]))}
    arrays["data"] = np.array(RELU_DATA, np.float32).reshape(2, 2, 2, 2)
    aux = {"moving_mean": np.array([0.1, 0.2], np.float32), "moving_var": np.array([1, 1.5], np.float32)}
    head = np.array(RELU_HEAD, np.float32).reshape(2, 2, 2, 2)
    found = run("_contrib_BatchNormWithReLU", arrays, [head], aux, fix_gamma=False)
    np.testing.assert_allclose(found.out.ravel(), RELU_TRAIN, atol=2e-6)
    np.testing.assert_allclose(found.gradients["data"].ravel(), RELU_SLOPE, atol=3e-5)
    np.testing.assert_allclose(found.gradients["gamma"], [0.070268, -3.481346], atol=3e-5)
    np.testing.assert_allclose(found.gradients["beta"], [0.76, -0.16], atol=1e-6)
    np.testing.assert_allclose(found.aux["moving_mean"], [0.181, 0.22175], atol=1e-6)
    np.testing.assert_allclose(found.aux["moving_var"], [0.961388, 1.411029], atol=2e-6)
