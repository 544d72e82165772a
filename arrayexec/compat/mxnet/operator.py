"""``mx.operator``: operators written as two small Python classes, whose arrays are NDArrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import operator as _core
from ... import ops
from ...errors import OperatorDefinitionError
from ...operator import get_all_registered
from .array import wrap
from .python_op import NDArrayOp, NumpyOp, PythonOp

__all__ = [
    "CustomOp", "CustomOpProp", "NDArrayOp", "NumpyOp", "PythonOp", "get_all_registered",
    "get_all_registered_operators", "register",
]  # fmt: skip


def get_all_registered_operators() -> list[str]:
    """Names of all operators."""
    return list(ops.list())


class CustomOp(_core.CustomOp):
    """What computes: `forward` and `backward` write NDArrays with ``self.assign(dst, req, src)``."""


class CustomOpProp(_core.CustomOpProp):
    """What describes: names, shapes, types and dependencies of a custom operator. The attributes come as texts."""


class _Runner(_core.CustomOp):
    """A program's operator, called with NDArrays over the engine's arrays."""

    def __init__(self, op: Any, context: Any) -> None:
        self._op, self._context = op, context

    def _wrapped(self, arrays: Sequence[Any]) -> list[Any]:
        return [wrap(array, self._context) for array in arrays]

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        """Write ``out_data`` from ``in_data``."""
        outputs = self._wrapped(out_data)
        self._op.forward(is_train, req, self._wrapped(in_data), list(outputs), self._wrapped(aux))

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        """Write ``in_grad``."""
        given = map(self._wrapped, (out_grad, in_data, out_data, in_grad, aux))
        self._op.backward(req, *given)


def register(reg_name: str) -> Callable[[Any], Any]:
    """Class decorator: make a CustomOpProp known as ``op_type=reg_name``; a later one of the name replaces it."""

    def do_register(prop_cls: Any) -> Any:
        if not (isinstance(prop_cls, type) and issubclass(prop_cls, _core.CustomOpProp)):
            raise OperatorDefinitionError(
                f"mx.operator.register('{reg_name}') takes a subclass of CustomOpProp, not {prop_cls!r}"
            )

        def create_operator(self: Any, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
            made = prop_cls.create_operator(self, ctx, in_shapes, in_dtypes)
            return _Runner(made, ctx) if isinstance(made, _core.CustomOp) else made

        handed = type(prop_cls.__name__, (prop_cls,), {"create_operator": create_operator, "__doc__": prop_cls.__doc__})
        _core.register(reg_name)(handed)
        return prop_cls

    return do_register
