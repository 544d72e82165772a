"""Rules of a model's optimizers against their formulas in float64, on stretches longer than a piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.train.model_optimizer import Adagrad, Adam, ModelOptimizer, RmsProp, Sgd, policy

Arrays = dict[str, np.ndarray[Any, Any]]


def momentum(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    s["momentum"] = 0.9 * s["momentum"] + lr * g
    return w - s["momentum"]


def nesterov(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    before = s["momentum"]
    s["momentum"] = 0.9 * before + lr * g
    return w - (1.9 * s["momentum"] - 0.9 * before)


def adam(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    s["first"], s["second"] = 0.9 * s["first"] + 0.1 * g, 0.99 * s["second"] + 0.01 * g * g
    return w - lr * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) * s["first"] / (np.sqrt(s["second"]) + 1e-6)


def adam_from_two(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    return adam(w, g, s, lr, t + 1)


def adagrad(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    s["squares"] = 0.8 * s["squares"] + g * g
    return w - lr * g / (np.sqrt(s["squares"]) + 1e-3)


def rms_prop(w: Any, g: Any, s: Arrays, lr: float, t: int) -> Any:
    s["squares"] = s["squares"] + 0.3 * (g * g - s["squares"])
    s["momentum"] = 0.5 * s["momentum"] + lr * g / np.sqrt(s["squares"] + 1e-4)
    return w - s["momentum"]


ADAM = {"beta2": 0.99, "epsilon": 1e-6}
RULES: dict[str, tuple[Any, type[ModelOptimizer], dict[str, Any]]] = {
    "sgd": (lambda w, g, s, lr, t: w - lr * g, Sgd, {}),
    "momentum": (momentum, Sgd, {"momentum": 0.9, "nesterov": False}),
    "nesterov": (nesterov, Sgd, {"momentum": 0.9}),
    "adam": (adam, Adam, ADAM),
    "adam from two": (adam_from_two, Adam, {**ADAM, "caffe2_compat": True}),
    "adagrad": (adagrad, Adagrad, {"epsilon": 1e-3, "decay": 0.8}),
    "rms_prop": (rms_prop, RmsProp, {"decay": 0.7, "momentum": 0.5, "epsilon": 1e-4}),
}


@pytest.mark.parametrize("size", [7, 70_000])
@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, size: int) -> None:
    formula, kind, options = RULES[name]
    optimizer = kind(rate=policy(0.05, "step", stepsize=2, gamma=0.5), **options)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=size).astype(np.float32)
    wanted = weight.astype(np.float64)
    state = {key: np.zeros(size, np.float32) for key in optimizer.used_states()}
    held = {key: np.zeros(size) for key in state}
    for step in range(1, 5):
        gradient = rng.normal(size=size).astype(np.float32)
        rate = 0.05 * 0.5 ** (step // 2)
        assert optimizer.rate(step) == pytest.approx(rate)
        optimizer.apply(ax.cpu(), step, weight, gradient, state, rate)
        wanted = formula(wanted, gradient.astype(np.float64), held, rate, step)
        np.testing.assert_allclose(weight, wanted, rtol=1e-5, atol=1e-6)
    for key, value in held.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=1e-6)


def test_decay_and_the_length_of_a_gradient() -> None:
    optimizer = Sgd(rate=policy(0.1), weight_decay=0.5, max_gradient_norm=2.0)
    weight, gradient = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    optimizer.decay(ax.cpu(), weight, gradient)
    assert gradient.tolist() == [1, 1.5, 2]
    assert weight.tolist() == [0, 1, 2]
    assert [optimizer.norm_ratio(norm) for norm in (1.0, 2.0, 8.0)] == [1, 1, 0.25]
    assert Sgd(rate=policy(0.1)).norm_ratio(1e9) == 1
