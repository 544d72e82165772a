"""Operators written as two small Python classes: MXNet's CustomOp and CustomOpProp.

``register`` gives a CustomOpProp a name; ``sym.Custom(…, op_type=name, key=value)`` makes it with ``key=value`` and
asks it for names, shapes, types and, once a binding, for the CustomOp that computes. The arrays are plain arrays of
the device (NumPy, CuPy). For an operator that is to be fast, the form of ``registry`` does more with less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .errors import ArgumentError, OperatorDefinitionError, UnknownOperatorError, near_miss

Arrays = Sequence[Any]
Shape = Any  # a list of dims; while inference runs a dim, or the whole shape, may be unknown (see dims)
_Prop = TypeVar("_Prop", bound="type[CustomOpProp]")
_REGISTERED: dict[str, type[CustomOpProp]] = {}


class CustomOp:
    """What computes: one instance a bound node, so it may keep state between forward and backward."""

    def forward(self, is_train: bool, req: Sequence[str], in_data: Arrays, out_data: Arrays, aux: Arrays) -> None:
        """Write ``out_data`` from ``in_data``; changes of ``aux`` stay if ``is_train``."""
        raise OperatorDefinitionError(f"{type(self).__name__}: the class must define forward()")

    def backward(
        self, req: Sequence[str], out_grad: Arrays, in_data: Arrays, out_data: Arrays, in_grad: Arrays, aux: Arrays
    ) -> None:
        """Write ``in_grad``, which starts as zeros; ``req`` is "null" and the array None where nobody wants a gradient.

        Values that ``declare_backward_dependency`` does not name are None.
        """

    def assign(self, dst: Any, req: str, src: Any) -> None:
        """Do as ``req`` says: "write" (or "inplace") ``src`` to ``dst``, "add" it, or nothing ("null")."""
        if req in ("write", "inplace"):
            dst[...] = src
        elif req == "add":
            dst[...] += src
        elif req != "null":
            raise ArgumentError(
                f"assign: req must be 'write', 'inplace', 'add' or 'null', but it is {req!r}"
                + near_miss(str(req), ("write", "inplace", "add", "null"), shown=0)
            )


class CustomOpProp:
    """What describes: names, shapes, types and dependencies of a custom operator. The attributes come as texts.

    ``need_top_grad=False`` makes it a loss head: its backward does not read the gradient of its outputs.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the auxiliary states."""
        return []

    def infer_shape(self, in_shape: list[Shape]) -> tuple[Sequence[Shape], ...]:
        """Shapes of inputs, outputs and (may be left out) auxiliary states from what is known of the inputs."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> tuple[Sequence[Any], ...]:
        """Element types of inputs, outputs and (may be left out) auxiliary states; None is unknown."""
        return in_type, [in_type[0]] * len(self.list_outputs()), [in_type[0]] * len(self.list_auxiliary_states())

    def declare_backward_dependency(
        self, out_grad: Sequence[int], in_data: Sequence[int], out_data: Sequence[int]
    ) -> list[int]:
        """Which of the numbered values backward reads; what it does not read need not be kept in memory."""
        return [*(out_grad if self.need_top_grad_ else ()), *in_data, *out_data]

    def create_operator(self, ctx: Any, in_shapes: list[list[int]], in_dtypes: list[Any]) -> CustomOp:
        """The CustomOp of one binding: its context, input shapes and input types."""
        raise OperatorDefinitionError(f"{type(self).__name__}: the class must define create_operator()")


def register(reg_name: str) -> Callable[[_Prop], _Prop]:
    """Class decorator: make a CustomOpProp known as ``op_type=reg_name``; a later one of the name replaces it."""

    def do_register(prop_cls: _Prop) -> _Prop:
        if not (isinstance(prop_cls, type) and issubclass(prop_cls, CustomOpProp)):
            raise OperatorDefinitionError(
                f"operator.register('{reg_name}') takes a subclass of CustomOpProp, not {prop_cls!r}"
            )
        _REGISTERED[reg_name] = prop_cls
        return prop_cls

    return do_register


def get_all_registered() -> list[str]:
    """Names that :func:`register` knows, sorted."""
    return sorted(_REGISTERED)


def find(reg_name: str) -> type[CustomOpProp]:
    """The class registered as ``reg_name``; UnknownOperatorError with near misses."""
    found = _REGISTERED.get(reg_name)
    if found is None:
        raise UnknownOperatorError(
            f"Custom: op_type '{reg_name}' is not registered with operator.register{near_miss(reg_name, _REGISTERED)}"
        )
    return found
