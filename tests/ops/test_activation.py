"""Activations against the mathematics of one value, written with ``math``; edges: 0, infinities, NaN, large values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.streams import seed
from tests.ops.runs import close, graph_of, run, shapes_of, uniform

Scalar = Callable[[float], float]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _gate(x: float) -> float:
    return math.tanh(max(x, 0.0) + math.log1p(math.exp(-abs(x))))


ACTIVATIONS: dict[str, tuple[Scalar, Scalar]] = {
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "tanh": (math.tanh, lambda x: 1 / math.cosh(x) ** 2 if abs(x) < 300 else 0.0),
    "softrelu": (lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))), _sigmoid),
    "softsign": (lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2),
    "log_sigmoid": (lambda x: min(x, 0.0) - math.log1p(math.exp(-abs(x))), lambda x: _sigmoid(-x)),
    "mish": (lambda x: x * _gate(x), lambda x: _gate(x) + x * _sigmoid(x) * (1 - _gate(x) ** 2)),
}
EDGES = np.array([-1e4, -800.0, -90.0, -20.0, -1.5, -1e-3, 0.0, 1e-3, 1.5, 20.0, 90.0, 800.0, 1e4])


def each(function: Scalar, data: Any) -> Any:
    return np.array([function(float(x)) for x in data.ravel()]).reshape(data.shape)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_activation(kind: str, dtype: Any) -> None:
    data = np.concatenate([EDGES, 4 * uniform((50,))]).astype(dtype)
    head = uniform(data.shape, 1, dtype)
    value, slope = ACTIVATIONS[kind]
    found = run("Activation", {"data": data}, [head], act_type=kind)
    digits = {2: 2, 4: 6, 8: 12}[np.dtype(dtype).itemsize]
    close(found.out, each(value, data), digits)
    close(found.gradients["data"], each(slope, data) * head, digits)
    assert found.out.dtype == dtype


def test_small_tails_keep_their_relative_precision() -> None:
    data = np.array([-20.0, -60.0])
    close(np.log(run("Activation", {"data": data}, act_type="sigmoid").out), [-20, -60], 8)
    close(np.log(run("Activation", {"data": data}, act_type="softrelu").out), [-20, -60], 8)


def test_relu_at_the_edges() -> None:
    data = np.array([-np.inf, -1.0, 0.0, 1.0, np.inf, np.nan], np.float32)
    head = np.array([np.inf, np.nan, np.inf, 2.0, 3.0, 4.0], np.float32)
    found = run("Activation", {"data": data}, [head], act_type="relu")
    np.testing.assert_array_equal(found.out, [0, 0, 0, 1, np.inf, np.nan])
    np.testing.assert_array_equal(found.gradients["data"], [0, 0, 0, 2, 3, 4])  # 0 · inf is no NaN
    whole = run("Activation", {"data": np.array([-3, 0, 4], np.int32)}, act_type="relu")
    assert whole.out.tolist() == [0, 0, 4]


_L, _A = 1.0507009873554805, 1.6732632423543772
LEAKY: dict[str, tuple[dict[str, Any], Scalar, Scalar]] = {
    "leaky": ({}, lambda x: x if x > 0 else 0.25 * x, lambda x: 1.0 if x > 0 else 0.25),
    "steep": ({"slope": 3.0}, lambda x: x if x > 0 else 3 * x, lambda x: 1.0 if x > 0 else 3.0),
    "turned": ({"slope": -0.5}, lambda x: x if x > 0 else -0.5 * x, lambda x: 1.0 if x > 0 else -0.5),
    "elu": (
        {"act_type": "elu", "slope": 0.7},
        lambda x: x if x > 0 else 0.7 * math.expm1(x),
        lambda x: 1.0 if x > 0 else 0.7 * math.exp(x),
    ),
    "elu turned": (
        {"act_type": "elu", "slope": -0.7},
        lambda x: x if x > 0 else -0.7 * math.expm1(x),
        lambda x: 1.0 if x > 0 else -0.7 * math.exp(x),
    ),
    # The gradient below 0 is not the derivative: it is recorded so.
    "selu": (
        {"act_type": "selu"},
        lambda x: _L * (x if x > 0 else _A * math.expm1(x)),
        lambda x: _L if x > 0 else _L * (_L * _A * math.expm1(x) + _A),
    ),
    "gelu": (
        {"act_type": "gelu"},
        lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
        lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
}


@pytest.mark.parametrize("kind", LEAKY)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_leaky(kind: str, dtype: Any) -> None:
    attributes, value, slope = LEAKY[kind]
    data = np.concatenate([EDGES[2:-2], 3 * uniform((60,))]).astype(dtype)
    head = uniform(data.shape, 1, dtype)
    found = run("LeakyReLU", {"data": data}, [head], **attributes)
    digits = 6 if dtype == np.float32 else 12
    close(found.out, each(value, data), digits)
    close(found.gradients["data"], each(slope, data) * head, digits)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (2, 3, 2, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_prelu(shape: tuple[int, ...], shared: bool) -> None:
    data, head = uniform(shape), uniform(shape, 1)
    gamma = np.array([0.3]) if shared else np.array([0.3, -0.2, 1.7])
    wide = np.broadcast_to(gamma.reshape(1, -1, *(1,) * (len(shape) - 2)), shape)
    found = run("LeakyReLU", {"data": data, "gamma": gamma}, [head], act_type="prelu")
    close(found.out, np.where(data > 0, data, wide * data))
    close(found.gradients["data"], head * np.where(data > 0, 1, wide))
    sums = np.where(data > 0, 0, data * head)
    close(found.gradients["gamma"], [sums.sum()] if shared else sums.sum((0, *range(2, len(shape)))))


def test_prelu_infers_gamma() -> None:
    assert shapes_of("LeakyReLU", {"data": (2, 3, 4)}, act_type="prelu")["gamma"] == (3,)
    assert shapes_of("LeakyReLU", {"data": (2, 3), "gamma": (1,)}, act_type="prelu")["gamma"] == (1,)
    with pytest.raises(ShapeError, match=r"gamma 'gamma' must be \(3,\), but it is \(4,\)"):
        shapes_of("LeakyReLU", {"data": (2, 3), "gamma": (4,)}, act_type="prelu")
    with pytest.raises(ShapeError, match=r"gamma 'gamma' must have one dim, but it is \(3, 1\)"):
        shapes_of("LeakyReLU", {"data": (2, 3), "gamma": (3, 1)}, act_type="prelu")


def test_rrelu_draws_slopes_in_training_only() -> None:
    seed(7)
    data = -np.ones((40, 50))
    data[:, 0] = 2
    still = run("LeakyReLU", {"data": data}, [np.ones(data.shape)], train=False, act_type="rrelu")
    close(still.out, np.where(data > 0, data, data * (0.125 + 0.334) / 2))
    bounds: dict[str, Any] = {"act_type": "rrelu", "lower_bound": 0.2, "upper_bound": 0.6}
    found = run("LeakyReLU", {"data": data}, [np.full(data.shape, 3.0)], **bounds)
    slopes = -found.out[:, 1:]
    assert slopes.min() >= 0.2 and slopes.max() < 0.6
    assert abs(slopes.mean() - 0.4) < 0.02 and abs(slopes.std() - 0.4 / math.sqrt(12)) < 0.01
    np.testing.assert_array_equal(found.out[:, 0], 2)
    close(found.gradients["data"][:, 1:], 3 * slopes)
    np.testing.assert_array_equal(found.gradients["data"][:, 0], 3)
    again = run("LeakyReLU", {"data": data[10:]}, first_row=10, **bounds)
    np.testing.assert_array_equal(again.out, found.out[10:])  # a slope belongs to its row of the whole batch


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(AttributeValueError, match="did you mean 'sigmoid'"):
        graph_of("Activation", act_type="sigmod")
    with pytest.raises(AttributeValueError, match="'act_type' must be one of leaky, elu"):
        graph_of("LeakyReLU", act_type="swish")


def test_terms_of_the_gradient_of_gamma_are_not_rounded_to_16_bits() -> None:
    rng = np.random.default_rng(0)
    data = -np.abs(rng.normal(1, 1, (4096, 1))).astype(np.float16)
    head = rng.normal(0, 1, data.shape)
    head -= data * (((data * head).sum() - 1) / (data.astype(float) ** 2).sum())  # large terms whose sum is about 1
    head = head.astype(np.float16)
    arrays = {"data": data, "gamma": np.array([0.25], np.float16)}
    found = run("LeakyReLU", arrays, [head], act_type="prelu").gradients["gamma"]
    exact = float((data.astype(float) * head).sum())
    assert abs(float(found[0]) - exact) <= 2.0**-9 * abs(exact)
