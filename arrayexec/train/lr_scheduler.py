"""Learning rates as functions of the number of updates; without memory, so resuming needs no replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..errors import AttributeValueError
from .options import number, one_of

DEFAULT_RATE = 0.01


class LRScheduler:
    """``scheduler(num_update)``: the learning rate of an update, first rising from ``warmup_begin_lr``.

    During the first ``warmup_steps`` updates the rate is ``warmup_begin_lr`` (``warmup_mode='constant'``)
    or goes in a straight line from it to ``base_lr`` (``'linear'``). An optimizer that has a learning rate
    of its own sets `base_lr` (0.01) unless it was given here. A subclass gives `rate`.

    Raises AttributeValueError for options that mean nothing.
    """

    def __init__(
        self,
        base_lr: float | None = None,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0.0,
        warmup_mode: str = "linear",
    ) -> None:
        who = type(self).__name__
        self.base_lr_given = base_lr is not None
        self.base_lr = DEFAULT_RATE if base_lr is None else number(who, "base_lr", base_lr)
        self.warmup_steps = _counted(self, "warmup_steps", warmup_steps, 0)
        self.warmup_begin_lr = number(who, "warmup_begin_lr", warmup_begin_lr)
        self.warmup_mode = one_of(who, "warmup_mode", warmup_mode, ("linear", "constant"))
        if warmup_steps and base_lr is not None and warmup_begin_lr > base_lr:
            raise AttributeValueError(
                f"{who}: warmup_begin_lr must not exceed base_lr ({base_lr}), "
                f"but it is {warmup_begin_lr}"
            )

    def __call__(self, num_update: int) -> float:
        """The learning rate of update number ``num_update`` (the first is 1)."""
        return self.get_warmup_lr(num_update) if num_update < self.warmup_steps else self.rate(num_update)

    def get_warmup_lr(self, num_update: int) -> float:
        """The learning rate of an update of the warm-up."""
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        return self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * num_update / self.warmup_steps

    def rate(self, num_update: int) -> float:
        """The learning rate after the warm-up; here it stays at `base_lr`."""
        return self.base_lr


class FactorScheduler(LRScheduler):
    """Multiplied by ``factor`` after every ``step`` updates, but never below ``stop_factor_lr``."""

    def __init__(
        self,
        step: int,
        factor: float = 1.0,
        stop_factor_lr: float = 1e-8,
        base_lr: float | None = None,
        **warmup: Any,
    ) -> None:
        super().__init__(base_lr, **warmup)
        self.step = _counted(self, "step", step, 1)
        self.factor = _shrinking(self, factor)
        self.stop_factor_lr = number(type(self).__name__, "stop_factor_lr", stop_factor_lr)

    def rate(self, num_update: int) -> float:
        """``base_lr · factor^k``; k goes up by one at the updates step + 1, 2·step + 1, …"""
        drops = max(0, num_update - 1) // self.step
        if drops == 0:
            return self.base_lr
        return max(self.base_lr * self.factor**drops, self.stop_factor_lr)


class MultiFactorScheduler(LRScheduler):
    """Multiplied by ``factor`` after each of the updates listed in ``step`` (rising)."""

    def __init__(self, step: Sequence[int], factor: float = 1.0, base_lr: float | None = None, **warmup: Any) -> None:
        super().__init__(base_lr, **warmup)
        if not isinstance(step, (list, tuple)) or not step:
            raise AttributeValueError(f"MultiFactorScheduler: step must be a list of updates, but it is {step!r}")
        self.step = [_counted(self, "step", one, 1) for one in step]
        if any(a >= b for a, b in zip(self.step, self.step[1:], strict=False)):
            raise AttributeValueError(f"MultiFactorScheduler: step must rise, but it is {list(step)}")
        self.factor = _shrinking(self, factor)

    def rate(self, num_update: int) -> float:
        """``base_lr · factor^k``; k is the number of steps that ``num_update`` has passed."""
        return self.base_lr * self.factor ** sum(num_update > step for step in self.step)


class _Decay(LRScheduler):
    """From ``base_lr`` at the end of the warm-up to ``final_lr`` at update ``max_update``, by `shape`."""

    def __init__(self, max_update: int, base_lr: float | None = None, final_lr: float = 0.0, **warmup: Any) -> None:
        super().__init__(base_lr, **warmup)
        self.max_update = _counted(self, "max_update", max_update, self.warmup_steps + 1)
        self.final_lr = number(type(self).__name__, "final_lr", final_lr)

    def rate(self, num_update: int) -> float:
        """The learning rate after the warm-up."""
        done = (num_update - self.warmup_steps) / (self.max_update - self.warmup_steps)
        return self.final_lr + (self.base_lr - self.final_lr) * self.shape(min(done, 1.0))

    def shape(self, done: float) -> float:
        """1 at 0, 0 at 1."""
        return 1.0 - done


class PolyScheduler(_Decay):
    """``(1 − t)^pwr``: falls from ``base_lr`` to ``final_lr`` at update ``max_update``."""

    def __init__(
        self,
        max_update: int,
        base_lr: float | None = None,
        pwr: float = 2,
        final_lr: float = 0.0,
        **warmup: Any,
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, **warmup)
        self.pwr = number(type(self).__name__, "pwr", pwr)

    def shape(self, done: float) -> float:
        """1 at 0, 0 at 1."""
        return float((1.0 - done) ** self.pwr)


class CosineScheduler(_Decay):
    """Half a wave of the cosine: falls from ``base_lr`` to ``final_lr`` at update ``max_update``."""

    def shape(self, done: float) -> float:
        """1 at 0, 0 at 1."""
        return (1.0 + math.cos(math.pi * done)) / 2.0


def _counted(scheduler: LRScheduler, option: str, value: int, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise AttributeValueError(
            f"{type(scheduler).__name__}: {option} must be an integer >= {least}, but it is {value!r}"
        )
    return value


def _shrinking(scheduler: LRScheduler, factor: float) -> float:
    if number(type(scheduler).__name__, "factor", factor) > 1.0:
        raise AttributeValueError(
            f"{type(scheduler).__name__}: factor must be at most 1 for the rate to fall, but it is {factor}"
        )
    return factor
