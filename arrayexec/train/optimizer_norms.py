"""Optimizers whose rates depend on the lengths of a parameter and its gradient: LARS, LAMB, LBSGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..context import Array, Context
from .optimizer_adam import Moments
from .optimizer_base import Factors, Key, Scratch, State, norms, register, used
from .optimizer_sgd import SGD
from .options import one_of


@register
class LARS(SGD):
    """`SGD` with ``lr·eta·|w| / (|g| + wd·|w| + eps)``; as it is for names that end in gamma, beta or bias.

    ``|g|`` is that of the rescaled gradient. With ``momentum_correction`` momentum is multiplied by the rate of the
    step over that of the step before, where a scheduler changes it. Only ``_weight`` decays. You, Gitman, Ginsburg,
    "Large batch training of convolutional networks", 2017.
    """

    keyless = False
    decays = ("_weight",)
    elementwise = False

    def __init__(
        self, momentum: float = 0.0, lazy_update: bool = True, eta: float = 0.001, eps: float = 0.0,
        momentum_correction: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(momentum, lazy_update, **options)
        self.eta = eta
        self.eps = eps
        self.momentum_correction = momentum_correction

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate before lengths are known, decay, momentum, and whether lengths matter."""
        momentum = self.momentum
        if momentum and self.momentum_correction and self.lr_scheduler is not None:
            before = self.lr_scheduler(max(self.num_update - 1, 1))
            momentum *= self.learning_rate / before if before else 1.0
        layer = not str(self._name(key)).endswith(("gamma", "beta", "bias"))
        return {"lr": lr, "wd": wd, "momentum": momentum, "layer": layer}

    def apply(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """Move parameters by rates that lengths give."""
        layers = [part for part, one in zip(parts, factors, strict=True) if one["layer"]]
        lengths = iter(norms(context, [array[part] for part in layers for array in (weight, grad)]))
        found = []
        for one in factors:
            lr = one["lr"]
            if one["layer"]:
                w, g = next(lengths), next(lengths) * abs(self.rescale_grad)
                if w > 0.0 and g > 0.0:
                    lr *= self.eta * w / (g + one["wd"] * w + self.eps)
            found.append(self.moves(lr, lr * one["wd"], one["momentum"]))
        super().apply(context, weight, grad, state, scratch, found, parts, spread)


@register
class LBSGD(SGD):
    """`SGD` whose rate warms up to ``batch_scale`` times itself; a step is made of the mean of batch_scale gradients.

    ``warmup_strategy``: ``linear``, ``power2``, ``sqrt`` of the part of ``warmup_epochs·updates_per_epoch`` updates
    that is done (counted from ``begin_epoch``); ``lars``: times ``√(|w|² / (|g|² + wd·|w|²))`` within 0.01 … 100.
    Raises AttributeValueError for another one. ``num_epochs`` changes nothing.
    """

    state_names = ("momentum", "sum")

    def __init__(
        self, momentum: float = 0.0, multi_precision: bool = False, warmup_strategy: str = "linear",
        warmup_epochs: int = 5, batch_scale: int = 1, updates_per_epoch: int = 32, begin_epoch: int = 0,
        num_epochs: int = 60, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(momentum, multi_precision=multi_precision, **options)
        self.warmup_strategy = one_of("LBSGD", "warmup_strategy", warmup_strategy, ("linear", "power2", "sqrt", "lars"))
        self.warmup_epochs = warmup_epochs
        self.batch_scale = batch_scale
        self.updates_per_epoch = updates_per_epoch
        self.init_updates = begin_epoch * updates_per_epoch
        self.num_epochs = num_epochs
        self.elementwise = warmup_strategy != "lars"

    def used_states(self) -> tuple[str, ...]:
        """Momentum, and the sum where several gradients make a step."""
        return super().used_states()[:1] + (("sum",) if self.batch_scale > 1 else ())

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Rate, decay and whether this gradient completes a step."""
        count = self.init_updates + self.update_counts[key] - self.begin_num_update
        lr *= 1.0 if self.warmup_strategy == "lars" else self._warm(count)
        return {"lr": lr, "wd": wd, "moves": count % self.batch_scale == 0}

    def _warm(self, count: int) -> float:
        end = self.warmup_epochs * self.updates_per_epoch
        if count >= end:
            return float(self.batch_scale)
        done = {"linear": count / end, "power2": (count / end) ** 2, "sqrt": math.sqrt(count / end)}
        return 1.0 + (self.batch_scale - 1) * done[self.warmup_strategy]

    def apply(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """Add to the sum; where that completes a step, move parameters by it."""
        total = state.get("sum")
        if total is not None:
            context.xp.add(total, grad, out=total, casting="same_kind")
            if not factors[0]["moves"]:
                return
            context.xp.multiply(total, 1.0 / self.batch_scale, out=total)
            grad, state = total, {name: array for name, array in state.items() if name != "sum"}
        rates = [one["lr"] for one in factors]
        if self.warmup_strategy == "lars":
            lengths = norms(context, [array[part] for part in parts for array in (weight, grad)])
            for i, (one, w, g) in enumerate(zip(factors, lengths[::2], lengths[1::2], strict=True)):
                rates[i] *= min(max(w / math.sqrt(g * g + one["wd"] * w * w + 1e-18), 0.01), 100.0)
        found = [self.moves(lr, lr * one["wd"], self.momentum) for lr, one in zip(rates, factors, strict=True)]
        super().apply(context, weight, grad, state, scratch, found, parts, spread)
        if total is not None:
            total.fill(0)


@register
class LAMB(Moments):
    """``m = β1·m + (1−β1)·g``, ``v = β2·v + (1−β2)·g²``, ``d = m̂ / (√v̂ + ε) + wd·w``, ``w −= lr·|w|/|d|·d``.

    g is clipped; ``m̂ = m / (1−β1^t)``, ``v̂ = v / (1−β2^t)`` with ``bias_correction``, else m and v. ``|w|`` is kept
    within lower_bound … upper_bound; where a length is 0 the rate is lr. You et al., "Large batch optimization for deep
    learning", 2019.
    """

    elementwise = False

    def __init__(
        self, learning_rate: float | None = None, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6,
        lower_bound: float | None = None, upper_bound: float | None = None, bias_correction: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(learning_rate, beta1, beta2, **options)
        self.epsilon = epsilon
        self.lower_bound = lower_bound
        self.upper_bound = upper_bound
        self.bias_correction = bias_correction
        self._directions = Scratch()

    def factors(self, key: Key, lr: float, wd: float) -> Factors:
        """Corrections of moments, rate and decay."""
        t = self.update_counts[key]
        mean, var = (1.0 / (1.0 - beta**t) if self.bias_correction else 1.0 for beta in (self.beta1, self.beta2))
        return {"mean": mean, "var": var, "wd": wd, "lr": lr}

    def apply(
        self, context: Context, weight: Array, grad: Array, state: State, scratch: Scratch,
        factors: Sequence[Factors], parts: Sequence[slice], spread: Any,
    ) -> None:  # fmt: skip
        """Find the direction of every parameter, then move by it."""
        kind = weight.dtype if weight.dtype.itemsize > 2 else "float32"
        direction = self._directions.arrays(context, 1, weight.shape, kind)[0]
        self._in_pieces(context, weight, grad, state | {"direction": direction}, scratch, spread(factors))
        lengths = norms(context, [array[part] for part in parts for array in (weight, direction)])
        rates = []
        for one, w, d in zip(factors, lengths[::2], lengths[1::2], strict=True):
            w = max(w, self.lower_bound) if self.lower_bound else w
            w = min(w, self.upper_bound) if self.upper_bound else w
            rates.append({"move": one["lr"] * (w / d if w and d else 1.0)})
        self._in_pieces(context, weight, direction, {}, scratch, spread(rates))

    def rule(self, xp: Any, w: Array, g: Array, state: State, a: Array, b: Array, **factors: Any) -> None:
        """The direction, or the move by one."""
        if "move" in factors:
            xp.multiply(g, factors["move"], out=a, dtype=a.dtype)
            xp.subtract(w, a, out=w)
            return
        m, v, direction = state["mean"], state["var"], state["direction"]
        self._rescaled(xp, g, a, self._scaled(1.0))
        self._move_moments(xp, m, v, a, b)
        xp.multiply(v, factors["var"], out=b)
        xp.sqrt(b, out=b)
        xp.add(b, self.epsilon, out=b)
        xp.multiply(m, factors["mean"], out=a)
        xp.divide(a, b, out=direction)
        if used(factors["wd"]):
            xp.multiply(w, factors["wd"], out=a)
            xp.add(direction, a, out=direction)
