"""``mx.mon``: a monitor whose statistic gets and gives NDArrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...train import monitor as _core
from .array import unwrap, wrap
from .executor import Executor

__all__ = ["Monitor"]


class Monitor(_core.Monitor):
    """Statistics of the values whose names match ``pattern``, in every ``interval``-th batch."""

    def __init__(
        self, interval: int, stat_func: Callable[[Any], Any] | None = None, pattern: str = ".*", sort: bool = False,
        monitor_all: bool = False,
    ) -> None:  # fmt: skip
        seen = stat_func and (lambda array: unwrap(stat_func(wrap(array))))
        super().__init__(interval, seen, pattern, sort, monitor_all)

    def install(self, exe: Any, tag: str = "") -> None:
        """Watch an executor."""
        super().install(exe.core if isinstance(exe, Executor) else exe, tag)
