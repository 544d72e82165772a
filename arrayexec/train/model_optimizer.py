"""Optimizers of a `ModelHelper`: Caffe2's rules on flat stretches of parameters, and its policies of learning rates.

Steps count from 1. A rule gets the learning rate of the step; gradients are reduced, and weight decay is in them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy

from ..context import Array, Context
from ..errors import AttributeValueError, near_miss
from .optimizer_base import descend, move_mean, move_mean_square
from .options import number

Policy = Callable[[int], float]
State = Mapping[str, Array]
_PIECE = 1 << 15  # elements of one piece on the processor: all that a rule touches stays in the cache


def _fixed(step: int) -> float:
    return 1.0


def _step(step: int, *, stepsize: int, gamma: float) -> float:
    return float(gamma ** (step // stepsize))


def _multistep(step: int, *, boundaries: Sequence[int], gamma: float) -> float:
    return float(gamma ** bisect.bisect_right(boundaries, step))


def _poly(step: int, *, max_iter: int, power: float) -> float:
    return float(max(0.0, 1 - step / max_iter) ** power)


def _inv(step: int, *, gamma: float, power: float) -> float:
    return float((1 + gamma * step) ** -power)


POLICIES: Mapping[str, tuple[Callable[..., float], Mapping[str, Any]]] = {
    "fixed": (_fixed, {}),
    "step": (_step, {"stepsize": None, "gamma": 0.1}),
    "multistep": (_multistep, {"boundaries": None, "gamma": 0.1}),
    "poly": (_poly, {"max_iter": None, "power": 1.0}),
    "inv": (_inv, {"gamma": None, "power": 1.0}),
}
"""Factor of the base rate at a step, and its options with their defaults (None: must be given)."""

WARM_UP = ("start_warmup_multiplier", "constant_warmup_num_iter", "linear_warmup_num_iter")


def policy(base_learning_rate: float, policy: str = "fixed", **options: Any) -> Policy:
    """Learning rate as a function of the step: base rate times the policy's factor.

    fixed 1 · step γ^⌊t / stepsize⌋ · multistep γ^(boundaries ≤ t) · poly (1 - t / max_iter)^power · inv
    (1 + γ·t)^-power. In the first ``constant_warmup_num_iter`` steps times ``start_warmup_multiplier``, in the next
    ``linear_warmup_num_iter`` times what grows from there to 1. Raises AttributeValueError for unknown names and
    options, and for those that are missing.
    """
    if policy not in POLICIES:
        raise AttributeValueError(f"learning rate: there is no policy {policy!r}{near_miss(policy, POLICIES)}")
    base_learning_rate = number("learning rate", "base_learning_rate", base_learning_rate)
    factor, defaults = POLICIES[policy]
    known = (*defaults, *WARM_UP)
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise AttributeValueError(
            f"learning rate: the policy '{policy}' has no option '{unknown}'{near_miss(unknown, known)}"
        )
    start, constant, linear = (options.pop(name, default) for name, default in zip(WARM_UP, (1.0, 0, 0), strict=True))
    given = {**defaults, **options}
    missing = next((name for name, value in given.items() if value is None), None)
    if missing is not None:
        raise AttributeValueError(f"learning rate: the policy '{policy}' needs the option '{missing}'")

    def rate(step: int) -> float:
        warm = 1.0
        if step <= constant:
            warm = start
        elif step <= constant + linear:
            warm = start + (1 - start) * (step - constant) / linear
        return base_learning_rate * factor(step, **given) * warm

    return rate


class ModelOptimizer:
    """A rule for all parameters of a model, with its learning rate by step.

    ``weight_decay`` times the weights is added to their reduced gradients; ``max_gradient_norm``: a step whose gradient
    (each parameter counted once) is longer is taken with a learning rate that makes up for it.
    ``sparse_dedup_aggregator='sum'``: gradients of a row of a sparse table are summed before it moves; without, the row
    moves by each in turn. ``blobs``: what a state is called behind the name of its parameter.
    """

    blobs: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, rate: Policy, weight_decay: float = 0.0, max_gradient_norm: float | None = None,
        sparse_dedup_aggregator: str | None = None,
    ) -> None:  # fmt: skip
        if sparse_dedup_aggregator not in (None, "sum"):
            raise AttributeValueError(
                f"{type(self).__name__}: sparse_dedup_aggregator must be None or 'sum', "
                f"but it is {sparse_dedup_aggregator!r}"
            )
        self.sparse_dedup_aggregator = sparse_dedup_aggregator
        self.rate, self.weight_decay, self.max_gradient_norm = rate, weight_decay, max_gradient_norm
        self.name = f"{type(self).__name__}Optimizer_0"
        self.schedule = ""
        """The learning rate in words, as ranks compare it."""
        self._scratch: dict[Any, Array] = {}

    def used_states(self) -> tuple[str, ...]:
        """Names of the states that `rule` uses."""
        return tuple(self.blobs)

    def learning_rate_blobs(self, prefix: str) -> list[str]:
        """Names of the blobs that hold the learning rate."""
        return [f"{self.name}_lr_{prefix.partition('_')[0]}"]

    def norm_ratio(self, norm: float) -> float:
        """By what the learning rate is multiplied for a gradient of length ``norm``."""
        limit = self.max_gradient_norm
        return 1.0 if limit is None else limit / max(norm, limit)

    def decay(self, context: Context, weight: Array, grad: Array) -> None:
        """Add the weight decay to the gradient of weights."""
        with context.enter():
            for w, g, _, a, _ in self._pieces(context, weight, grad, {}):
                context.xp.multiply(w, self.weight_decay, out=a)
                context.xp.add(g, a, out=g)

    def apply(self, context: Context, step: int, weight: Array, grad: Array, state: State, rate: float) -> None:
        """Move a stretch of parameters and its states by the gradient. ``rate``: learning rate of the step."""
        factors = self.of_step(step, rate)
        with context.enter():
            for piece in self._pieces(context, weight, grad, state):
                self.rule(context.xp, *piece, **factors)  # type: ignore[arg-type]

    def _pieces(
        self, context: Context, weight: Array, grad: Array, state: State
    ) -> Iterator[tuple[Array, Array, State, Array, Array]]:
        """Parameters, gradients, states and two arrays of scratch, piece by piece."""
        flat = [array.reshape(-1) for array in (weight, grad, *state.values())]
        size = flat[0].size if context.xp is not numpy else min(flat[0].size, _PIECE)
        key = (context, weight.dtype)
        if key not in self._scratch or self._scratch[key].shape[1] < size:
            self._scratch[key] = context.empty((2, size), weight.dtype, "state")
        for start in range(0, flat[0].size, max(size, 1)):
            w, g, *states = (array[start : start + size] for array in flat)
            a, b = (self._scratch[key][i, : w.size] for i in range(2))
            yield w, g, dict(zip(state, states, strict=True)), a, b

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """Change parameters ``w`` and ``state`` in place by gradient ``g``; ``a``, ``b`` are scratch of their shape."""
        raise AttributeValueError(f"optimizer {type(self).__name__}: the class must define rule()")

    def of_step(self, step: int, rate: float) -> dict[str, float]:
        """The factors that `rule` gets."""
        return {"lr": rate}


class Sgd(ModelOptimizer):
    """``m = momentum·m + lr·g``, ``w -= m``; Nesterov: ``w -= (1 + momentum)·m - momentum·m_old``."""

    blobs: ClassVar[Mapping[str, str]] = {"momentum": "_momentum"}

    def __init__(self, momentum: float = 0.0, nesterov: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.momentum, self.nesterov = momentum, nesterov

    def used_states(self) -> tuple[str, ...]:
        """None without momentum."""
        return ("momentum",) if self.momentum else ()

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        xp.multiply(g, factors["lr"], out=a)
        if self.momentum:
            m = state["momentum"]
            if self.nesterov:
                xp.multiply(m, self.momentum, out=b)
                xp.add(w, b, out=w)
            xp.multiply(m, self.momentum, out=m)
            xp.add(m, a, out=m)
            xp.multiply(m, 1 + self.momentum * self.nesterov, out=a)
        xp.subtract(w, a, out=w)


class Adam(ModelOptimizer):
    """``m = β1·m + (1-β1)·g``, ``v = β2·v + (1-β2)·g²``, ``w -= lr·√(1-β2^t)/(1-β1^t)·m / (√v + ε)``.

    t counts from 1; with ``caffe2_compat`` from 2, as in Caffe2.
    """

    blobs: ClassVar[Mapping[str, str]] = {"first": "_first_moment", "second": "_second_moment"}

    def __init__(
        self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, caffe2_compat: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.beta1, self.beta2, self.epsilon, self.caffe2_compat = beta1, beta2, epsilon, caffe2_compat

    def of_step(self, step: int, rate: float) -> dict[str, float]:
        """The learning rate with the correction of the first steps' bias."""
        t = step + self.caffe2_compat
        return {"lr": rate * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)}

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        m, v = state["first"], state["second"]
        move_mean(xp, m, self.beta1, g, a)
        move_mean_square(xp, v, self.beta2, g, a)
        xp.sqrt(v, out=a)
        xp.add(a, self.epsilon, out=a)
        descend(xp, w, factors["lr"], m, a, a)


class Adagrad(ModelOptimizer):
    """``h = decay·h + g²``, ``w -= lr·g / (√h + ε)``."""

    blobs: ClassVar[Mapping[str, str]] = {"squares": "_square_sum"}

    def __init__(self, epsilon: float = 1e-4, decay: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.epsilon, self.forget = epsilon, decay

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        h = state["squares"]
        xp.multiply(g, g, out=a)
        if self.forget != 1:
            xp.multiply(h, self.forget, out=h)
        xp.add(h, a, out=h)
        xp.sqrt(h, out=a)
        xp.add(a, self.epsilon, out=a)
        descend(xp, w, factors["lr"], g, a, a)


class RmsProp(ModelOptimizer):
    """``s += (1 - decay)·(g² - s)``, ``m = momentum·m + lr·g / √(s + ε)``, ``w -= m``."""

    blobs: ClassVar[Mapping[str, str]] = {"squares": "_mean_squares", "momentum": "_momentum"}

    def __init__(self, decay: float = 0.9, momentum: float = 0.0, epsilon: float = 1e-5, **options: Any) -> None:
        super().__init__(**options)
        self.forget, self.momentum, self.epsilon = decay, momentum, epsilon

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: float) -> None:
        """One step of the formula of the class."""
        s, m = state["squares"], state["momentum"]
        xp.multiply(g, g, out=a)
        xp.subtract(a, s, out=a)
        xp.multiply(a, 1 - self.forget, out=a)
        xp.add(s, a, out=s)
        xp.add(s, self.epsilon, out=a)
        xp.sqrt(a, out=a)
        xp.divide(g, a, out=a)
        xp.multiply(a, factors["lr"], out=a)
        xp.multiply(m, self.momentum, out=m)
        xp.add(m, a, out=m)
        xp.subtract(w, m, out=w)


_COMMON = ("weight_decay", "max_gradient_norm", "sparse_dedup_aggregator")


def _built(model: Any, kind: type[ModelOptimizer], rates: dict[str, Any], given: dict[str, Any]) -> ModelOptimizer:
    common = {name: rates.pop(name) for name in _COMMON if name in rates}
    model.optimizer = kind(rate=policy(**rates), **given, **common)
    model.optimizer.schedule = repr(sorted(rates.items()))
    if model.weight_decay is not None:
        model.optimizer.weight_decay = model.weight_decay
    return model.optimizer  # type: ignore[no-any-return]


def build_sgd(
    model: Any, base_learning_rate: float = 0.01, policy: str = "fixed", momentum: float = 0.0, nesterov: bool = True,
    **options: Any,
) -> ModelOptimizer:  # fmt: skip
    """Let a model be trained by `Sgd`.

    ``options``: weight_decay, max_gradient_norm, sparse_dedup_aggregator (see `ModelOptimizer`), and those of `policy`.
    """
    rates = {"base_learning_rate": base_learning_rate, "policy": policy, **options}
    return _built(model, Sgd, rates, {"momentum": momentum, "nesterov": nesterov})


def build_adam(
    model: Any, base_learning_rate: float = 0.001, policy: str = "fixed", beta1: float = 0.9, beta2: float = 0.999,
    epsilon: float = 1e-8, caffe2_compat: bool = False, **options: Any,
) -> ModelOptimizer:  # fmt: skip
    """Let a model be trained by `Adam`; ``options`` as in `build_sgd`."""
    rates = {"base_learning_rate": base_learning_rate, "policy": policy, **options}
    given = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "caffe2_compat": caffe2_compat}
    return _built(model, Adam, rates, given)


def build_adagrad(
    model: Any, base_learning_rate: float = 0.01, policy: str = "fixed", epsilon: float = 1e-4, decay: float = 1.0,
    **options: Any,
) -> ModelOptimizer:  # fmt: skip
    """Let a model be trained by `Adagrad`; ``options`` as in `build_sgd`."""
    rates = {"base_learning_rate": base_learning_rate, "policy": policy, **options}
    return _built(model, Adagrad, rates, {"epsilon": epsilon, "decay": decay})


def build_rms_prop(
    model: Any, base_learning_rate: float = 0.1, policy: str = "fixed", decay: float = 0.9, momentum: float = 0.0,
    epsilon: float = 1e-5, **options: Any,
) -> ModelOptimizer:  # fmt: skip
    """Let a model be trained by `RmsProp`; ``options`` as in `build_sgd`."""
    rates = {"base_learning_rate": base_learning_rate, "policy": policy, **options}
    return _built(model, RmsProp, rates, {"decay": decay, "momentum": momentum, "epsilon": epsilon})


def add_weight_decay(model: Any, weight_decay: float) -> None:
    """Let the optimizer that is built add ``weight_decay`` times the weights to their gradients."""
    model.weight_decay = weight_decay
    if model.optimizer is not None:
        model.optimizer.weight_decay = weight_decay
