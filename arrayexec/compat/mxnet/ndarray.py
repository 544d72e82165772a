"""``mx.nd``: arrays, functions that make and combine them, and every operator called at once.

``mx.nd.<Operator>(data, …, out=)`` runs an operator on NDArrays; `random`, `linalg` and `contrib` are the operators of
these groups.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ... import ops as _ops
from ...errors import ArgumentError as _ArgumentError
from ...errors import UnknownOperatorError as _UnknownOperatorError
from ...errors import near_miss as _near_miss
from ...registry import all_names as _all_names
from ...registry import find_op as _find_op
from . import optimizer_steps as _optimizer_steps
from . import random
from .array import NDArray, wrap
from .array import apply as _apply
from .functions import (
    add,
    arange,
    array,
    boolean_mask,
    concatenate,
    divide,
    empty,
    equal,
    eye,
    from_numpy,
    full,
    greater,
    greater_equal,
    histogram,
    hypot,
    isfinite,
    isinf,
    isnan,
    lesser,
    lesser_equal,
    linspace,
    load,
    load_frombuffer,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    modulo,
    moveaxis,
    multiply,
    not_equal,
    onehot_encode,
    ones,
    pow,
    power,
    save,
    split_v2,
    subtract,
    true_divide,
    waitall,
    zeros,
)  # fmt: skip
from .refused import REFUSED as _REFUSED

__path__: list[str] = []  # programs import from modules inside this one
__all__ = [
    "NDArray", "add", "arange", "array", "concatenate", "contrib", "divide", "empty", "equal", "eye", "from_numpy",
    "full", "greater", "greater_equal", "histogram", "hypot", "lesser", "lesser_equal", "linalg", "linspace", "load",
    "load_frombuffer", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "modulo", "moveaxis",
    "multiply", "not_equal", "onehot_encode", "ones", "op", "pow", "power", "random", "save", "sparse", "split_v2",
    "subtract", "true_divide", "waitall", "wrap", "zeros",
]  # fmt: skip

_functions: dict[str, Callable[..., Any]] = {}


def _function(name: str) -> Callable[..., Any] | None:
    """The function that runs operator ``name``; None if nobody registered it."""
    cls = _find_op(name)
    if cls is None:
        return None
    if name not in _functions:

        def operator(*inputs: Any, **keywords: Any) -> Any:
            return _apply(name, *inputs, **keywords)

        operator.__name__ = operator.__qualname__ = name
        operator.__doc__ = inspect.getdoc(cls)
        _functions[name] = operator
    return _functions[name]


class _Group:
    """Operators whose names begin with a prefix, without it."""

    def __init__(self, title: str, prefix: str) -> None:
        self._title, self._prefix = title, prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = None if name[:2] == "__" else _function(self._prefix + name)
        if found is None and f"{self._title}.{name}" in _REFUSED:
            raise _UnknownOperatorError(f"nd.{self._title}.{name} is not here: {_REFUSED[f'{self._title}.{name}']}")
        if found is None:
            fact = f"there is no operator '{name}' in nd.{self._title}"
            raise _UnknownOperatorError(f"{fact}{_near_miss(name, dir(self))}")
        return found

    def __dir__(self) -> list[str]:
        return sorted(n.removeprefix(self._prefix) for n in _all_names() if n.startswith(self._prefix))


class _Sparse(_Group):
    """``nd.sparse``: the operators on dense arrays; sparse arrays are refused."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("csr_matrix", "row_sparse_array", "CSRNDArray", "RowSparseNDArray", "BaseSparseNDArray"):

            def refused(*_: Any, **__: Any) -> Any:
                raise _ArgumentError(f"nd.sparse.{name}: arrays are dense here; nd.array(values) makes one")

            return refused
        if name in ("zeros", "empty"):

            def made(stype: str, shape: Any, ctx: Any = None, dtype: Any = None) -> Any:
                return zeros(shape, ctx, dtype, stype)

            return made
        return array if name == "array" else super().__getattr__(name)


class _Contrib(_Group):
    """``nd.contrib``: operators, and functions that are no operators."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _contributed[name] if name in _contributed else super().__getattr__(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_contributed})


_contributed: dict[str, Callable[..., Any]] = {
    "boolean_mask": boolean_mask, "isfinite": isfinite, "isinf": isinf, "isnan": isnan,
}  # fmt: skip
linalg, contrib = _Group("linalg", "_linalg_"), _Contrib("contrib", "_contrib_")
op, sparse = _Group("op", ""), _Sparse("sparse", "")
_internal = op


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else getattr(_optimizer_steps, name, None) or _function(name)
    if found is None:
        raise _UnknownOperatorError(f"there is no operator '{name}' in mx.nd{_near_miss(name, __dir__())}")
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_optimizer_steps.__all__, *_ops.list()})
