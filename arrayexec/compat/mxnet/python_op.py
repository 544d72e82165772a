"""Operators of the oldest kind: one class whose instance is called on symbols. New ones are `operator.CustomOp`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ... import operator as _core
from ...context import asnumpy
from . import symbol as sym
from .array import wrap

__all__ = ["NDArrayOp", "NumpyOp", "PythonOp"]

_numbers = itertools.count()


class PythonOp:
    """Base of both kinds: a subclass gives names, shapes, ``forward`` and ``backward``."""

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad
        self._name = f"arrayexec.python_op{next(_numbers)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The operator applied to symbols."""
        return self.get_symbol(*args, **kwargs)

    def get_symbol(self, *args: Any, **kwargs: Any) -> Any:
        """The operator applied to symbols."""
        _core.register(self._name)(_prop_of(self))
        return sym.Custom(*args, op_type=self._name, **kwargs)

    def forward(self, in_data: Sequence[Any], out_data: Sequence[Any]) -> None:
        """Write ``out_data``; the first input, unless a subclass says otherwise."""
        out_data[0][:] = in_data[0]

    def backward(
        self, out_grad: Sequence[Any], in_data: Sequence[Any], out_data: Sequence[Any], in_grad: Sequence[Any]
    ) -> None:
        """Write ``in_grad``; ones, unless a subclass says otherwise."""
        in_grad[0][:] = 1.0

    def infer_shape(self, in_shape: list[Any]) -> tuple[list[Any], list[Any]]:
        """Shapes of inputs and outputs."""
        return in_shape, [in_shape[0]]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def need_top_grad(self) -> bool:
        """Whether backward reads the gradients of the outputs."""
        return self.need_top_grad_

    def _taken(self, arrays: Sequence[Any]) -> list[Any]:
        return [wrap(array) for array in arrays]

    def _given(self, arrays: Sequence[Any], taken: Sequence[Any]) -> None:
        """Bring what was written to ``taken`` into the engine's arrays."""


class NDArrayOp(PythonOp):
    """Bodies work on NDArrays."""


class NumpyOp(PythonOp):
    """Bodies work on NumPy arrays, which on other devices are copies."""

    def _taken(self, arrays: Sequence[Any]) -> list[Any]:
        return [None if array is None else asnumpy(array) for array in arrays]

    def _given(self, arrays: Sequence[Any], taken: Sequence[Any]) -> None:
        for array, values in zip(arrays, taken, strict=True):
            if array is not None and array is not values:
                wrap(array)[:] = values


class _Runner(_core.CustomOp):
    def __init__(self, op: Any) -> None:
        self._op = op

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        outputs = self._op._taken(out_data)
        self._op.forward(in_data=self._op._taken(in_data), out_data=outputs)
        self._op._given(out_data, outputs)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        shapes = zip(in_grad, in_data, strict=True)  # bodies of this kind write all gradients, wanted or not
        targets = [like.copy() if array is None and like is not None else array for array, like in shapes]
        gradients = self._op._taken(targets)
        given = {"out_grad": out_grad, "in_data": in_data, "out_data": out_data}
        self._op.backward(**{name: self._op._taken(arrays) for name, arrays in given.items()}, in_grad=gradients)
        self._op._given(targets, gradients)


def _prop_of(op: PythonOp) -> type[_core.CustomOpProp]:
    """The description of an operator's one instance."""

    class Prop(_core.CustomOpProp):
        def __init__(self) -> None:
            super().__init__(op.need_top_grad())

        def list_arguments(self) -> list[str]:
            return op.list_arguments()

        def list_outputs(self) -> list[str]:
            return op.list_outputs()

        def infer_shape(self, in_shape: list[Any]) -> tuple[Any, ...]:
            return *op.infer_shape(in_shape), []

        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> _core.CustomOp:
            return _Runner(op)

    return Prop
