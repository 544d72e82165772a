"""Looking at values inside a running executor, every few batches."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError
from .options import expression

_LOG = logging.getLogger(__name__)


def root_mean_square(array: numpy.ndarray[Any, Any]) -> float:
    """The Euclidean length of all elements divided by the root of their number."""
    values = array.reshape(-1).astype(numpy.float64)
    return float(numpy.linalg.norm(values)) / math.sqrt(max(values.size, 1))


class Monitor:
    """Statistics of the values whose names match ``pattern``, in every ``interval``-th batch.

    ``stat_func`` gets a NumPy array and gives a number, an array or a list of these (default: the root mean
    square). ``monitor_all`` looks at the inputs of operators as well as at their outputs. Used as ``tic()``,
    forward, backward, ``toc()``; arguments and auxiliary states are read by ``toc``.

    Raises AttributeValueError for an interval below 1 and a pattern that is no regular expression.
    """

    def __init__(
        self,
        interval: int,
        stat_func: Callable[[numpy.ndarray[Any, Any]], Any] | None = None,
        pattern: str = ".*",
        sort: bool = False,
        monitor_all: bool = False,
    ) -> None:
        if not isinstance(interval, int | numpy.integer) or interval < 1:
            raise AttributeValueError(f"Monitor: interval must be a whole number of at least 1, but it is {interval!r}")
        if stat_func is not None and not callable(stat_func):
            raise AttributeValueError(f"Monitor: stat_func must be a function of an array, but it is {stat_func!r}")
        self.interval = interval
        self.stat_func = stat_func or root_mean_square
        self.pattern = expression("Monitor", "pattern", pattern)
        self.sort = sort
        self.monitor_all = monitor_all
        self.activated = False
        self.step = 0
        self.queue: list[tuple[int, str, Any]] = []
        self._installed: list[tuple[str, Any]] = []
        self._ran: set[int] = set()

    def install(self, executor: Any, tag: str = "") -> None:
        """Watch an executor; ``tag`` (its device) is added to names once several tags are watched."""
        number = len(self._installed)
        self._installed.append((tag, executor))
        executor.set_monitor_callback(functools.partial(self._see, number), self.monitor_all)

    def tic(self) -> None:
        """Begin a batch."""
        if self.step % self.interval == 0:
            self.queue = []
            self._ran = set()
            self.activated = True
        self.step += 1

    def toc(self) -> list[tuple[int, str, str]]:
        """End a batch: ``(batch, name, text)`` of everything seen in it, the first batch being 1."""
        if not self.activated:
            return []
        read = set()
        for number in sorted(self._ran):  # a bucket that did not run has nothing to tell
            tag, executor = self._installed[number]
            for name, array in (*executor.arg_dict.items(), *executor.aux_dict.items()):
                if (tag, name) not in read:
                    read.add((tag, name))
                    self._record(number, name, array)
        self.activated = False
        queue = sorted(self.queue, key=lambda entry: entry[1]) if self.sort else self.queue
        return [(step, name, _text(value)) for step, name, value in queue]

    def toc_print(self) -> None:
        """`toc`, written to the log."""
        for step, name, text in self.toc():
            _LOG.info("Batch: %7d %-30s %s", step, name, text)

    def _see(self, number: int, name: str, array: Array) -> None:
        if self.activated:
            self._ran.add(number)
            self._record(number, name, array)

    def _record(self, number: int, name: str, array: Array) -> None:
        if self.pattern.match(name):
            tag = self._installed[number][0]
            several = any(other != tag for other, _ in self._installed)
            shown = f"{name}[{tag}]" if several else name
            self.queue.append((self.step, shown, self.stat_func(asnumpy(array))))


def _text(value: Any) -> str:
    """Every number of a statistic with a tab after it."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return "".join(f"{one.item() if getattr(one, 'size', 0) == 1 else one}\t" for one in values)
