"""Threads of the BLAS that NumPy uses: counted and limited, so that two pools of threads never fight for the cores."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 - loads the library that is looked for below

from .errors import ArgumentError


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _openblas() -> tuple[Callable[[int], None], Callable[[], int]] | None:
    """Setter and getter of the OpenBLAS that NumPy has loaded; None where there is none."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # NumPy's own comes first: other packages, such as SciPy, bring copies that its products do not use.
    paths = dict.fromkeys(re.findall(r"(/\S*openblas\S*\.so\S*)", maps))
    for path in sorted(paths, key=lambda path: "/numpy" not in path):
        try:
            library: Any = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("64_", "_64", "64", ""):
                setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                if setter is not None and getter is not None:
                    return setter, getter
    return None


def blas_threads() -> int | None:
    """Threads of one matrix product now; None where they cannot be told."""
    found = _openblas()
    return None if found is None else int(found[1]())


_chosen = False  # whether somebody has said how many threads there are to be


def set_num_threads(count: int) -> bool:
    """Let one matrix product use ``count`` threads from now on; False where NumPy's BLAS does not let itself be told.

    Without this call plans of small products use one thread (`one_thread_for`), others as many as NumPy's BLAS takes.
    Raises ArgumentError unless ``count`` is a whole number of at least 1.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"set_num_threads: the count must be a whole number of at least 1, but it is {count!r}")
    global _chosen
    _chosen = True
    return share_threads(count)


def share_threads(count: int) -> bool:
    """`set_num_threads` as a default, not as somebody's choice."""
    found = _openblas()
    if found is not None:
        found[0](count)
    return found is not None


def one_thread_for(operations: float) -> AbstractContextManager[object]:
    """Inside, one thread a product where the largest has few ``operations`` and nobody has chosen a number of threads.

    A product of 2^26 operations takes one thread a millisecond. A second thread saves half of that on idle cores; where
    another process has the core, the first one waits for the second until the system gives it a turn: 8 ms on Linux.
    """
    return limited_blas(1) if operations <= 2**26 and not _chosen else contextlib.nullcontext()


@contextlib.contextmanager
def limited_blas(count: int) -> Iterator[bool]:
    """Inside, one matrix product uses ``count`` threads; gives whether that could be set."""
    before = blas_threads()
    if before is None or before == count:
        yield before == count
        return
    share_threads(count)
    try:
        yield True
    finally:
        share_threads(before)
