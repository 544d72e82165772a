"""``mx.contrib``: the operators that are called ``_contrib_…`` in files, as functions of symbols and of NDArrays."""

from __future__ import annotations

from typing import Any

from . import ndarray as _ndarray
from . import symbol as _symbol

__all__ = ["nd", "ndarray", "sym", "symbol"]

sym = symbol = _symbol.contrib
nd = ndarray = _ndarray.contrib


def __getattr__(name: str) -> Any:
    raise AttributeError(f"mx.contrib.{name} is not here: mx.contrib has the operators, in sym and nd")
