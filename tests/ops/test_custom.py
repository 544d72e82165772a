"""Custom operators through the public way: names, shapes, state, auxiliary states, what backward may read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
import arrayexec.ops.custom  # its example is registered before the names are noted
from arrayexec import operator
from arrayexec.errors import AttributeValueError, OperatorDefinitionError, ShapeError, UnknownOperatorError
from arrayexec.registry import signature_of
from arrayexec.testing import NaiveRun

Arrays = dict[str, Any]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Names registered by a test are gone after it."""
    before = dict(operator._REGISTERED)
    yield
    operator._REGISTERED.clear()
    operator._REGISTERED.update(before)


def both(symbol: Any, args: Arrays, heads: Any = None, aux: Arrays | None = None, train: bool = True) -> list[Any]:
    """Outputs, gradients and auxiliary states of the plain interpreter, after the executor gave the same."""
    run = NaiveRun(symbol, args, aux, train)
    outputs = run.forward()
    gradients = run.backward(heads)
    executor = symbol.bind(
        ax.cpu(), args=args, args_grad={name: np.full(a.shape, 7, a.dtype) for name, a in args.items()},
        aux_states={name: array.copy() for name, array in (aux or {}).items()},
    )  # fmt: skip
    for got, wanted in zip(executor.forward(is_train=train), outputs, strict=True):
        np.testing.assert_array_equal(got, wanted)
    executor.backward(heads)
    for name, wanted in gradients.items():
        np.testing.assert_array_equal(executor.grad_dict[name], wanted)
    for name, wanted in run.aux.items():
        np.testing.assert_array_equal(executor.aux_dict[name], wanted)
    return [outputs, gradients, run.aux]


class Softmax(operator.CustomOp):
    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        powers = np.exp(in_data[0] - in_data[0].max(axis=1, keepdims=True))
        self.assign(out_data[0], req[0], powers / powers.sum(axis=1, keepdims=True))

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        assert out_grad == [None] and in_data[0] is None
        y = out_data[0].copy()
        y[np.arange(len(y)), in_data[1].astype(int)] -= 1
        self.assign(in_grad[0], req[0], y)


class SoftmaxProp(operator.CustomOpProp):
    def __init__(self) -> None:
        super().__init__(need_top_grad=False)

    def list_arguments(self) -> list[str]:
        return ["data", "label"]

    def infer_shape(self, in_shape: Any) -> Any:
        return [in_shape[0], [in_shape[0][0]]], [in_shape[0]], []

    def declare_backward_dependency(self, out_grad: Any, in_data: Any, out_data: Any) -> list[int]:
        return [in_data[1], out_data[0]]

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        assert ctx == ax.cpu()
        assert in_shapes == [[3, 4], [3]] and in_dtypes == [np.float32, np.float32]
        return Softmax()


def test_a_loss_head() -> None:
    operator.register("test_softmax")(SoftmaxProp)
    symbol = ax.sym.Custom(data=ax.sym.Variable("x"), op_type="test_softmax", name="head")
    assert symbol.list_arguments() == ["x", "head_label"]
    assert symbol.list_outputs() == ["head_output"]
    assert symbol.infer_shape(x=(3, 4)) == ([(3, 4), (3,)], [(3, 4)], [])
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    outputs, gradients, _ = both(symbol, {"x": x, "head_label": np.array([1, 0, 3], np.float32)})
    reference = ax.sym.SoftmaxOutput(data=ax.sym.Variable("x"), name="head")
    wanted, slopes, _ = both(reference, {"x": x, "head_label": np.array([1, 0, 3], np.float32)})
    np.testing.assert_allclose(outputs[0], wanted[0], rtol=1e-6)
    np.testing.assert_allclose(gradients["x"], slopes["x"], rtol=1e-5, atol=1e-7)
    assert not gradients["head_label"].any()  # nobody wrote it
    assert symbol.tojson() == ax.sym.load_json(symbol.tojson()).tojson()


class Moments(operator.CustomOp):
    """Sum and product of two inputs, a running total, and what it has seen."""

    def __init__(self, factor: float) -> None:
        self.factor, self.seen = factor, 0

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.seen += 1
        self.assign(out_data[0], req[0], (in_data[0] + in_data[1]) * self.factor)
        self.assign(out_data[1], req[1], in_data[0] * in_data[1])
        aux[0][...] += in_data[0].sum(axis=0)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        assert self.seen and out_data == [None, None]
        for i in range(2):
            self.assign(in_grad[i], req[i], out_grad[0] * self.factor + out_grad[1] * in_data[1 - i])


class MomentsProp(operator.CustomOpProp):
    def __init__(self, factor: str = "1") -> None:
        super().__init__(True)
        self.factor = float(factor)

    def list_arguments(self) -> list[str]:
        return ["state", "data"]

    def list_outputs(self) -> list[str]:
        return ["total", "product"]

    def list_auxiliary_states(self) -> list[str]:
        return ["running"]

    def infer_shape(self, in_shape: Any) -> Any:
        return [in_shape[0], in_shape[0]], [in_shape[0]] * 2, [in_shape[0][1:]]

    def declare_backward_dependency(self, out_grad: Any, in_data: Any, out_data: Any) -> list[int]:
        return [*out_grad, *in_data]

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        return Moments(self.factor)


def moments(**more: Any) -> Any:
    operator.register("test_moments")(MomentsProp)
    return ax.sym.Custom(ax.sym.Variable("a"), data=ax.sym.Variable("b"), op_type="test_moments", name="m", **more)


def test_several_outputs_and_auxiliary_states() -> None:
    symbol = moments(factor=3)
    assert symbol.list_outputs() == ["m_total", "m_product"]
    assert symbol.list_auxiliary_states() == ["m_running"]
    a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3)) * 2
    heads = [np.full((2, 3), 10.0), np.full((2, 3), 100.0)]
    start = np.array([1.0, 2.0, 3.0])
    outputs, gradients, aux = both(symbol, {"a": a, "b": b}, heads, {"m_running": start})
    np.testing.assert_array_equal(outputs[0], (a + b) * 3)
    np.testing.assert_array_equal(outputs[1], a * b)
    np.testing.assert_array_equal(gradients["a"], 30 + 100 * b)
    np.testing.assert_array_equal(gradients["b"], 30 + 100 * a)
    np.testing.assert_array_equal(aux["m_running"], start + a.sum(0))
    still = both(symbol, {"a": a, "b": b}, heads, {"m_running": start}, train=False)
    np.testing.assert_array_equal(still[2]["m_running"], start)


def test_backward_keeps_only_what_it_declares() -> None:
    op = moments().get_internals()["m_total"].heads[0][0].op
    signature = signature_of(op)
    assert signature.head_gradient
    kinds = dict(zip(op.form.backward.parameters, signature.backward, strict=True))
    assert kinds["data"] == ("input", (0, 1))
    assert kinds["out"] == ("output", ())
    operator.register("test_softmax")(SoftmaxProp)
    head = ax.sym.Custom(op_type="test_softmax", name="h").get_internals()["h_output"].heads[0][0].op
    assert not signature_of(head).head_gradient
    assert dict(zip(head.form.backward.parameters, signature_of(head).backward, strict=True))["data"] == ("input", (1,))


def test_every_binding_has_a_custom_op_of_its_own() -> None:
    made = []

    @operator.register("test_counted")
    class Prop(operator.CustomOpProp):
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> Any:
            made.append(Softmax())
            return made[-1]

    symbol = ax.sym.Custom(ax.sym.Custom(ax.sym.Variable("x"), op_type="test_counted"), op_type="test_counted")
    for count in (2, 4):
        executor = symbol.simple_bind(ax.cpu(), grad_req="null", x=(2, 3))
        executor.forward()
        executor.forward(is_train=True)
        assert len(made) == count == len(set(map(id, made)))


def test_infer_shape_may_ask_for_what_is_not_known_yet() -> None:
    @operator.register("test_last")
    class Prop(operator.CustomOpProp):
        def infer_shape(self, in_shape: Any) -> Any:
            if in_shape[0][1] % 2:
                raise ValueError("an even number of columns, please")
            return in_shape, [[in_shape[0][0], in_shape[0][1] // 2]]

    symbol = ax.sym.Custom(ax.sym.Variable("x"), op_type="test_last", name="c")
    assert symbol.infer_shape(x=(3, 4)) == ([(3, 4)], [(3, 2)], [])
    assert symbol.infer_shape_partial() == ([()], [()], [])
    assert symbol.infer_shape_partial(x=(0, 4)) == ([(0, 4)], [(0, 2)], [])
    with pytest.raises(ValueError, match="an even number") as caught:
        symbol.infer_shape(x=(3, 5))
    assert "infer_shape([[3, 5]]) of the custom operator 'test_last'" in caught.value.__notes__[0]


def test_types_follow_infer_type() -> None:
    @operator.register("test_typed")
    class Prop(operator.CustomOpProp):
        def infer_type(self, in_type: Any) -> Any:
            return in_type, [np.int32], []

    symbol = ax.sym.Custom(ax.sym.Variable("x"), op_type="test_typed")
    assert symbol.infer_type(x=np.float64)[1] == [np.int32]
    plain = ax.sym.Custom(ax.sym.Variable("x"), op_type="arrayexec.Scale")
    assert plain.infer_type(x=np.float64)[1] == [np.float64]


def test_a_later_class_of_the_name_replaces_the_first_for_new_symbols() -> None:
    operator.register("test_moments")(MomentsProp)
    first = ax.sym.Custom(op_type="test_moments", name="m")
    operator.register("test_moments")(SoftmaxProp)
    second = ax.sym.Custom(op_type="test_moments", name="m")
    assert first.list_arguments() == ["m_state", "m_data"]
    assert second.list_arguments() == ["m_data", "m_label"]
    assert "test_moments" in operator.get_all_registered()


def test_assign() -> None:
    op, there = operator.CustomOp(), np.ones(3)
    op.assign(there, "null", 5)
    np.testing.assert_array_equal(there, 1)
    op.assign(there, "write", np.arange(3))
    op.assign(there, "add", 1)
    np.testing.assert_array_equal(there, [1, 2, 3])
    op.assign(there, "inplace", 0)
    np.testing.assert_array_equal(there, 0)
    with pytest.raises(ValueError, match="req must be 'write', 'inplace', 'add' or 'null', but it is 'wirte'"):
        op.assign(there, "wirte", 1)


def test_mistakes_are_named() -> None:
    with pytest.raises(
        UnknownOperatorError, match=r"op_type 'arrayexec.Scala' is not registered.*did you mean 'arrayexec.Scale'"
    ):
        ax.sym.Custom(op_type="arrayexec.Scala")
    with pytest.raises(AttributeValueError, match=r"op_type 'arrayexec.Scale' cannot be made: .*unexpected keyword argument 'facto'"):
        ax.sym.Custom(op_type="arrayexec.Scale", facto=1)
    with pytest.raises(OperatorDefinitionError, match="takes a subclass of CustomOpProp"):
        operator.register("x")(Softmax)  # type: ignore[type-var]

    @operator.register("test_same")
    class Same(operator.CustomOpProp):
        def list_outputs(self) -> list[str]:
            return ["data"]

    with pytest.raises(OperatorDefinitionError, match=r"names that differ, but .* are \['data'\], \['data'\], \[\]"):
        ax.sym.Custom(op_type="test_same")

    @operator.register("test_short")
    class Short(operator.CustomOpProp):
        def infer_shape(self, in_shape: Any) -> Any:
            return in_shape, []

    with pytest.raises(OperatorDefinitionError, match=r"lists for inputs \(1\), outputs \(1\) and auxiliary states \(0\)"):
        ax.sym.Custom(ax.sym.Variable("x"), op_type="test_short").infer_shape(x=(2, 3))

    operator.register("test_softmax")(SoftmaxProp)
    with pytest.raises(ShapeError, match=r"label 'l' must be \(3,\), but it is \(4,\)"):
        ax.sym.Custom(ax.sym.Variable("x"), ax.sym.Variable("l"), op_type="test_softmax").infer_shape(x=(3, 4), l=(4,))
