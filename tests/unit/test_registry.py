"""The operator form: names become bindings, what breaks the form is refused, look-ups say what is near."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import pytest

from arrayexec import operator_form, registry
from arrayexec.errors import AttributeValueError, OperatorDefinitionError, UnknownOperatorError
from arrayexec.registry import (
    Known,
    Many,
    Op,
    Temp,
    find_body,
    find_op,
    get_op,
    make_op,
    register_kernel,
    register_op,
    signature_of,
)


@pytest.fixture(autouse=True)
def registry_as_before() -> Iterator[None]:
    kernels = dict(registry._KERNELS)
    yield
    for name in [name for name, cls in registry._OPERATORS.items() if cls.__module__ == __name__]:
        del registry._OPERATORS[name]
    registry._KERNELS.clear()
    registry._KERNELS.update(kernels)


def affine() -> type[Op]:
    @register_op(aliases=("affine",))
    class Affine(Op):
        """``out = data · weight + bias``."""

        units: int
        no_bias: bool = False
        aux = ("count",)
        hidden = ("mask",)

        def inputs(self) -> tuple[str, ...]:
            return ("data", "weight") if self.no_bias else ("data", "weight", "bias")

        def forward(
            self, xp: Any, rng: Any, is_train: bool, data: Any, weight: Any, bias: Any, count: Any, out: Any,
            mask: Any, tmp: Temp,
        ) -> None: ...  # fmt: skip

        def backward(self, xp: Any, dout: Any, data: Any, mask: Any, ddata: Any, dweight: Any, dbias: Any) -> None: ...

        def update(self, xp: Any, count: Any, mask: Any) -> None: ...

    return Affine


def test_parameter_names_become_slots() -> None:
    signature = signature_of(affine()(units=3))
    assert signature.inputs == ("data", "weight", "bias")
    assert signature.arguments == ("data", "weight", "bias", "count")
    assert (signature.aux, signature.outputs, signature.hidden) == (("count",), ("out",), ("mask",))
    assert signature.forward == (
        ("xp", 0), ("rng", 0), ("is_train", 0), ("input", 0), ("input", 1), ("input", 2), ("aux", 0), ("output", 0),
        ("hidden", 0), ("temp", "tmp"),
    )  # fmt: skip
    assert signature.backward == (
        ("xp", 0), ("doutput", 0), ("input", 0), ("hidden", 0), ("dinput", 0), ("dinput", 1), ("dinput", 2),
    )  # fmt: skip
    assert signature.update == (("xp", 0), ("aux", 0), ("hidden", 0))
    assert signature.head_gradient
    assert signature.output_suffixes == ("output",)


def test_an_absent_optional_input_is_bound_to_nothing() -> None:
    signature = signature_of(affine()(units=3, no_bias=True))
    assert signature.inputs == ("data", "weight")
    assert signature.forward[5] == ("absent", "bias")
    assert signature.backward is not None
    assert signature.backward[-1] == ("absent", "dbias")
    assert signature.frame["bias"] is None


def test_a_setting_is_a_value() -> None:
    cls = affine()
    assert cls(units=3) == cls(units=3, no_bias=False)
    assert hash(cls(units=3)) == hash(cls(units=3))
    assert cls(units=3) != cls(units=4)
    with pytest.raises(AttributeError):
        cls(units=3).units = 4  # type: ignore[attr-defined]


def test_variadic_inputs_and_outputs() -> None:
    @register_op
    class Stack(Op):
        num_args: int

        def forward(self, xp: Any, data: Many, out: Any) -> None: ...
        def backward(self, xp: Any, dout: Any, ddata: Many) -> None: ...

    @register_op
    class Split(Op):
        num_outputs: int

        def outputs(self) -> tuple[str, ...]:
            return tuple(f"out{i}" for i in range(self.num_outputs))

        def forward(self, xp: Any, data: Any, out: Many) -> None: ...
        def backward(self, xp: Any, dout: Many, ddata: Any) -> None: ...

    stack, split = signature_of(Stack(num_args=3)), signature_of(Split(num_outputs=2))
    assert stack.inputs == ("arg0", "arg1", "arg2")
    assert stack.forward[1] == ("input", (0, 1, 2))
    assert stack.backward == (("xp", 0), ("doutput", 0), ("dinput", (0, 1, 2)))
    assert split.outputs == ("out0", "out1")
    assert split.output_suffixes == ("output0", "output1")
    assert split.forward == (("xp", 0), ("input", 0), ("output", (0, 1)))
    assert split.backward == (("xp", 0), ("doutput", (0, 1)), ("dinput", 0))


def test_a_loss_head_reads_no_gradient_of_an_output() -> None:
    @register_op
    class Loss(Op):
        scaled: bool = False

        def unused(self) -> tuple[str, ...]:
            return () if self.scaled else ("dout",)

        def forward(self, xp: Any, data: Any, label: Any, out: Any) -> None: ...
        def backward(self, xp: Any, dout: Any, out: Any, label: Any, ddata: Any) -> None: ...

    assert not signature_of(Loss()).head_gradient
    assert signature_of(Loss()).backward[1] == ("absent", "dout")  # type: ignore[index]
    assert signature_of(Loss(scaled=True)).head_gradient


def test_known_shapes_and_types_under_their_names() -> None:
    op = affine()(units=3, no_bias=True)
    shapes, types = [(2, 4), (4, 3), (1,), (2, 3), (2, 3)], ["f4", "f4", "i8", "f4", "u1"]
    known = Known(signature_of(op), shapes, types)
    assert (known.data, known.weight, known.count, known.out, known.mask) == tuple(shapes)
    assert known.bias is None
    assert (known.dtype("mask"), known.dtype("bias")) == ("u1", None)


def refused(cls: type, **options: Any) -> str:
    with pytest.raises(OperatorDefinitionError) as caught:
        register_op(cls, **options)
    return str(caught.value)


def test_what_breaks_the_form_is_refused() -> None:
    class NoForward(Op):
        pass

    class NoNamespace(Op):
        def forward(self, data: Any, out: Any) -> None: ...

    class Shadow(Op):
        rows: int = 3  # type: ignore[assignment]

        def forward(self, xp: Any, data: Any, out: Any) -> None: ...

    class Misspelt(Op):
        def forward(self, xp: Any, data: Any, weight: Any, out: Any) -> None: ...
        def backward(self, xp: Any, dout: Any, wieght: Any, ddata: Any) -> None: ...

    class OneText(Op):
        hidden = "mask"

        def forward(self, xp: Any, data: Any, out: Any, mask: Any) -> None: ...

    class GivesBack(Op):
        def forward(self, xp: Any, data: Any) -> Any: ...

    class LostMask(Op):
        hidden = ("mask",)

        def forward(self, xp: Any, data: Any, out: Any) -> Any: ...

    class UpdateOfNothing(Op):
        def forward(self, xp: Any, data: Any, out: Any) -> None: ...
        def update(self, xp: Any, data: Any) -> None: ...

    class OddType(Op):
        table: dict[str, int]
        outputs: ClassVar[Any] = ("out",)

        def forward(self, xp: Any, data: Any, out: Any) -> None: ...

    missing = "forward(self, xp, …) is missing or does not begin with xp"
    assert refused(NoForward) == f"operator NoForward: {missing}"
    assert refused(NoNamespace) == f"operator NoNamespace: {missing}"
    assert (
        refused(Shadow)
        == "operator Shadow: attribute 'rows' bears a name that the operator form or every symbol has; choose another"
    )
    text = "operator Misspelt: parameter 'wieght' of backward is none of forward's"
    every = "(forward names every input, also one that it does not read)"
    assert refused(Misspelt) == f"{text} {every}; did you mean 'weight'?"
    text = "hidden must be a tuple of names, but it is the text 'mask'; write hidden = ('mask',)"
    assert refused(OneText) == f"operator OneText: {text}"
    text = "forward has no parameter 'out' to write into; add it, or say outputs = (…)"
    assert refused(GivesBack) == f"operator GivesBack: {text}"
    text = "forward has no parameter 'mask' to write into; add it, or say hidden = (…)"
    assert refused(LostMask) == f"operator LostMask: {text}"
    assert refused(UpdateOfNothing) == "operator UpdateOfNothing: has update but no auxiliary states (aux = …)"
    assert refused(OddType).startswith("operator OddType: type dict[str, int] of an attribute is not one of bool int")


def test_a_name_that_is_taken_is_refused() -> None:
    affine()

    class Other(Op):
        def forward(self, xp: Any, data: Any, out: Any) -> None: ...

    assert refused(Other, name="affine").startswith("operator name 'affine' is taken by ")
    assert refused(type("Copy", (Other,), {}), name="Fresh", aliases=("Affine",)).startswith(
        "operator name 'Affine' is taken"
    )
    namesake = type("Affine", (Other,), {"__module__": "elsewhere", "__qualname__": get_op("Affine").__qualname__})
    assert refused(namesake).startswith("operator name 'Affine' is taken by ")
    assert find_op("Fresh") is None, "nothing is registered by half"


def test_look_up_says_what_is_near() -> None:
    affine()
    assert get_op("affine") is get_op("Affine") is find_op("Affine")
    with pytest.raises(UnknownOperatorError) as caught:
        get_op("Afine", " in 'model.json'")
    assert str(caught.value) == "operator 'Afine' is not registered in 'model.json'; did you mean 'Affine' or 'affine'?"
    assert isinstance(caught.value, AttributeError)


def test_make_op_reads_texts_and_names_faults() -> None:
    affine()
    assert make_op("affine", {"units": "3", "no_bias": "True"}) == get_op("affine")(units=3, no_bias=True)
    with pytest.raises(AttributeValueError) as caught:
        make_op("affine", {"unit": 3}, " 'fc1'")
    assert str(caught.value) == "Affine 'fc1' has no attribute 'unit'; did you mean 'units'? There are: units, no_bias"
    with pytest.raises(AttributeValueError) as caught:
        make_op("affine", {"no_bias": True}, " 'fc1'")
    assert str(caught.value) == "Affine 'fc1' needs the attribute 'units' (a whole number)"
    with pytest.raises(AttributeValueError) as caught:
        make_op("affine", {"units": "many"}, " 'fc1'")
    assert str(caught.value) == "Affine 'fc1': attribute 'units' must be a whole number, but it is 'many'"


def test_free_attributes_go_to_the_field_that_takes_the_rest() -> None:
    @register_op
    class Open(Op):
        kind: str
        options: tuple[str, ...] = ()
        rest = "options"

        def forward(self, xp: Any, data: Any, out: Any) -> None: ...

    assert make_op("Open", {"kind": "x", "size": 3, "axes": (1, 2)}).options == ("axes=(1, 2)", "size=3")  # type: ignore[attr-defined]


def test_a_kernel_replaces_a_body_where_it_wants_to() -> None:
    op = affine()(units=3)

    def fast(*bound: Any) -> None: ...

    @register_kernel("Affine", "quick")
    def factory(op: Op, body: str) -> Any:
        return fast if body == "forward" else None

    assert find_body(op, "forward", "quick") is fast
    assert find_body(op, "backward", "quick") == op.backward  # type: ignore[attr-defined]
    assert find_body(op, "forward", "reference") == op.forward  # type: ignore[attr-defined]


def test_authors_find_the_form_in_the_registry() -> None:
    public = {name for name, value in vars(operator_form).items() if name[:1] != "_" and is_of(value, operator_form)}
    internal = {"Body"}  # what registration reads from a body, part of a `Form`
    assert public - internal <= set(registry.__all__)
    assert all(hasattr(registry, name) for name in registry.__all__)


def is_of(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def test_every_attribute_of_the_form_says_what_it_is() -> None:
    tree = ast.parse(inspect.getsource(operator_form))
    (form,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Op")
    silent = []
    for node, behind in itertools.pairwise([*form.body, ast.Pass()]):
        said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
        if isinstance(node, ast.AnnAssign) and not said:
            silent.append(ast.unparse(node.target))
    assert silent == ["form"]  # what registration makes, no author's business


def test_defaults_of_the_form() -> None:
    op = affine()(units=3)
    assert list(op.keeps(frozenset({"data"}))) == list(op.form.backward.parameters)  # type: ignore[union-attr]
    assert op.temps(None) == {}
    assert op.total_outputs() == 2
    assert not op.is_view(True)
    assert op.variable_attributes("weight") == {}
    assert op.prepare(None, None) is None
    with pytest.raises(OperatorDefinitionError, match="operator Affine has no infer"):
        op.infer(None)
