"""Optimizers that go down the gradient: SGD, ccSGD, NAG, SGLD, Signum, DCASGD, Test."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..context import Array, copyto
from ..errors import AttributeValueError
from .optimizer_base import Factors, Key, Optimizer, State, register, used
from .random import generator


@register
class SGD(Optimizer):
    """``m = momentum·m − lr·(clip(g) + wd·w)``, ``w += m``. ``lazy_update`` is for sparse gradients: all are dense."""

    keyless = True
    state_names: ClassVar[tuple[str, ...]] = ("momentum",)

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.lazy_update = lazy_update

    def used_states(self) -> tuple[str, ...]:
        """There is none without momentum."""
        return self.state_names if self.momentum else ()

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate of the gradient, decay, momentum."""
        return self.moves(lr, lr * wd, self.momentum)

    def moves(self, lr: float, decay: float, momentum: float) -> Factors:
        """What `rule` needs."""
        if self.momentum:
            return {"rate": self._scaled(lr), "decay": decay, "momentum": momentum}
        return {"rate": self._scaled(lr), "keep": 1.0 - decay}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        self._rescaled(xp, g, a, factors["rate"])
        if "momentum" not in state:
            if "keep" not in factors:
                raise AttributeValueError(
                    f"{type(self).__name__}: momentum must stay 0, as it was when training began, but it is "
                    f"{self.momentum}: begin with a small one"
                )
            if used(factors["keep"], 1.0):
                xp.multiply(w, factors["keep"], out=w)
            xp.subtract(w, a, out=w)
            return
        m = state["momentum"]
        # a momentum that has become 0 gives what is kept of the parameter
        momentum, decay = (0.0, 1.0 - factors["keep"]) if "keep" in factors else (factors["momentum"], factors["decay"])
        xp.multiply(m, momentum, out=m)
        if used(decay):
            xp.multiply(w, decay, out=b)
            xp.subtract(m, b, out=m)
        xp.subtract(m, a, out=m)
        xp.add(w, m, out=w)


@register
class ccSGD(SGD):
    """`SGD` under an older name."""


@register
class NAG(SGD):
    """Looks ahead: ``d = lr·(clip(g) + wd·w)``, ``w += momentum·(momentum·m − d) − d``, ``m = momentum·m − d``.

    As in MXNet, the decay in the new ``m`` is that of the new ``w``. Nesterov's gradient as in Sutskever, Martens,
    Dahl, Hinton, "On the importance of initialization and momentum in deep learning", 2013.
    """

    def __init__(self, momentum: float = 0.0, **options: Any) -> None:
        super().__init__(momentum=momentum, **options)

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate of the gradient, decay, and what decay leaves of the parameter."""
        ahead = 1.0 + self.momentum
        return {"rate": self._scaled(lr), "decay": lr * wd, "keep": 1.0 - ahead * lr * wd}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        if "momentum" not in state:
            super().rule(xp, w, g, state, a, b, **factors)
            return
        m, decay = state["momentum"], factors["decay"]
        self._rescaled(xp, g, a, factors["rate"])
        xp.multiply(m, self.momentum, out=m)
        xp.subtract(m, a, out=m)
        xp.multiply(m, self.momentum, out=b)
        xp.subtract(b, a, out=b)
        if used(decay):
            xp.multiply(w, factors["keep"], out=w)
        xp.add(w, b, out=w)
        if used(decay):
            xp.multiply(w, decay, out=b)
            xp.subtract(m, b, out=m)


@register
class SGLD(Optimizer):
    """``w −= lr/2·(clip(g) + wd·w)``, plus normal noise of variance lr, which depends on seed, name and count alone.

    Welling, Teh, "Bayesian learning via stochastic gradient Langevin dynamics", 2011.
    """

    flat = False  # every parameter has its own stream of noise
    elementwise = False

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate, decay and the stream of this update."""
        noise = generator("langevin", str(self._name(key)), self.update_counts[key])
        return {"rate": self._scaled(lr / 2), "decay": lr / 2 * wd, "deviation": math.sqrt(lr), "noise": noise}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        self._rescaled(xp, g, a, factors["rate"])
        self._add_scaled(xp, a, w, factors["decay"], b)
        xp.subtract(w, a, out=w)
        copyto(a, factors["noise"].standard_normal(a.shape, dtype="float32"))
        xp.multiply(a, factors["deviation"], out=a)
        xp.add(w, a, out=w)


@register
class Signum(Optimizer):
    """``m = momentum·m − (1−momentum)·(clip(g) + wd·w)``, ``w = (1−lr·wd_lh)·w + lr·sign(m)``.

    Without momentum ``w = (1−lr·(wd+wd_lh))·w − lr·sign(g)``. Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD",
    2018.
    """

    keyless = True
    state_names = ("momentum",)

    def __init__(
        self, learning_rate: float | None = None, momentum: float = 0.9, wd_lh: float = 0.0, **options: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.momentum = momentum
        self.wd_lh = wd_lh

    def used_states(self) -> tuple[str, ...]:
        """There is none without momentum."""
        return self.state_names if self.momentum else ()

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rates of sign, gradient and decay."""
        new = 1.0 - self.momentum
        outside = self.wd_lh if self.momentum else self.wd_lh + wd
        return {"lr": lr, "rate": self._scaled(new), "decay": new * wd, "keep": 1.0 - lr * outside}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        self._rescaled(xp, g, a, factors["rate"])
        if "momentum" in state:
            m = state["momentum"]
            self._add_scaled(xp, a, w, factors["decay"], b)
            xp.multiply(m, self.momentum, out=m)
            xp.subtract(m, a, out=m)
            xp.negative(m, out=a)
        xp.sign(a, out=a)
        xp.multiply(a, factors["lr"], out=a)
        xp.multiply(w, factors["keep"], out=w)
        xp.subtract(w, a, out=w)


@register
class DCASGD(Optimizer):
    """``m = momentum·m − lr·(g + wd·w + lamda·g²·(w − p))``, ``p = w``, ``w += m``; g is clipped.

    Makes up for gradients that come late. Zheng et al., "Asynchronous stochastic gradient descent with delay
    compensation", 2016.
    """

    keyless = True
    state_names = ("momentum", "previous")
    copies = ("previous",)

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **options: Any) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.lamda = lamda

    def used_states(self) -> tuple[str, ...]:
        """Without momentum the previous parameter alone."""
        return self.state_names if self.momentum else self.state_names[1:]

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        p = state["previous"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        xp.subtract(w, p, out=b)
        xp.multiply(b, a, out=b)
        xp.multiply(b, a, out=b)
        xp.multiply(b, self.lamda, out=b)
        xp.add(a, b, out=a)
        self._add_scaled(xp, a, w, factors["wd"], b)
        xp.multiply(a, factors["lr"], out=a)
        xp.copyto(p, w)
        if "momentum" not in state:
            xp.subtract(w, a, out=w)
            return
        m = state["momentum"]
        xp.multiply(m, self.momentum, out=m)
        xp.subtract(m, a, out=m)
        xp.add(w, m, out=w)


@register
class Test(Optimizer):
    """``w += rescale_grad·g``, and the state is a copy of ``w``: for tests of what stands around an optimizer."""

    __test__ = False  # it is none of pytest's
    keyless = True
    state_names = ("weight",)

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """One step of the formula of the class."""
        xp.multiply(g, self.rescale_grad, out=a, dtype=a.dtype)
        xp.add(w, a, out=w)
        xp.copyto(state["weight"], w)
