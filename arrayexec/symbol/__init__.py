"""Symbols: graphs, their algebra, inference, JSON and pictures. Every operator is a function here."""

from __future__ import annotations

from typing import Any

from .. import ops as _ops
from ..errors import UnknownOperatorError as _UnknownOperatorError
from ..errors import near_miss as _near_miss
from . import operators as _operators
from .functions import arange, eye, full, hypot, linspace, maximum, minimum, ones, pow, power, split_v2, zeros
from .namespaces import contrib, linalg, random
from .symbol import Group, Symbol, Variable, load, load_json, var

__all__ = [
    "Group", "Symbol", "Variable", "arange", "contrib", "eye", "full", "hypot", "linalg", "linspace", "load",
    "load_json", "maximum", "minimum", "ones", "pow", "power", "random", "split_v2", "var", "zeros",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else _operators.function(name)
    if found is None:
        raise _UnknownOperatorError(f"there is no operator '{name}'{_near_miss(name, __dir__())}")
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_ops.list()})
