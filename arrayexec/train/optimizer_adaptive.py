"""Optimizers of rates by element from squares of gradients: AdaGrad, GroupAdaGrad, AdaDelta, RMSProp, Ftrl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from ..context import Array, Context
from ..errors import AttributeValueError, ShapeError
from .optimizer_base import (
    Factors,
    Key,
    Optimizer,
    Scratch,
    State,
    descend,
    move_mean,
    move_mean_square,
    register,
    used,
)


@register
class AdaGrad(Optimizer):
    """``h += clip(g)²``, ``w −= lr·(clip(g) / √(h + eps) + wd·w)``.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic optimization", 2011.
    """

    keyless = True
    state_names = ("history",)

    def __init__(self, eps: float = 1e-7, **options: Any) -> None:
        super().__init__(**options)
        self.float_stable_eps = eps

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate and what decay leaves."""
        return {"lr": lr, "keep": 1.0 - lr * wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        h = state["history"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        xp.multiply(a, a, out=b)
        xp.add(h, b, out=h)
        xp.add(h, self.float_stable_eps, out=b)
        xp.sqrt(b, out=b)
        descend(xp, w, factors["lr"], a, b, a, factors["keep"])


@register
class GroupAdaGrad(Optimizer):
    """`AdaGrad` with one history a row: ``h += mean(clip(g)², axis=1)``; for tables (rows, columns), without decay.

    Raises AttributeValueError for weight decay, ShapeError for a parameter that is no table.
    """

    state_names = ("history",)
    flat = False
    elementwise = False

    def __init__(self, eps: float = 1e-5, **options: Any) -> None:
        super().__init__(**options)
        self.float_stable_eps = eps

    def state_like(self, weight: Array) -> tuple[tuple[str, ...], Any]:
        """Names of the states and their type: at least float32."""
        names, kind = super().state_like(weight)
        return names, kind if kind.itemsize > 2 else numpy.dtype(numpy.float32)

    def state_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a state: a column."""
        if len(shape) != 2:
            raise ShapeError(f"GroupAdaGrad: a parameter must be a table of two axes, but its shape is {shape}")
        return (shape[0], 1) if name == "history" else shape

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """The rate."""
        if wd:
            raise AttributeValueError(
                f"GroupAdaGrad: weight decay must be 0, but that of {self._name(key)!r} is {wd}: leave wd out, or set "
                "its wd_mult to 0"
            )
        return {"lr": lr}

    def apply(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """One step of the formula of the class for a whole table."""
        xp, h = context.xp, state["history"]
        a, b = scratch.arrays(context, 2, weight.shape, h.dtype)
        self._rescaled(xp, grad, a, self._scaled(1.0))
        xp.multiply(a, a, out=b)
        xp.add(h, xp.mean(b, axis=1, keepdims=True), out=h)
        xp.divide(a, xp.sqrt(h + self.float_stable_eps), out=a)
        xp.multiply(a, factors[0]["lr"], out=a)
        xp.subtract(weight, a, out=weight, casting="same_kind")


@register
class AdaDelta(Optimizer):
    """``n = rho·n + (1−rho)·g²``, ``δ = √(s+ε) / √(n+ε)·g``, ``s = rho·s + (1−rho)·δ²``, ``w −= δ + wd·w``.

    g is clipped; there is no learning rate. Zeiler, "ADADELTA: an adaptive learning rate method", 2012.
    """

    keyless = True
    state_names = ("acc_g", "acc_delta")

    def __init__(self, rho: float = 0.9, epsilon: float = 1e-5, **options: Any) -> None:
        super().__init__(**options)
        self.rho = rho
        self.epsilon = epsilon

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """What decay leaves."""
        return {"keep": 1.0 - wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        n, s = state["acc_g"], state["acc_delta"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        move_mean_square(xp, n, self.rho, a, b)
        if used(factors["keep"], 1.0):
            xp.multiply(w, factors["keep"], out=w)
        xp.add(s, self.epsilon, out=b)
        xp.sqrt(b, out=b)
        xp.multiply(a, b, out=a)
        xp.add(n, self.epsilon, out=b)
        xp.sqrt(b, out=b)
        xp.divide(a, b, out=a)
        xp.subtract(w, a, out=w)
        move_mean_square(xp, s, self.rho, a, b)


@register
class RMSProp(Optimizer):
    """``g = clip(g + wd·w)``, ``n = γ1·n + (1−γ1)·g²``, ``w −= lr·g / √(n + ε)``.

    ``centered``: also ``m = γ1·m + (1−γ1)·g``, ``δ = γ2·δ − lr·g / √(n − m² + ε)``, ``w += δ``. Parameters are cut to
    ±``clip_weights`` afterwards. Tieleman, Hinton, lecture 6.5, 2012; Graves, "Generating sequences with recurrent
    neural networks", 2013.
    """

    keyless = True
    state_names = ("n", "g", "delta")
    default_lr = 0.001

    def __init__(
        self, learning_rate: float | None = None, gamma1: float = 0.9, gamma2: float = 0.9, epsilon: float = 1e-8,
        centered: bool = False, clip_weights: float | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate=learning_rate, **options)
        self.gamma1 = gamma1
        self.gamma2 = gamma2
        self.epsilon = epsilon
        self.centered = centered
        self.clip_weights = clip_weights

    def used_states(self) -> tuple[str, ...]:
        """The mean of squares alone unless centered."""
        return self.state_names if self.centered else self.state_names[:1]

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        n = state["n"]
        self._decayed(xp, w, g, factors["wd"], a, b)
        move_mean_square(xp, n, self.gamma1, a, b)
        if self.centered:
            m = state["g"]
            move_mean(xp, m, self.gamma1, a, b)
            xp.multiply(m, m, out=b)
            xp.subtract(n, b, out=b)
            xp.maximum(b, 0.0, out=b)  # rounding may make a variance of 0 negative
            xp.add(b, self.epsilon, out=b)
        else:
            xp.add(n, self.epsilon, out=b)
        xp.sqrt(b, out=b)
        xp.divide(a, b, out=a)
        xp.multiply(a, factors["lr"], out=a)
        if self.centered:
            delta = state["delta"]
            xp.multiply(delta, self.gamma2, out=delta)
            xp.subtract(delta, a, out=delta)
            xp.add(w, delta, out=w)
        else:
            xp.subtract(w, a, out=w)
        if self.clip_weights:
            xp.minimum(w, self.clip_weights, out=w)
            xp.maximum(w, -self.clip_weights, out=w)


@register
class Ftrl(Optimizer):
    """``z += g − (√(n+g²) − √n)·w/lr``, ``n += g²``, ``w = −sign(z)·max(|z|−lamda1, 0) / ((beta+√n)/lr + wd)``.

    g is clipped. McMahan et al., "Ad click prediction: a view from the trenches", 2013.
    """

    keyless = True
    state_names = ("z", "n")
    default_lr = 0.1
    divides_by_rate = True

    def __init__(
        self, lamda1: float = 0.01, learning_rate: float | None = None, beta: float = 1.0, **options: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.lamda1 = lamda1
        self.beta = beta

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """The inverse of the rate, and decay."""
        return {"inverse": 1.0 / lr, "wd": wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        z, n = state["z"], state["n"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        xp.add(z, a, out=z)
        xp.multiply(a, a, out=a)
        xp.sqrt(n, out=b)
        xp.add(n, a, out=n)
        xp.sqrt(n, out=a)
        xp.subtract(a, b, out=b)
        xp.multiply(b, w, out=b)
        xp.multiply(b, factors["inverse"], out=b)
        xp.subtract(z, b, out=z)
        xp.add(a, self.beta, out=a)
        xp.multiply(a, factors["inverse"], out=a)
        xp.add(a, factors["wd"], out=a)
        xp.absolute(z, out=b)
        xp.subtract(b, self.lamda1, out=b)
        xp.maximum(b, 0.0, out=b)
        xp.divide(b, a, out=b)
        xp.copysign(b, z, out=w)
        xp.negative(w, out=w)
