"""The operator ``Custom``: a CustomOpProp and its CustomOp in the operator form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import operator
from ..context import namespace
from ..dims import ANY, known
from ..errors import AttributeValueError, OperatorDefinitionError
from ..registry import Many, Op, register_op


@register_op
class Custom(Op):
    """What the CustomOpProp registered as ``op_type`` says, made with the other attributes as keywords.

    Auxiliary states: forward gets copies; in training they become the states when it has run, and backward gets them
    too. Gradients start as zeros, so an input that backward does not write has the gradient zero.
    """

    op_type: str
    keywords: tuple[str, ...] = ()
    rest = "keywords"
    hints = ("op_type", "keywords")  # what they change is up to the CustomOpProp
    examples = ({"data": (2, 3), "op_type": "arrayexec.Scale"},)

    def __post_init__(self) -> None:
        cls: Any = operator.find(self.op_type)
        keywords = dict(item.split("=", 1) for item in self.keywords)
        try:
            prop = cls(**keywords)
        except TypeError as error:
            raise AttributeValueError(f"Custom: op_type '{self.op_type}' cannot be made: {error}") from error
        object.__setattr__(self, "prop", prop)
        names = [*prop.list_arguments(), *prop.list_outputs(), *prop.list_auxiliary_states()]
        names += [f"d{name}" for name in prop.list_outputs()]
        if len(set(names)) < len(names) or not prop.list_outputs():
            shown = (prop.list_arguments(), prop.list_outputs(), prop.list_auxiliary_states())
            raise OperatorDefinitionError(
                f"Custom: op_type '{self.op_type}' must have an output and names that differ, "
                "but its arguments, outputs and auxiliary states are {}, {}, {}".format(*shown)
            )

    # A class that is registered later under the same name is another operator.
    def _key(self) -> tuple[Any, ...]:
        return self.op_type, self.keywords, type(self._prop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def _prop(self) -> operator.CustomOpProp:
        return self.__dict__["prop"]  # type: ignore[no-any-return]

    def inputs(self) -> tuple[str, ...]:
        return tuple(self._prop.list_arguments())

    def outputs(self) -> tuple[str, ...]:
        return tuple(self._prop.list_outputs())

    def aux(self) -> tuple[str, ...]:
        return tuple(self._prop.list_auxiliary_states())

    def hidden(self) -> tuple[str, ...]:
        return tuple(f"{name}_next" for name in self.aux())

    def total_outputs(self) -> int:
        return len(self.outputs())

    def unused(self) -> Iterable[str]:
        values = [*(f"d{name}" for name in self.outputs()), *self.inputs(), *self.outputs()]
        count = len(self.outputs())
        numbers = list(range(len(values)))
        read = self._prop.declare_backward_dependency(numbers[:count], numbers[count:-count], numbers[-count:])
        return tuple(name for number, name in enumerate(values) if number not in set(read))

    def _ask(self, what: str, given: list[Any], complete: bool) -> Sequence[Sequence[Any]] | None:
        """Answer of the user's ``infer_shape`` or ``infer_type``: of inputs, outputs, auxiliary states.

        While something is unknown its exceptions mean that it cannot say yet.
        """
        rule: Callable[[list[Any]], Sequence[Sequence[Any]]] = getattr(self._prop, what)
        try:
            answer = rule(given)
        except Exception as error:
            if not complete:
                return None
            error.add_note(f"raised by {what}({given}) of the custom operator '{self.op_type}'")
            raise
        counts = [len(self.inputs()), len(self.outputs()), len(self.aux())]
        try:
            found = [list(part) for part in answer]
        except TypeError:
            found = []
        if found[2:] in ([], [[]]):
            found[2:] = [[None] * counts[2]]
        if list(map(len, found)) != counts:
            raise OperatorDefinitionError(
                f"Custom '{self.op_type}': {what} must return lists for inputs ({counts[0]}), outputs ({counts[1]}) "
                f"and auxiliary states ({counts[2]}), but it returned {answer}"
            )
        return found

    def infer(self, s: Any) -> None:
        given = [shape if shape is ANY else list(shape) for shape in s.data]
        found = self._ask("infer_shape", given, all(map(known, s.data)))
        if found is None:
            return
        s.data, s.out, aux = (tuple(map(_shape, part)) for part in found)
        s.aux = s.hidden = aux

    def types(self, t: Any) -> None:
        given = [kind and kind.type for kind in t.data]
        found = self._ask("infer_type", given, None not in given)
        if found is None:
            return
        t.data, t.out, t.aux = found
        t.hidden = t.aux

    def prepare(self, known: Any, context: Any) -> operator.CustomOp:
        shapes = [list(shape) for shape in known.data]
        made: Any = self._prop.create_operator(context, shapes, [kind.type for kind in known.dtype("data")])
        if not isinstance(made, operator.CustomOp):
            raise OperatorDefinitionError(
                f"Custom '{self.op_type}': create_operator must return a CustomOp, but it returned {made!r}"
            )
        return made

    def forward(self, xp: Any, is_train: bool, prepared: Any, data: Many, aux: Many, out: Many, hidden: Many) -> None:
        for copy, value in zip(hidden, aux, strict=True):
            xp.copyto(copy, value)
        written = list(out)
        prepared.forward(
            is_train=is_train, req=["write"] * len(out), in_data=list(data), out_data=written, aux=list(hidden)
        )
        self._check_written("forward", "out_data", out, written)

    def backward(self, xp: Any, prepared: Any, dout: Many, data: Many, out: Many, hidden: Many, ddata: Many) -> None:
        for gradient in ddata:
            if gradient is not None:
                gradient.fill(0)
        unread, written = set(self.unused()), list(ddata)

        def full(names: Iterable[str], values: Iterable[Any]) -> list[Any]:
            rest = iter(values)
            return [None if name in unread else next(rest) for name in names]

        prepared.backward(
            req=["null" if gradient is None else "write" for gradient in ddata],
            out_grad=full((f"d{name}" for name in self.outputs()), dout),
            in_data=full(self.inputs(), data),
            out_data=full(self.outputs(), out),
            in_grad=written,
            aux=list(hidden),
        )
        self._check_written("backward", "in_grad", ddata, written)

    def _check_written(self, body: str, title: str, given: Sequence[Any], written: Sequence[Any]) -> None:
        for number, (array, item) in enumerate(zip(given, written, strict=True)):
            if item is not array:
                raise OperatorDefinitionError(
                    f"Custom '{self.op_type}': {body} must write into {title}[{number}], but it put another array in "
                    f"its place; use self.assign({title}[{number}], req[{number}], value)"
                )

    def update(self, xp: Any, aux: Many, hidden: Many) -> None:
        for state, value in zip(aux, hidden, strict=True):
            xp.copyto(state, value)


def _shape(shape: Any) -> Any:
    return ANY if shape is None or shape is ANY or not len(shape) else tuple(shape)


class _Scale(operator.CustomOp):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        namespace(in_data[0]).multiply(in_data[0], self.factor, out=out_data[0])

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        if req[0] != "null":
            namespace(out_grad[0]).multiply(out_grad[0], self.factor, out=in_grad[0])


@operator.register("arrayexec.Scale")
class Scale(operator.CustomOpProp):
    """The smallest whole custom operator, an example: output = factor · data."""

    def __init__(self, factor: str = "2") -> None:
        super().__init__()
        self.factor = float(factor)

    def declare_backward_dependency(self, out_grad: Any, in_data: Any, out_data: Any) -> list[int]:
        return list(out_grad)

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> operator.CustomOp:
        return _Scale(self.factor)
