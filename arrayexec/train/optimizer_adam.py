"""Optimizers of moments of the gradient: Adam, AdamW, Adamax, Nadam, FTML."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy

from ..context import Array
from .optimizer_base import Factors, Key, Optimizer, State, descend, move_mean, move_mean_square, register


class Moments(Optimizer):
    """Base: running means of the gradient, ``m``, and of its square, ``v``."""

    keyless = True
    state_names: ClassVar[tuple[str, ...]] = ("mean", "var")
    default_lr = 0.001

    def __init__(
        self, learning_rate: float | None = None, beta1: float = 0.9, beta2: float = 0.999, **options: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.beta1 = beta1
        self.beta2 = beta2

    def _move_moments(self, xp: Any, m: Array, v: Array, a: Array, b: Array) -> None:
        """``m = β1·m + (1−β1)·a``, ``v = β2·v + (1−β2)·a²``."""
        move_mean(xp, m, self.beta1, a, b)
        move_mean_square(xp, v, self.beta2, a, b)

    def _corrected(self, key: Key, lr: float) -> float:
        """``lr·√(1−β2^t) / (1−β1^t)``: makes up for the zeros that moments begin with."""
        t = self.update_counts[key]
        return lr * math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)


@register
class Adam(Moments):
    """``g = clip(g + wd·w)``, ``m = β1·m + (1−β1)·g``, ``v = β2·v + (1−β2)·g²``, ``w −= lr_t·m / (√v + ε)``.

    ``lr_t = lr·√(1−β2^t) / (1−β1^t)``, t being the parameter's own count of updates. ``lazy_update`` is for sparse
    gradients: all are dense. Kingma, Ba, "Adam: a method for stochastic optimization", 2014.
    """

    def __init__(
        self, learning_rate: float | None = None, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        lazy_update: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, beta1, beta2, **options)
        self.epsilon = epsilon
        self.lazy_update = lazy_update

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """The learning rate with the correction of the first steps' bias."""
        return {"lr": self._corrected(key, lr), "wd": wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        m, v = state["mean"], state["var"]
        self._decayed(xp, w, g, factors["wd"], a, b)
        self._move_moments(xp, m, v, a, b)
        xp.sqrt(v, out=a)
        xp.add(a, self.epsilon, out=a)
        descend(xp, w, factors["lr"], m, a, a)


@register
class AdamW(Moments):
    """`Adam` without decay in its moments: ``w −= lr_t·m / (√v + ε) + lr·wd·w``; ``lr_t = lr`` unless correct_bias.

    Loshchilov, Hutter, "Decoupled weight decay regularization", 2017.
    """

    def __init__(
        self, learning_rate: float | None = None, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6,
        correct_bias: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, beta1, beta2, **options)
        self.epsilon = epsilon
        self.correct_bias = correct_bias

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """The learning rate with the correction of the first steps' bias, and what decay leaves."""
        rate = self._corrected(key, lr) if self.correct_bias else lr
        return {"lr": rate, "keep": 1.0 - lr * wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        m, v = state["mean"], state["var"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        self._move_moments(xp, m, v, a, b)
        xp.sqrt(v, out=a)
        xp.add(a, self.epsilon, out=a)
        descend(xp, w, factors["lr"], m, a, a, factors["keep"])


@register
class Adamax(Moments):
    """``g = clip(g + wd·w)``, ``m = β1·m + (1−β1)·g``, ``u = max(β2·u, |g|)``, ``w −= lr / (1−β1^t)·m / u``.

    Where no gradient was ever other than 0, nothing moves. Kingma, Ba, "Adam", 2014, section 7.
    """

    default_lr = 0.002

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """The learning rate with the correction of the first steps' bias."""
        return {"lr": lr / (1.0 - self.beta1 ** self.update_counts[key]), "wd": wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        m, u = state["mean"], state["var"]
        self._decayed(xp, w, g, factors["wd"], a, b)
        move_mean(xp, m, self.beta1, a, b)
        xp.absolute(a, out=a)
        xp.multiply(u, self.beta2, out=u)
        xp.maximum(u, a, out=u)
        xp.maximum(u, _TINY, out=a)
        descend(xp, w, factors["lr"], m, a, a)


_TINY = float(numpy.finfo(numpy.float32).tiny)


@register
class Nadam(Moments):
    """Adam that looks ahead: ``μ_t = β1·(1 − 0.5·0.96^(t·schedule_decay))``, ``Π`` the product of all μ so far,

    ``w −= lr·((1−μ_t)/(1−Π)·g + μ_{t+1}/(1−Π·μ_{t+1})·m) / (√(v/(1−β2^t)) + ε)``; moments as in `Adam`. All
    parameters have one ``Π``, as in MXNet. Dozat, "Incorporating Nesterov momentum into Adam", 2016.
    """

    keyless = False
    elementwise = False  # another number of parameters is another product

    def __init__(
        self, learning_rate: float | None = None, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
        schedule_decay: float = 0.004, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, beta1, beta2, **options)
        self.epsilon = epsilon
        self.schedule_decay = schedule_decay
        self.m_schedule = 1.0

    def extra_state(self) -> dict[str, float]:
        """The product of the momenta of all updates so far."""
        return {"m_schedule": self.m_schedule}

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Weights of gradient and mean, and the correction of the second moment."""
        t = self.update_counts[key]
        now, then = (self.beta1 * (1.0 - 0.5 * 0.96 ** (one * self.schedule_decay)) for one in (t, t + 1))
        self.m_schedule *= now
        return {
            "gradient": lr * (1.0 - now) / (1.0 - self.m_schedule),
            "mean": lr * then / (1.0 - self.m_schedule * then),
            "var": 1.0 / (1.0 - self.beta2**t),
            "wd": wd,
        }

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        m, v = state["mean"], state["var"]
        self._decayed(xp, w, g, factors["wd"], a, b)
        self._move_moments(xp, m, v, a, b)
        xp.multiply(a, factors["gradient"], out=a)
        xp.multiply(m, factors["mean"], out=b)
        xp.add(a, b, out=a)
        xp.multiply(v, factors["var"], out=b)
        xp.sqrt(b, out=b)
        xp.add(b, self.epsilon, out=b)
        xp.divide(a, b, out=a)
        xp.subtract(w, a, out=w)


@register
class FTML(Moments):
    """``g = clip(g + wd·w)``, ``v = β2·v + (1−β2)·g²``, ``d_t = (1−β1^t)/lr·(√(v/(1−β2^t)) + ε)``,

    ``z = β1·z + (1−β1)·g − (d_t − β1·d)·w``, ``d = d_t``, ``w = −z/d``. Zheng, Kwok, "Follow the moving leader in deep
    learning", 2017.
    """

    state_names = ("d", "v", "z")
    default_lr = Optimizer.default_lr
    divides_by_rate = True

    def __init__(self, beta1: float = 0.6, beta2: float = 0.999, epsilon: float = 1e-8, **options: Any) -> None:
        super().__init__(beta1=beta1, beta2=beta2, **options)
        self.epsilon = epsilon

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Corrections of the first steps' bias."""
        t = self.update_counts[key]
        return {"d": (1.0 - self.beta1**t) / lr, "v": 1.0 / (1.0 - self.beta2**t), "wd": wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        d, v, z = state["d"], state["v"], state["z"]
        self._decayed(xp, w, g, factors["wd"], a, b)
        self._move_moments(xp, z, v, a, b)
        xp.multiply(v, factors["v"], out=a)
        xp.sqrt(a, out=a)
        xp.add(a, self.epsilon, out=a)
        xp.multiply(a, factors["d"], out=a)  # the new d
        xp.multiply(d, self.beta1, out=b)
        xp.subtract(a, b, out=b)
        xp.multiply(b, w, out=b)
        xp.subtract(z, b, out=z)
        xp.copyto(d, a)
        xp.divide(z, d, out=w)
        xp.negative(w, out=w)
