"""Gradients as Symbols against the executor's own backward and closed forms, to every order.

That second derivatives are the numeric ones is part of every operator's contract (``arrayexec.testing.symbolic``).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import ops, sym
from arrayexec.context import asnumpy, copyto
from arrayexec.errors import CompositionError
from arrayexec.ops import broadcast, elemwise
from arrayexec.registry import Op, get_op
from arrayexec.symbol import Group, Symbol, Variable, load_json
from arrayexec.testing import check_op
from arrayexec.testing.bodies import unequal
from arrayexec.testing.planned import poison, run_planned
from arrayexec.testing.trial import Trial
from tests.strict_device import StrictArray, strict

Array = np.ndarray
Arrays = dict[str, Array]

# Differentiated once only: their gradient holds a function that has none as a Symbol.
ONCE = {"digamma"}
CONTRACTS = 2  # examples of one operator whose gradients' contracts are checked


def differentiable() -> list[type[Op]]:
    """Every operator with a backward and a gradient as a Symbol, by its own rule or because it is linear."""
    found = {get_op(name).form.name: get_op(name) for names in ops.FAMILIES.values() for name in names.split()}
    return [cls for _, cls in sorted(found.items()) if cls.form.backward and (hasattr(cls, "gradient") or cls.linear)]


CLASSES = differentiable()
PROMISED = (
    "sum mean max min prod nansum norm broadcast_to broadcast_axis broadcast_like dot batch_dot FullyConnected Reshape "
    "Flatten transpose SwapAxis expand_dims squeeze slice slice_axis slice_like reshape_like Concat SliceChannel stack "
    "Activation LeakyReLU softmax softmin log_softmax SoftmaxActivation add_n Cast where _copy Embedding take pick "
    "gather_nd batch_take Convolution Deconvolution _linalg_gemm _linalg_gemm2 _linalg_syrk SequenceReverse"
).split()
"""Beside all rows of the elementwise and broadcasting tables."""


def examples() -> Iterator[Any]:
    for cls in CLASSES:
        for number, example in enumerate(cls.examples):
            yield pytest.param(cls, example, id=f"{cls.form.name}-{number}")


def test_the_promised_families_have_one() -> None:
    rows = [row.name for table in (elemwise.ROWS, broadcast.ROWS) for row in table.rows() if row.backward]
    found = {cls.form.name for cls in CLASSES}
    assert [name for name in (*PROMISED, *rows) if name not in found] == []


class Setting:
    """One example of an operator: its node, its gradient as a Symbol for all inputs, and arrays for both."""

    def __init__(self, cls: type[Op], example: Mapping[str, Any]) -> None:
        self.trial = Trial(cls, example)
        self.symbol = Symbol(self.trial.graph_heads)
        self.names = [f"v_{name}" for name in self.trial.differentiable()]
        if not self.names or any(self.trial.type(name).kind != "f" for name in self.trial.signature.outputs):
            pytest.skip("nothing with a gradient: whole numbers")
        self.arrays: Arrays = {f"v_{name}": array for name, array in self.trial.arrays().items()}
        heads = [Variable(f"h_{i}") for i in range(len(self.trial.graph_heads))]
        try:
            self.gradient = self.symbol.gradient(self.names, heads)
        except CompositionError as error:
            assert "has no gradient as a Symbol" in str(error)
            pytest.skip("this setting has no gradient as a Symbol")
        self.arrays |= {f"h_{i}": array for i, array in enumerate(self.trial.heads())}
        self.args = {name: self.arrays[name] for name in self.gradient.list_arguments()}


def close(got: Array, want: Array, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * (1 + np.abs(want).max(initial=0.0)))


def values(symbol: Symbol, arrays: Arrays) -> list[Array]:
    """Outputs of the planned executor in poisoned memory."""
    args = {name: arrays[name] for name in symbol.list_arguments()}
    with poison(), np.errstate(all="ignore"):
        return [array.copy() for array in symbol.bind(ax.cpu(), args, grad_req="null").forward(is_train=True)]


def cotangents(symbol: Symbol, arrays: Arrays) -> list[Array]:
    random = np.random.default_rng(5)
    return [random.uniform(-1, 1, out.shape).astype(out.dtype) for out in values(symbol, arrays)]


@pytest.mark.parametrize(("cls", "example"), list(examples()))
def test_is_the_gradient_of_the_executor(cls: type[Op], example: Mapping[str, Any]) -> None:
    setting = Setting(cls, example)
    want = setting.trial.outcome().gradients
    found = values(setting.gradient, setting.arrays)
    for name, gradient in zip(setting.names, found, strict=True):
        assert gradient.dtype == want[name[2:]].dtype
        close(gradient, want[name[2:]])


@pytest.mark.parametrize(("cls", "example"), list(examples()))
def test_gradient_of_the_gradient(cls: type[Op], example: Mapping[str, Any]) -> None:
    setting = Setting(cls, example)
    arrays, symbol = setting.args, setting.gradient
    pulls = cotangents(symbol, arrays)
    wrt = [n for n in symbol.list_arguments() if n in setting.names or n.startswith("h_")]
    heads = [Variable(f"p_{i}") for i in range(len(pulls))]
    if cls.form.name in ONCE:
        with pytest.raises(CompositionError, match="has no gradient as a Symbol"):
            symbol.gradient(wrt, heads)
        return
    second = symbol.gradient(wrt, heads)
    want = run_planned(symbol, arrays, {}, True, pulls, dict.fromkeys(wrt, "write")).gradients
    everything = {**arrays, **{f"p_{i}": pull for i, pull in enumerate(pulls)}}
    found = values(second, everything)
    for name, gradient in zip(wrt, found, strict=True):
        close(gradient, want[name], 1e-11)
    text = second.tojson()
    again = load_json(text)
    assert again.tojson() == text
    for before, after in zip(found, values(again, everything), strict=True):
        np.testing.assert_array_equal(before, after)


def linear_pairs() -> Iterator[Any]:
    for cls in CLASSES:
        for number, example in enumerate(cls.examples[:CONTRACTS]):
            for wrt in cls.linear:
                yield pytest.param(cls, wrt, example, id=f"{cls.form.name}-{wrt}-{number}")


@pytest.mark.parametrize(("cls", "wrt", "example"), list(linear_pairs()))
def test_gradients_of_linear_operators_keep_the_contract(cls: type[Op], wrt: str, example: Mapping[str, Any]) -> None:
    if "no_bias" in cls.form.attributes:  # a bias is added: with one the operator is not linear
        example = {**example, "no_bias": True}
    trial = Trial(cls, example)
    if trial.type("out").kind != "f" or any(trial.samples[name].integer for name in cls.linear if name in trial.samples):
        pytest.skip("whole numbers")
    inputs = {name: trial.samples.get(name, trial.shape(name)) for name in trial.signature.inputs}
    check_op(f"_gradient_{cls.form.name}_{wrt}", {**example, **inputs, "head": trial.shape("out")})


@pytest.mark.parametrize(("cls", "wrt", "example"), [p for p in linear_pairs() if p.values[0].form.name != "Cast"])
def test_gradients_of_linear_operators_run_off_the_host(cls: type[Op], wrt: str, example: Mapping[str, Any]) -> None:
    if "no_bias" in cls.form.attributes:
        example = {**example, "no_bias": True}
    inner, context = Trial(cls, example, np.float32), strict()
    inputs = {name: inner.samples.get(name, inner.shape(name)) for name in inner.signature.inputs}
    given = {**example, **inputs, "head": inner.shape("out")}
    trial = Trial(get_op(f"_gradient_{cls.form.name}_{wrt}"), given, np.float32)

    def put(array: Array) -> StrictArray:
        there = context.empty(array.shape, array.dtype, "input")
        copyto(there, array)
        return there

    with context.enter():
        arrays = {name: put(array) for name, array in trial.arrays().items()}
        there = trial.outcome(arrays, heads=[put(array) for array in trial.heads()], xp=context.xp).named()
    found = {name: asnumpy(array) for name, array in there.items()}
    assert unequal(found, trial.outcome().named(), 1e-5, 1e-6) == ""


# --- closed forms ------------------------------------------------------------------------------------------------


def hessian(symbol: Symbol, name: str, point: Array, **others: Array) -> Array:
    """All second derivatives of a scalar, one row at a time: the gradient of one element of the gradient."""
    first = symbol.gradient(name)
    row = first.gradient(name, Variable("unit"))
    rows = []
    for i in range(point.size):
        unit = np.zeros(point.shape, point.dtype)
        unit.reshape(-1)[i] = 1
        arrays = {name: point, "unit": unit, **others}
        rows.append(row.eval(**{key: arrays[key] for key in row.list_arguments()})[0].reshape(-1))
    return np.array(rows)


def test_hessian_of_a_quadratic_form() -> None:
    random = np.random.default_rng(0)
    x, matrix = random.normal(size=(1, 4)), random.normal(size=(4, 4))
    form = sym.dot(sym.dot(Variable("x"), Variable("a")), Variable("x"), transpose_b=True)
    close(hessian(form, "x", x, a=matrix), matrix + matrix.T)


def test_hessian_of_log_sum_exp() -> None:
    x = np.random.default_rng(1).normal(size=(5,))
    share = np.exp(x) / np.exp(x).sum()
    want = np.diag(share) - np.outer(share, share)
    close(hessian(sym.log(sym.sum(sym.exp(Variable("x")))), "x", x), want)
    picked = -sym.slice_axis(sym.log_softmax(Variable("x"), axis=0), axis=0, begin=2, end=3)
    close(hessian(picked, "x", x), want)


def test_hessian_of_a_norm() -> None:
    x = np.random.default_rng(2).normal(size=(4,))
    size = np.sqrt((x * x).sum())
    close(hessian(sym.norm(Variable("x")), "x", x), (np.eye(4) - np.outer(x, x) / size**2) / size)


def test_derivatives_of_every_order() -> None:
    x = np.array([0.5, -1.5])
    symbol = Variable("x") ** 5
    for want in (5 * x**4, 20 * x**3, 60 * x**2, 120 * x, 120 * np.ones(2), np.zeros(2)):
        symbol = symbol.gradient("x")
        close(symbol.eval(**dict.fromkeys(symbol.list_arguments(), x))[0], want)


def test_tanh_to_the_fourth_order() -> None:
    x = np.array([0.3, -0.8])
    t = np.tanh(x)
    symbol = sym.tanh(Variable("x"))
    for want in (1 - t**2, -2 * t * (1 - t**2), (6 * t**2 - 2) * (1 - t**2), (16 * t - 24 * t**3) * (1 - t**2)):
        symbol = symbol.gradient("x")
        close(symbol.eval(x=x)[0], want)


def test_a_product_with_a_zero_is_nan_rather_than_wrong() -> None:
    x = np.array([2.0, 0.0, 3.0])
    first = sym.prod(Variable("x")).gradient("x")
    np.testing.assert_array_equal(first.eval(x=x)[0], [0, np.nan, 0])
    assert np.isnan(first.gradient("x").eval(x=x)[0]).all()


# --- uses ----------------------------------------------------------------------------------------------------------


def two_layers(data: Symbol) -> Symbol:
    hidden = sym.Activation(sym.FullyConnected(data, num_hidden=6, name="fc1"), act_type="softrelu")
    return sym.sum(sym.FullyConnected(hidden, num_hidden=1, name="fc2"))


def test_hessian_vector_product_is_the_slope_of_the_gradient() -> None:
    random, loss = np.random.default_rng(3), two_layers(Variable("data"))
    names = ["fc1_weight", "fc2_weight"]
    arrays = {"data": random.normal(size=(4, 3)), "fc1_weight": random.normal(size=(6, 3)), "fc1_bias": np.zeros(6),
              "fc2_weight": random.normal(size=(1, 6)), "fc2_bias": np.zeros(1)}  # fmt: skip
    ways = {name: random.normal(size=arrays[name].shape) for name in names}
    first = loss.gradient(names)
    product = first.gradient(names, [Variable(f"way_{name}") for name in names])
    given = {**arrays, **{f"way_{name}": way for name, way in ways.items()}}
    found = product.eval(**{name: given[name] for name in product.list_arguments()})

    def at(step: float) -> list[Array]:
        moved = {**arrays, **{name: arrays[name] + step * ways[name] for name in names}}
        return first.eval(**{name: moved[name] for name in first.list_arguments()})

    for got, above, below in zip(found, at(1e-5), at(-1e-5), strict=True):
        np.testing.assert_allclose(got, (above - below) / 2e-5, rtol=1e-6, atol=1e-8)


def test_gradient_penalty_is_trained_away() -> None:
    """A critic whose slope is driven to 1 everywhere: the penalty's own gradient comes from the executor's backward."""
    random = np.random.default_rng(4)
    slope = two_layers(Variable("data")).gradient("data")
    size = sym.sqrt(sym.sum(sym.square(slope), axis=1) + 1e-12)
    penalty = sym.make_loss(sym.mean(sym.square(size - 1)))
    executor = penalty.simple_bind(ax.cpu(), data=(32, 2))
    for array in executor.arg_dict.values():
        array[...] = random.normal(0, 0.7, array.shape)
    history = []
    for _ in range(300):
        executor.arg_dict["data"][...] = random.normal(size=(32, 2))
        history.append(float(executor.forward(is_train=True)[0][0]))
        executor.backward()
        for name, array in executor.arg_dict.items():
            if name != "data":
                array -= 0.1 * executor.grad_dict[name]
    print(history[0], history[-10:])
    assert max(history[-10:]) < 0.1 * history[0]


def test_cross_entropy_of_a_network_equals_a_loss_head() -> None:
    random = np.random.default_rng(7)
    scores = sym.FullyConnected(sym.Flatten(Variable("data")), num_hidden=3, name="fc")
    picked = sym.log_softmax(scores) * Variable("onehot")
    names = ["data", "fc_weight", "fc_bias"]
    arrays = {"data": random.normal(size=(5, 2, 2)), "fc_weight": random.normal(size=(3, 4)), "fc_bias": np.ones(3)}
    labels = random.integers(0, 3, 5)
    found = (-sym.sum(picked)).gradient(names).eval(**arrays, onehot=np.eye(3)[labels])
    head = sym.SoftmaxOutput(scores, Variable("label"), name="softmax")
    want = run_planned(head, {**arrays, "label": labels.astype(np.float64)}, {}, True).gradients
    for name, gradient in zip(names, found, strict=True):
        close(gradient, want[name])


# --- random graphs -------------------------------------------------------------------------------------------------


def random_graph(random: np.random.Generator) -> Symbol:
    """Values of shape (4, 4) from variables a (4, 4), b (1, 4) and w (4, 4), each used by anything that follows."""
    a, b, w = Variable("a"), Variable("b"), Variable("w")
    made = [a, sym.broadcast_add(sym.zeros_like(a), b)]

    def one() -> Symbol:
        return made[random.integers(len(made))]

    choices: list[Callable[[], Symbol]] = [
        lambda: sym.tanh(one()),
        lambda: sym.sigmoid(one()) * one(),
        lambda: one() - one() * 0.5,
        lambda: sym.broadcast_mul(one(), b),
        lambda: sym.broadcast_div(one(), sym.exp(sym.mean(one(), axis=1, keepdims=True))),
        lambda: sym.dot(one(), w, transpose_b=bool(random.integers(2))),
        lambda: sym.FullyConnected(one(), w, num_hidden=4, no_bias=True),
        lambda: sym.log_softmax(one(), axis=int(random.integers(2))),
        lambda: sym.transpose(one()),
        lambda: sym.Reshape(sym.Reshape(sym.sin(one()), shape=(2, -1)), shape=(4, 4)),
        lambda: sym.slice_axis(sym.Concat(one(), one()), axis=1, begin=2, end=6),
        lambda: sym.Activation(one(), act_type="softsign"),
        lambda: sym.Concat(*sym.SliceChannel(one(), num_outputs=2)),
        lambda: sym.broadcast_maximum(one(), b),
        lambda: sym.where(one() > 0, one(), one()),
    ]
    for _ in range(12):
        made.append(choices[random.integers(len(choices))]())
    return Group([sym.sum(made[-1]), made[-2], sym.mean(made[-3], axis=0)])


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    random = np.random.default_rng(seed)
    symbol = random_graph(random)
    shapes = {"a": (4, 4), "b": (1, 4), "w": (4, 4)}
    names = symbol.list_arguments()
    arrays = {name: random.normal(size=shapes[name]) for name in names}
    for _ in range(2):
        heads = [Variable(f"h{len(arrays) + i}") for i in range(len(symbol))]
        found = symbol.gradient(names, heads)
        pulls = cotangents(symbol, arrays)
        want = run_planned(symbol, {n: arrays[n] for n in symbol.list_arguments()}, {}, True, pulls).gradients
        arrays |= {head.list_arguments()[0]: pull for head, pull in zip(heads, pulls, strict=True)}
        for name, gradient in zip(names, values(found, arrays), strict=True):
            close(gradient, want.get(name, np.zeros(shapes[name])), 1e-10)
        symbol, names = found, [name for name in names if name in found.list_arguments()]


# --- the walk ------------------------------------------------------------------------------------------------------


def test_names() -> None:
    loss = sym.sum(sym.square(Variable("w")) * Variable("x"), name="loss")
    first = loss.gradient(["w", "x"])
    assert first.list_outputs() == ["w_grad_output", "x_grad_output"]
    second = first.gradient("w")
    assert second.list_outputs() == ["w_grad1_output"]
    names = [node.name for node in Group([loss, first, second]).graph.nodes]
    assert len(set(names)) == len(names)
    assert first.list_arguments() == ["w", "x"]


def test_it_counts_no_names_of_the_program() -> None:
    with ax.NameManager():
        made = sym.exp(Variable("x"))
        made.gradient("x")
        assert sym.exp(made).name == "exp1"


def test_an_argument_that_does_not_matter() -> None:
    loss = sym.sum(sym.BlockGrad(Variable("a")) * Variable("b") + sym.zeros_like(Variable("c")))
    found = loss.gradient(["a", "b", "c"]).eval(a=np.full(2, 3.0), b=np.ones(2), c=np.ones(2))
    np.testing.assert_array_equal(found, [[0, 0], [3, 3], [0, 0]])


def test_several_heads_and_head_gradients() -> None:
    x = Variable("x")
    both = Group([sym.square(x), x * 3])
    close(both.gradient("x").eval(x=np.array([2.0]))[0], np.array([7.0]))
    given = both.gradient("x", [Variable("h"), None]).eval(x=np.array([2.0]), h=np.array([10.0]))
    close(given[0], np.array([43.0]))


def test_head_is_the_variable_itself() -> None:
    np.testing.assert_array_equal(Variable("x").gradient("x").eval(x=np.zeros(3))[0], np.ones(3))


def test_one_output_of_several() -> None:
    parts = sym.SliceChannel(Variable("x"), num_outputs=3, name="parts")
    found = sym.square(parts[1]).gradient("x").eval(x=np.arange(6.0).reshape(1, 6))
    np.testing.assert_array_equal(found[0], [[0, 0, 4, 6, 0, 0]])


def test_a_value_used_many_times() -> None:
    x = Variable("x")
    power = sym.identity(x)
    for _ in range(3):
        power = power * x
    close(sym.sum(power).gradient("x").eval(x=np.array([1.5, -2.0]))[0], 4 * np.array([1.5, -2.0]) ** 3)


def test_two_variables_of_one_name_are_one() -> None:
    found = (Variable("x") * Variable("x")).gradient("x").eval(x=np.array([3.0]))
    np.testing.assert_array_equal(found[0], [6])


def test_deep_graphs_need_no_recursion() -> None:
    symbol = Variable("x")
    for _ in range(3000):
        symbol = symbol + 1
    np.testing.assert_array_equal(symbol.gradient("x").eval(x=np.zeros(2))[0], np.ones(2))


def test_gradient_nodes_stay_in_the_group_of_their_operator() -> None:
    with ax.AttrScope(ctx_group="second"):
        inner = sym.tanh(Variable("x"), name="inner")
    found = sym.exp(inner, name="outer").gradient("x")
    groups = {node.name: node.attributes.get("__ctx_group__") for node in found.graph.nodes if node.op is not None}
    assert {name: group for name, group in groups.items() if name.startswith("inner_grad")} == {
        name: "second" for name in groups if name.startswith("inner_grad")
    }
    assert not any(group for name, group in groups.items() if name.startswith("outer_grad"))


def test_the_graph_that_is_differentiated_is_left_alone() -> None:
    loss = sym.sum(sym.square(Variable("x")))
    before = loss.tojson()
    loss.gradient("x").gradient("x")
    assert loss.tojson() == before


def test_shapes_follow_without_any_given_to_the_gradient() -> None:
    loss = sym.sum(sym.FullyConnected(Variable("data"), num_hidden=3, name="fc"))
    found = loss.gradient(["fc_weight", "fc_bias"])
    assert found.infer_shape(data=(4, 2, 5))[1] == [(3, 10), (3,)]
    assert found.infer_type(data="float16")[1] == [np.float16, np.float16]


def test_files_and_pickles_hold_gradients() -> None:
    loss = sym.sum(sym.square(sym.FullyConnected(Variable("data"), num_hidden=2, name="fc")))
    second = loss.gradient("data").gradient("fc_weight")
    made = next(node.op for node in second.graph.nodes if node.op and node.op.form.name.startswith("_gradient_Full"))
    assert pickle.loads(pickle.dumps(made)) == made
    again = pickle.loads(pickle.dumps(second))
    assert again.tojson() == second.tojson()
    assert again.infer_shape(data=(3, 4)) == second.infer_shape(data=(3, 4))


def test_random_masks_are_those_of_the_forward_pass() -> None:
    """Dropout lies before what is asked for: the gradient sees the values that it let through."""
    seen = sym.Dropout(Variable("data"), p=0.5, name="drop")
    loss = sym.sum(seen * Variable("w"))
    both = Group([sym.identity(seen), loss.gradient("w")])
    executor = both.bind(ax.cpu(), {"data": np.ones((4, 50)), "w": np.ones((4, 50))}, grad_req="null")
    for _ in range(2):
        passed, gradient = executor.forward(is_train=True)
        assert 0 < np.count_nonzero(passed) < passed.size
        np.testing.assert_array_equal(gradient, passed)


def test_derivatives_of_whole_powers_are_zero_at_zero_when_nothing_is_left() -> None:
    x = Variable("x")
    for exponent in (0, 1, 2):
        slope: Symbol = x**exponent
        for _ in range(exponent + 1):
            slope = slope.gradient("x")
        assert slope.eval(x=np.array([-1.0, 0.0, 2.0]))[0].tolist() == [0, 0, 0]
