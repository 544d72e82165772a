"""Progress while training: functions that are called after every batch with a `BatchEndParam`.

Those that need modules or files are in `arrayexec.module.callback`, the public face of all.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, NamedTuple, TextIO

from ..errors import AttributeValueError
from .metric_base import EvalMetric

_LOG = logging.getLogger(__name__)


class BatchEndParam(NamedTuple):
    """What a callback gets after a batch."""

    epoch: int
    nbatch: int
    eval_metric: EvalMetric | None
    locals: dict[str, Any] | None = None


def check_count(who: str, option: str, value: int) -> None:
    """AttributeValueError unless an option counts something."""
    if value < 1:
        raise AttributeValueError(f"{who}: {option} must be at least 1, but it is {value}")


class Speedometer:
    """Logs samples per second and metrics every ``frequent`` batches.

    The metrics are those of the batches since the last line (``auto_reset``) or of all since the metric was
    reset. The metric itself is only read.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        check_count("Speedometer", "frequent", frequent)
        self.batch_size = batch_size
        self.frequent = frequent
        self.auto_reset = auto_reset
        self._last: tuple[int, int, float] | None = None  # epoch, batch and time of the last line
        self._base: tuple[int, Any] | None = None  # resets and sums of the metric at the last line

    def __call__(self, param: BatchEndParam) -> None:
        """Take note of a batch; log if a line is due."""
        now = time.perf_counter()
        if self._last is None or self._last[0] != param.epoch or self._last[1] > param.nbatch:
            self._last = (param.epoch, param.nbatch, now)
            return
        if param.nbatch == 0 or param.nbatch % self.frequent or param.nbatch == self._last[1]:
            return
        _, batch, then = self._last
        speed = (param.nbatch - batch) * self.batch_size / max(now - then, 1e-9)
        values = "".join(f"\t{name}={value:f}" for name, value in self.metric_values(param.eval_metric))
        _LOG.info("Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s", param.epoch, batch, param.nbatch, speed, values)
        self._last = (param.epoch, param.nbatch, now)

    def metric_values(self, metric: EvalMetric | None) -> list[tuple[str, float]]:
        """Names and values since this was last asked, or with ``auto_reset=False`` since the metric was reset."""
        if metric is None:
            return []
        if not self.auto_reset:
            return metric.get_name_value()
        state = metric.state()
        window = state
        if self._base is not None and self._base[0] == metric.num_resets:
            window = state - self._base[1]
        self._base = (metric.num_resets, state)
        return metric.values_of(window)


class ProgressBar:
    """How much of ``total`` batches is done: a bar on a terminal, elsewhere a line for every tenth."""

    def __init__(self, total: int, length: int = 80, file: TextIO | None = None) -> None:
        check_count("ProgressBar", "total", total)
        self.total = total
        self.length = length
        self._file = file
        self._tenths = 0
        self._last = (-1, 0)  # epoch and batch
        self._ahead = 0  # 1 where batches count from 0

    def __call__(self, param: BatchEndParam) -> None:
        """Show that batch ``nbatch`` is done; the first one of an epoch is 0 or 1."""
        file = self._file or sys.stdout
        if self._last[0] != param.epoch or param.nbatch < self._last[1]:
            self._ahead, self._tenths = int(param.nbatch == 0), 0
        self._last = param.epoch, param.nbatch
        done = param.nbatch + self._ahead
        share = min(1.0, done / self.total)
        if file.isatty():
            filled = round(self.length * share)
            file.write(f"\r[{'=' * filled}{'-' * (self.length - filled)}] {100 * share:.0f}%")
            if share == 1.0:
                file.write("\n")
        else:
            tenths = int(10 * share)
            if tenths > self._tenths:
                file.write(f"Epoch[{param.epoch}] {done}/{self.total} ({10 * tenths}%)\n")
            self._tenths = tenths
        file.flush()
