"""Softmax and its kin against sums of exponentials in long doubles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, types_of, uniform


def softmax(data: Any, axis: int) -> Any:
    powers = np.exp(data.astype(np.longdouble) - data.max())
    return powers / powers.sum(axis, keepdims=True)


def jacobian_times(p: Any, head: Any, axis: int) -> Any:
    """Σⱼ headⱼ ∂pⱼ/∂xᵢ, with the Jacobian pⱼ (δᵢⱼ - pᵢ) written out."""
    p, head = np.moveaxis(p, axis, -1), np.moveaxis(head, axis, -1)
    whole = p[..., :, None] * (np.eye(p.shape[-1]) - p[..., None, :])
    return np.moveaxis(np.einsum("...j,...ji->...i", head.astype(np.longdouble), whole), -1, axis)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("temperature", [None, 0.5, 3.0])
@pytest.mark.parametrize(("operator", "sign"), [("softmax", 1), ("softmin", -1)])
def test_softmax(axis: int, temperature: float | None, operator: str, sign: int) -> None:
    data, head = 5 * uniform((3, 4, 2)), uniform((3, 4, 2), 1)
    scale = sign / (temperature or 1)
    p = softmax(data * scale, axis)
    found = run(operator, {"data": data}, [head], axis=axis, temperature=temperature)
    close(found.out, p.astype(float))
    close(found.gradients["data"], (scale * jacobian_times(p, head, axis)).astype(float))


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_log_softmax(axis: int, temperature: float | None) -> None:
    data, head = 5 * uniform((3, 4)), uniform((3, 4), 1)
    scale = 1 / (temperature or 1)
    p = softmax(data * scale, axis)
    found = run("log_softmax", {"data": data}, [head], axis=axis, temperature=temperature)
    close(found.out, np.log(p).astype(float), 12)
    close(found.gradients["data"], (scale * jacobian_times(p, head / p, axis)).astype(float), 12)


def test_large_values_neither_overflow_nor_vanish() -> None:
    data = np.array([[1e4, 1e4 - 1, -1e4]], np.float32)
    close(run("softmax", {"data": data}).out, [[0.7310586, 0.2689414, 0]], 6)
    close(run("log_softmax", {"data": data}).out, [[-0.3132617, -1.3132617, -20000.3132617]], 6)


@pytest.mark.parametrize("axis", [1, 2, -3])
@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_length(axis: int, kind: Any) -> None:
    data, head = 3 * uniform((3, 4, 2)), uniform((3, 4, 2), 1)
    data[..., -1, :] += 500  # what is left out must not reach the shift
    shape = np.delete(data.shape, axis)
    length = np.random.default_rng(2).integers(0, data.shape[axis] + 1, shape).astype(kind)
    length.flat[0] = 0
    places = np.arange(data.shape[axis]).reshape(-1, *(1,) * (2 - axis % 3))
    inside = places < np.expand_dims(length, axis)
    wanted, back = np.zeros_like(data), np.zeros_like(data)
    for row in np.ndindex(tuple(shape)):
        at = list(row)
        at.insert(axis % 3, slice(0, int(length[row])))
        if length[row]:
            p = softmax(data[tuple(at)], 0)
            wanted[tuple(at)] = p
            back[tuple(at)] = jacobian_times(p, head[tuple(at)], 0)
    found = run("softmax", {"data": data, "length": length}, [head], axis=axis, use_length=True)
    close(found.out, wanted)
    close(found.gradients["data"], back)
    assert not found.out[~inside].any()


def test_types() -> None:
    assert types_of("softmax", {"data": np.float32}, dtype="float64")["node_output"] == np.float64
    for operator in ("softmax", "log_softmax", "softmin"):
        found = run(operator, {"data": uniform((3, 4), 0, np.float16)}, [np.ones((3, 4))], dtype="float32")
        assert found.out.dtype == np.float32
        assert found.gradients["data"].dtype == np.float16


def test_half_precision_sums_in_single() -> None:
    data = np.zeros((1, 4096), np.float16)
    np.testing.assert_array_equal(run("softmax", {"data": data}).out, np.full(data.shape, 1 / 4096))


@pytest.mark.parametrize("mode", ["instance", "channel"])
def test_softmax_activation(mode: str) -> None:
    data, head = uniform((2, 3, 4)), uniform((2, 3, 4), 1)
    axis = 1 if mode == "channel" else 2
    p = softmax(data, axis)
    found = run("SoftmaxActivation", {"data": data}, [head], mode=mode)
    close(found.out, p.astype(float))
    close(found.gradients["data"], jacobian_times(p, head, axis).astype(float))


def test_softmax_activation_of_three_dims_as_recorded() -> None:
    """What MXNet 1.9.1 gives on the CPU: each line along the last axis for itself."""
    data = np.cos(np.arange(6.0)).reshape(1, 3, 2)
    recorded = [[[0.61294, 0.38706], [0.63965, 0.36035], [0.28144, 0.71856]]]
    np.testing.assert_allclose(run("SoftmaxActivation", {"data": data}).out, recorded, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(ShapeError, match=r"must have an axis 2, but it is \(3, 4\)"):
        shapes_of("softmax", {"data": (3, 4)}, axis=2)
    with pytest.raises(ShapeError, match="must hold something along axis -1"):
        shapes_of("softmax", {"data": (3, 0)})
    with pytest.raises(ShapeError, match=r"length 'length' must be \(3,\), but it is \(4,\)"):
        shapes_of("softmax", {"data": (3, 4), "length": (4,)}, use_length=True)
    with pytest.raises(AttributeValueError, match="'temperature' must not be 0"):
        graph_of("softmax", temperature=0)
    with pytest.raises(AttributeValueError, match="'use_length' must be False"):
        graph_of("log_softmax", use_length=True)


@pytest.mark.parametrize("operator", ["softmax", "softmin", "log_softmax", "SoftmaxActivation"])
@pytest.mark.parametrize("case", ["a NaN", "the top infinite", "all at the bottom"])
def test_nan_and_infinity_stay_in_their_row(operator: str, case: str) -> None:
    data, top = uniform((3, 4)), -np.inf if operator == "softmin" else np.inf
    if case == "all at the bottom":
        data[1] = -top
    else:
        data[1, 2] = np.nan if case == "a NaN" else top
    found = run(operator, {"data": data}, uniform((3, 4), 1))
    assert np.isnan(found.out).any(axis=1).tolist() == [False, True, False]
    assert np.isnan(found.gradients["data"]).any(axis=1).tolist() == [False, True, False]
    assert run(operator, {"data": data[:0]}, data[:0]).out.shape == (0, 4)


@pytest.mark.parametrize("given", [{}, {"use_length": True}])
def test_bfloat16(given: dict[str, Any]) -> None:
    narrow = pytest.importorskip("ml_dtypes").bfloat16
    arrays = {"data": (4 * uniform((3, 64))).astype(narrow)} | ({"length": np.array([64, 5, 0])} if given else {})
    head = uniform((3, 64), 1).astype(narrow)
    wide = arrays | {"data": arrays["data"].astype(np.float64)}
    found, right = run("softmax", arrays, head, **given), run("softmax", wide, head.astype(np.float64), **given)
    assert found.out.dtype == narrow
    np.testing.assert_allclose(found.out.astype(np.float64), right.out, atol=2.0**-7 * right.out.max())
    want = right.gradients["data"]
    np.testing.assert_allclose(found.gradients["data"].astype(np.float64), want, atol=2.0**-6 * abs(want).max())


@pytest.mark.parametrize("name", ["softmax", "SoftmaxActivation"])
@pytest.mark.parametrize("seed", range(4))
def test_what_all_head_gradients_have_in_common_leaves_nothing_in_16_bits(name: str, seed: int) -> None:
    data = np.random.default_rng(seed).uniform(-2, 2, (5, 7)).astype(np.float16)
    head = np.full((5, 7), 100.0, np.float16)
    head[:, 0] += np.float16(1.0)
    found = run(name, {"data": data}, [head]).gradients["data"]
    want = run(name, {"data": data.astype(np.float64)}, [head.astype(np.float64)]).gradients["data"]
    np.testing.assert_allclose(found.astype(np.float64), want, atol=2.0**-9 * abs(want).max())


@pytest.mark.parametrize("name", ["softmax", "softmin", "log_softmax"])
def test_a_temperature_is_not_rounded_to_16_bits(name: str) -> None:
    data = np.random.default_rng(0).uniform(-20, 20, (16, 9)).astype(np.float16)
    found = run(name, {"data": data}, temperature=3.0).out
    want = run(name, {"data": data.astype(np.float64)}, temperature=3.0).out
    np.testing.assert_allclose(found.astype(np.float64), want, atol=1e-7, rtol=2.0**-10)
