"""Formulas of elementwise rows as Symbols: the gradients of a row, applied to nodes of a graph."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..registry import find_op
from .expression import Pointwise, _call

# function of the formulas: operators of two arrays, of an array and a number, of a number and an array
_SAME = "maximum hypot equal not_equal logical_and logical_or logical_xor minimum".split()
_PAIRS: dict[str, tuple[str, str, str]] = {
    "add": ("add", "_plus_scalar", "_plus_scalar"),
    "subtract": ("sub", "_minus_scalar", "_rminus_scalar"),
    "multiply": ("mul", "_mul_scalar", "_mul_scalar"),
    "divide": ("div", "_div_scalar", "_rdiv_scalar"),
    "remainder": ("mod", "_mod_scalar", "_rmod_scalar"),
    "power": ("power", "_power_scalar", "_rpower_scalar"),
    "greater": ("greater", "_greater_scalar", "_lesser_scalar"),
    "greater_equal": ("greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "less": ("lesser", "_lesser_scalar", "_greater_scalar"),
    "less_equal": ("lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
    **{name: (name, f"_{name}_scalar", f"_{name}_scalar") for name in _SAME},
}


def _two(name: str, broadcasts: bool) -> str:
    """Operator of two arrays."""
    if broadcasts:
        return f"broadcast_{name}"
    return f"elemwise_{name}" if name in ("add", "sub", "mul", "div") else f"_{name}"


class _Translator:
    """Walks a formula: ``values`` are Symbols and numbers by name."""

    def __init__(self, sym: Any, values: Mapping[str, Any], broadcasts: bool) -> None:
        self.sym, self.values, self.broadcasts = sym, values, broadcasts

    def apply(self, operator: str, *inputs: Any, **attributes: Any) -> Any:
        return getattr(self.sym, operator)(*inputs, **attributes)

    def value(self, node: ast.expr) -> Any:
        """Symbol of a formula; a float if no array is in it."""
        if isinstance(node, ast.Name):
            return self.values[node.id]
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        function, arguments = _call(node)
        values = [self.value(argument) for argument in arguments]
        numbers = [isinstance(value, float) for value in values]
        if function == "where":
            return self.where(*values)
        if all(numbers):
            with np.errstate(all="ignore"):
                return float(getattr(np, function)(*values))
        if function == "multiply" and any(isinstance(value, float) and value == 0 for value in values):
            return 0.0  # whatever the array holds: the slope of x⁰ is 0 · x⁻¹, also where x is 0
        if len(values) == 1:
            return self.apply(function, *values)
        pair, right, left = _PAIRS[function]
        if numbers[0]:
            return self.apply(left, values[1], scalar=values[0])
        if numbers[1]:
            return self.apply(right, values[0], scalar=values[1])
        return self.apply(_two(pair, self.broadcasts), *values)

    def where(self, condition: Any, value: Any, other: Any) -> Any:
        if isinstance(condition, float):
            return value if condition else other
        pair = [self.full(condition, v) if isinstance(v, float) else v for v in (value, other)]
        return self.apply("where", condition, *pair)

    def full(self, like: Any, number: float) -> Any:
        """``number`` in the shape of ``like``."""
        return self.apply("_mul_scalar", self.apply("ones_like", like), scalar=number)


def in_symbols(op: Pointwise | type[Pointwise]) -> bool:
    """Whether every function in the gradients of a row is an operator as well."""
    calls = [node for tree in op.expression.backward.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    return all(find_op(name) is not None for name in names.difference(_PAIRS))


def gradients(op: Pointwise, sym: Any, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Gradients of a row by input: its backward formulas on Symbols. None if a function is no operator.

    What was stretched is summed back to the shape of its input.
    """
    if not in_symbols(op):
        return None
    numbers = {name: float(getattr(op, name)) for name in op.form.attributes}
    translator = _Translator(sym, {**values, **numbers}, op.broadcasts)
    slopes = {name: translator.value(tree) for name, tree in op.expression.backward.items()}
    found = {name: value for name, value in slopes.items() if not isinstance(value, float)}  # a number: it is 0
    if not op.broadcasts:
        return found
    return {name: sym._sum_like(value, values[name]) for name, value in found.items()}
