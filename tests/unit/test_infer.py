"""Inference: both directions, partly known shapes, errors that name both sides, and its speed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from arrayexec import errors, sym
from arrayexec.registry import find_op


def perceptron() -> Any:
    out = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc1")
    return sym.FullyConnected(out, num_hidden=3, name="fc2")


def here(function: Any, offset: int) -> str:
    return f"test_infer.py:{function.__code__.co_firstlineno + offset}"


# --- what the caller may write ----------------------------------------------------------------------------------------


def test_by_keyword_and_by_position() -> None:
    expected = ([(2, 5), (4, 5), (4,), (3, 4), (3,)], [(2, 3)], [])
    net = perceptron()
    assert net.infer_shape(data=(2, 5)) == net.infer_shape((2, 5)) == net.infer_shape((2, 5), None) == expected
    assert net.infer_shape(data=(np.int64(2), 5)) == expected
    assert net.infer_shape(data=(2, 0), fc1_weight=(0, 5)) == expected


def test_incomplete_warns_with_the_first_unknown_arguments() -> None:
    with pytest.warns(UserWarning) as caught:
        assert perceptron().infer_shape(data=(0, 5)) == (None, None, None)
    assert str(caught[0].message) == (
        "infer_shape could not find the shapes of data; give more shapes, or ask infer_shape_partial for the rest"
    )
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="the shapes of x, data, fc1_weight; give more"):
        assert (sym.Variable("x") + perceptron()).infer_shape(x=()) == (None, None, None)


def test_partial_gives_what_follows() -> None:
    assert perceptron().infer_shape_partial() == ([(), (4, 0), (4,), (3, 4), (3,)], [(0, 3)], [])
    assert perceptron().infer_shape_partial(data=(0, 5))[0] == [(0, 5), (4, 5), (4,), (3, 4), (3,)]
    assert perceptron().infer_shape_partial(data=None)[1] == [(0, 3)]


@pytest.mark.parametrize(
    ("args", "shapes", "error", "text"),
    [
        ((), {"dat": (2, 5)}, errors.UnknownNameError, "infer_shape: <Symbol fc2> has no argument 'dat'; did you mean 'data'?"),
        (((2, 5),), {"data": (2, 5)}, errors.ArgumentError, "infer_shape takes values by position or by keyword, not both"),
        ((), {"data": [2, 5]}, errors.ArgumentError, "infer_shape: the shape of 'data' must be a tuple, but it is [2, 5]"),
        ((), {"data": 2}, errors.ArgumentError, "infer_shape: the shape of 'data' must be a tuple, but it is 2"),
        (
            (), {"data": (2.0, 5)}, errors.ArgumentError,
            "infer_shape: dims of 'data' are whole numbers >= 0 (0: unknown), but the shape is (2.0, 5)",
        ),
        (
            (), {"data": (-2, 5)}, errors.ArgumentError,
            "infer_shape: dims of 'data' are whole numbers >= 0 (0: unknown), but the shape is (-2, 5)",
        ),
        (
            ((1,),) * 6, {}, errors.ArgumentError,
            "infer_shape was given 6 values, but <Symbol fc2> has 5 arguments: "
            "['data', 'fc1_weight', 'fc1_bias', 'fc2_weight', 'fc2_bias']",
        ),
    ],
)  # fmt: skip
def test_call_refused(args: Any, shapes: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        perceptron().infer_shape(*args, **shapes)
    assert str(caught.value) == text


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_conflict_names_both_sides() -> None:
    fully = sym.FullyConnected(sym.Variable("data"), num_hidden=64, name="fc1")
    with pytest.raises(errors.ShapeError) as caught:
        fully.infer_shape(data=(32, 64), fc1_weight=(64, 63))
    assert str(caught.value) == (
        f"FullyConnected 'fc1' ({here(test_conflict_names_both_sides, 1)}): weight 'fc1_weight' must be (64, 64), "
        "but it is (64, 63) (differs in dim 1)\n"
        "  inputs:\n"
        "    data    = data        (32, 64)  fixed by infer_shape(data=(32, 64))\n"
        "    weight  = fc1_weight  (64, 63)  fixed by infer_shape(fc1_weight=(64, 63))\n"
        f"    bias    = fc1_bias    (64,)     fixed by FullyConnected 'fc1' ({here(test_conflict_names_both_sides, 1)})"
    )


def test_conflict_of_two_nodes_names_the_one_that_said_it_first() -> None:
    x = sym.Variable("x")
    left = sym.FullyConnected(x, num_hidden=3, name="left")
    right = sym.FullyConnected(x, num_hidden=4, name="right")
    with pytest.raises(errors.ShapeError, match=r"elemwise_add '_plus\d+' \(test_infer\.py:\d+\)") as caught:
        (left + right).infer_shape(x=(2, 5))
    text = str(caught.value)
    assert "(differs in dim 1)" in text
    assert "left_output" in text
    assert "fixed by FullyConnected 'left'" in text
    assert "right_output" in text
    assert text.count("must be") == 1  # the first conflict only


def test_rank_conflict() -> None:
    with pytest.raises(errors.ShapeError, match=r"\(3 dims instead of 2\)"):
        perceptron().infer_shape(data=(2, 5), fc1_weight=(4, 5, 1))


def test_fault_of_a_rule_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_op("FullyConnected"), "infer", lambda self, s: 1 // 0)
    with pytest.raises(ZeroDivisionError) as caught:
        perceptron().infer_shape(data=(2, 5))
    assert caught.value.__notes__ == [f"in the rule of shapes of FullyConnected 'fc1' ({here(perceptron, 1)})"]
    monkeypatch.setattr(find_op("FullyConnected"), "infer", lambda self, s: s.nobody)
    with pytest.raises(errors.OperatorDefinitionError, match=r"a rule of inference speaks of 'nobody'; there are: .*data, weight, bias, out"):
        perceptron().infer_shape(data=(2, 5))


def test_variable_shape_is_a_default() -> None:
    x = sym.Variable("x", shape=(2, 3))
    assert (x + 1).infer_shape() == ([(2, 3)], [(2, 3)], [])
    assert (x + 1).infer_shape(x=(4, 5)) == ([(4, 5)], [(4, 5)], [])
    with pytest.raises(errors.ShapeError, match=r"fixed by Variable\(shape=\(2, 3\)\)"):
        (x + sym.Variable("y")).infer_shape(y=(3, 2))


def test_unknown_dims_of_a_variable_merge_with_what_is_given() -> None:
    x = sym.Variable("x", shape=(0, 3))
    assert (x + sym.Variable("y")).infer_shape(y=(2, 0)) == ([(2, 3), (2, 3)], [(2, 3)], [])


# --- types ------------------------------------------------------------------------------------------------------------


def test_types() -> None:
    net = perceptron()
    kinds = net.infer_type(data="float64")
    assert kinds == ([np.float64] * 5, [np.float64], [])
    assert net.infer_type(np.float16)[1] == [np.float16]
    assert net.infer_type(fc2_bias=np.dtype("float32"))[0][0] is np.float32
    assert net.infer_type() == (None, None, None)
    with pytest.raises(errors.UnknownNameError, match="infer_type: <Symbol fc2> has no argument 'dat'; did you mean 'data'"):
        net.infer_type(dat="float32")
    with pytest.raises(errors.AttributeValueError, match="must be an element type of real numbers in native byte order, but it is 'flat'"):
        net.infer_type(data="flat")


def test_type_conflict_names_both_sides() -> None:
    a, b = sym.Variable("a", dtype="float64"), sym.Variable("b")
    with pytest.raises(errors.TypeInferenceError) as caught:
        (a + b).infer_type(b="float32")
    text = str(caught.value)
    assert "must be float" in text
    assert "Variable(dtype=1)" in text
    assert "infer_type(b=float32)" in text


# --- speed ------------------------------------------------------------------------------------------------------------


def unrolled(steps: int, layers: int, hidden: int) -> Any:
    """A language model on an LSTM, unrolled node by node."""
    data = sym.Embedding(sym.Variable("data"), input_dim=1000, output_dim=hidden, name="embed")
    inputs = list(sym.SliceChannel(data, num_outputs=steps, axis=1, squeeze_axis=True))
    for layer in range(layers):
        weights = {
            part: {kind: sym.Variable(f"l{layer}_{part}_{kind}") for kind in ("weight", "bias")} for part in ("i2h", "h2h")
        }
        h, c = sym.zeros((0, hidden)), sym.zeros((0, hidden))
        for step, x in enumerate(inputs):
            gates = [
                sym.FullyConnected(value, num_hidden=4 * hidden, name=f"l{layer}_t{step}_{part}", **weights[part])
                for value, part in ((x, "i2h"), (h, "h2h"))
            ]
            i, f, g, o = sym.SliceChannel(gates[0] + gates[1], num_outputs=4)
            i, f, o = (sym.Activation(gate, act_type="sigmoid") for gate in (i, f, o))
            c = f * c + i * sym.Activation(g, act_type="tanh")
            h = o * sym.Activation(c, act_type="tanh")
            inputs[step] = h
    joined = sym.Reshape(sym.Concat(*[sym.expand_dims(h, axis=1) for h in inputs], dim=1), shape=(-1, hidden))
    return sym.SoftmaxOutput(sym.FullyConnected(joined, num_hidden=1000, name="pred"), name="softmax")


def test_unrolled_lstm_of_60_steps_is_inferred_in_a_tenth_of_a_second() -> None:
    net = unrolled(60, 2, 200)
    assert len(net.graph.nodes) >= 1_582
    times = []
    for _ in range(5):
        started = time.perf_counter()
        arguments, outputs, _ = net.infer_shape(data=(32, 60), softmax_label=(1920,))
        times.append(time.perf_counter() - started)
    assert outputs == [(1920, 1000)]
    shapes = dict(zip(net.list_arguments(), arguments, strict=True))
    assert shapes["l1_h2h_weight"] == (800, 200)
    assert shapes["pred_weight"] == (1000, 200)
    assert min(times) <= 0.1


@pytest.mark.parametrize(
    ("build", "given", "wanted"),
    [
        (lambda a: sym.squeeze(a, axis=1), (2, 3), (2, 1, 3)),
        (lambda a: sym.take(a, sym.Variable("i", shape=(4, 5)), axis=1), (2, 4, 5, 3), (2, 0, 3)),
        (lambda a: sym.slice(a, begin=(1,), end=(3,)), (2, 7), (0, 7)),
        (lambda a: sym.split_v2(a, 2, axis=0, squeeze_axis=True)[1], (7,), (2, 7)),
        (lambda a: sym.split_v2(a, (1, 3), axis=1)[0], (5, 1), (5, 0)),
        (lambda a: sym.broadcast_add(a, sym.Variable("i", shape=(1, 3))), (4, 3), (4, 0)),
    ],
)  # fmt: skip
def test_an_input_follows_from_the_output(build: Any, given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    net = build(sym.Variable("a")) + sym.Variable("b", shape=given)
    shapes, _, _ = net.infer_shape_partial()
    assert shapes[net.list_arguments().index("a")] == wanted


@pytest.mark.parametrize(
    ("build", "given", "kept", "assumed"),
    [
        (lambda data, free: sym.pick(data, free, axis=1), {"data": (4, 5, 3)}, (4, 1, 3), (4, 3)),
        (lambda data, free: sym.SoftmaxOutput(data, free, multi_output=True), {"data": (4, 5, 2, 3)}, (4, 2, 3), (4, 6)),
        (lambda data, free: sym.LinearRegressionOutput(data, free), {"data": (4, 1)}, (4, 1), (4,)),
    ],
)
def test_habits_give_way_to_what_another_node_knows(build: Any, given: Any, kept: Any, assumed: Any) -> None:
    free = sym.Variable("free")
    both = sym.Group([build(sym.Variable("data"), free), free + sym.Variable("known")])
    names = both.list_arguments()
    shapes = dict(zip(names, both.infer_shape(**given)[0], strict=True))
    assert shapes["free"] == shapes["known"] == assumed
    shapes = dict(zip(names, both.infer_shape(**given, known=kept)[0], strict=True))
    assert shapes["free"] == kept  # the node that knows comes after the one with the habit
