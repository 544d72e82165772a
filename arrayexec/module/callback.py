"""Functions that training calls: after a batch, after an epoch, after an evaluation.

After a batch and after an evaluation they get a `BatchEndParam`, after an epoch its number, the symbol, parameters and
auxiliary states.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import AttributeValueError, UnknownNameError, near_miss
from ..train.callback import BatchEndParam, ProgressBar, Speedometer, check_count
from ..train.metric_base import EvalMetric
from .base_module import StopTraining
from .model_files import save_checkpoint

__all__ = [
    "BatchEndParam", "EarlyStopping", "LogValidationMetricsCallback", "ProgressBar", "Speedometer", "StopTraining",
    "do_checkpoint", "log_train_metric", "module_checkpoint",
]  # fmt: skip

_LOG = logging.getLogger(__name__)
Array = Any


def _after_epochs(who: str, period: int, write: Callable[..., None]) -> Callable[..., None]:
    """After every ``period``-th epoch: ``write(number, symbol, arg_params, aux_params)``; the first number is 1."""
    check_count(who, "period", period)

    def after_epoch(
        epoch: int, symbol: Any = None, arg_params: Mapping[str, Array] | None = None,
        aux_params: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        if (epoch + 1) % period == 0:
            write(epoch + 1, symbol, arg_params or {}, aux_params)

    return after_epoch


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """After every ``period``-th epoch: write ``prefix-symbol.json`` and ``prefix-%04d.params``; the first epoch is 1.

    Optimizer states are not among them: `module_checkpoint` writes these as well, ``fit(checkpoint=…)`` everything.
    """
    return _after_epochs("do_checkpoint", period, functools.partial(save_checkpoint, prefix))


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """After every ``period``-th epoch: ``mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)``."""

    def write(epoch: int, *_: Any) -> None:
        mod.save_checkpoint(prefix, epoch, save_optimizer_states)

    return _after_epochs("module_checkpoint", period, write)


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[BatchEndParam], None]:
    """Every ``period`` batches: log the metric; with ``auto_reset`` that of the batches since the last time.

    The value of the epoch still covers all batches.
    """
    check_count("log_train_metric", "period", period)
    window = Speedometer(1, period, auto_reset)

    def after_batch(param: BatchEndParam) -> None:
        if param.nbatch % period == 0:
            for name, value in window.metric_values(param.eval_metric):
                _LOG.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)

    return after_batch


class LogValidationMetricsCallback:
    """After an evaluation: log its metrics."""

    def __call__(self, param: BatchEndParam) -> None:
        """Log ``Epoch[e] Validation-name=value`` for every metric."""
        for name, value in [] if param.eval_metric is None else param.eval_metric.get_name_value():
            _LOG.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)


class EarlyStopping:
    """After an evaluation (``eval_end_callback``): end `fit` when a metric has not got better for ``patience`` epochs.

    Better is larger by more than ``min_delta``, or smaller with ``mode="min"``; NaN never is. ``metric``: its name,
    needed where there are several. `fit` returns as after its last epoch; ``best`` and ``best_epoch`` tell the best.
    Ranks see the same metric and stop together.
    """

    def __init__(self, patience: int = 3, metric: str | None = None, mode: str = "max", min_delta: float = 0.0) -> None:
        if mode not in ("max", "min"):
            raise AttributeValueError(f"EarlyStopping: mode must be 'max' or 'min', but it is {mode!r}")
        if patience < 1:
            raise AttributeValueError(f"EarlyStopping: patience must be at least 1, but it is {patience}")
        self.patience, self.metric, self.min_delta = patience, metric, min_delta
        self._sign = 1 if mode == "max" else -1
        self.best, self.best_epoch = math.nan, -1

    def __call__(self, param: BatchEndParam) -> None:
        """Look at an evaluation; raises `StopTraining` when it is time, UnknownNameError without such a metric."""
        value = self._value(param.eval_metric)
        better = self._sign * (value - self.best) > self.min_delta
        if self.best_epoch < 0 or better or (math.isnan(self.best) and not math.isnan(value)):
            self.best, self.best_epoch = value, param.epoch
        elif param.epoch - self.best_epoch >= self.patience:
            raise StopTraining(
                f"{self.metric or 'the metric'} has not got better than {self.best:g} since epoch {self.best_epoch}"
            )

    def get_state(self) -> dict[str, Any]:
        """The best value and its epoch; checkpoints of `fit` keep them."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        self.best, self.best_epoch = float(state["best"]), int(state["best_epoch"])

    def _value(self, metric: EvalMetric | None) -> float:
        values = {} if metric is None else dict(metric.get_name_value())
        if self.metric is None and len(values) == 1:
            return next(iter(values.values()))
        if self.metric not in values:
            wanted = "metric must name one of several" if self.metric is None else f"there is no metric {self.metric!r}"
            raise UnknownNameError(
                f"EarlyStopping: {wanted}{near_miss(self.metric or '', values)}; "
                f"evaluated: {', '.join(values) or 'none'}"
            )
        return values[self.metric]
