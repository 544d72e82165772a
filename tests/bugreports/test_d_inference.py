"""Reports about shapes and types of symbols: what programs met, and what happens here. Numbers are the reports'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import BindError, ShapeError, UnknownNameError

sym = ax.sym
X = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)


def dense(**options: Any) -> Any:
    return sym.FullyConnected(sym.Variable("data"), num_hidden=5, name="fc", **options)


def softmax(values: Any, axis: int = -1) -> Any:
    powers = np.exp(values - values.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def slope(net: Any, heads: Any = None, **given: Any) -> Any:
    """The gradient of ``data`` after one training step of ``net`` on these arrays."""
    wanted = {name: "write" if name == "data" else "null" for name in net.list_arguments()}
    executor = net.bind(ax.cpu(), given, {"data": np.full_like(given["data"], np.nan)}, wanted)
    executor.forward(is_train=True)
    executor.backward(heads)
    return executor.grad_dict["data"]


# --- shapes that follow, and shapes that do not ---------------------------------------------------------------------


def test_bug_6631_a_broadcast_to_unknown_size_that_a_concat_decides() -> None:
    row = sym.expand_dims(sym.broadcast_axis(sym.Variable("y"), axis=0, size=0), axis=1)
    net = sym.Concat(sym.ones((5, 1, 3)), row, dim=1)
    assert net.infer_shape(y=(1, 3))[1] == net.infer_shape_partial(y=(1, 3))[1] == [(5, 2, 3)]
    (out,) = net.simple_bind(ax.cpu(), y=(1, 3)).forward(y=X[:1])
    np.testing.assert_array_equal(out, np.stack([np.ones((5, 3)), np.tile(X[:1], (5, 1))], axis=1).astype(np.float32))


def test_bug_20875_an_unknown_batch_is_told_and_the_rest_is_inferred() -> None:
    data = sym.Variable("data", shape=(0, 10, 10, 3))
    net = sym.expand_dims(sym.Reshape(data, shape=(0, -1)), axis=1)
    with pytest.warns(UserWarning, match="could not find the shapes of data; give more shapes, or ask infer_shape_partial"):
        assert net.infer_shape() == (None, None, None)
    assert net.infer_shape_partial() == ([(0, 10, 10, 3)], [(0, 1, 300)], [])
    assert net.infer_shape(data=(2, 10, 10, 3)) == ([(2, 10, 10, 3)], [(2, 1, 300)], [])


def test_bug_11349_slices_of_unknown_batches() -> None:
    data = sym.Variable("data", shape=(0, 20))
    for net in (
        sym.slice_axis(data, axis=1, begin=0, end=10), sym.slice(data, begin=(None, 0), end=(None, 10)),
    ):  # fmt: skip
        assert net.infer_shape_partial()[1] == [(0, 10)]
        assert net.infer_shape(data=(7, 20))[1] == [(7, 10)]


def test_bug_14153_the_weight_of_a_convolution_does_not_hang_on_the_height() -> None:
    net = sym.Convolution(sym.Variable("data"), kernel=(7, 7), num_filter=64, name="conv")
    arguments, outputs, _ = net.infer_shape_partial(data=(1, 0, 0, 0))
    assert (arguments, outputs) == ([(1, 0, 0, 0), (64, 0, 7, 7), (64,)], [(1, 64, 0, 0)])
    assert net.infer_shape_partial(data=(1, 3, 0, 0))[0][1] == (64, 3, 7, 7)


def test_bug_7682_5568_shapes_travel_as_often_as_they_must() -> None:
    weight = sym.Variable("weight")  # its shape comes from a layer that stands behind the penalty
    penalty = sym.sum(sym.abs(weight), name="penalty")
    net = sym.Group([penalty, dense(weight=weight, no_bias=True)])
    assert net.infer_shape(data=(2, 3)) == ([(5, 3), (2, 3)], [(1,), (2, 5)], [])
    with pytest.raises(ShapeError) as caught:
        net.simple_bind(ax.cpu())
    assert "do not say the shape of 'weight', 'data'" in str(caught.value)
    assert "weight  (5, ?)" in str(caught.value)


def test_bug_14833_zero_is_unknown_and_nothing_else_is() -> None:
    assert dense().infer_shape_partial(data=(2, 0)) == ([(2, 0), (5, 0), (5,)], [(2, 5)], [])
    assert dense().infer_shape_partial(data=(0, 3)) == ([(0, 3), (5, 3), (5,)], [(0, 5)], [])
    with pytest.raises(ValueError, match=r"dims of 'data' are whole numbers >= 0 \(0: unknown\), but the shape is \(2, -1\)"):
        dense().infer_shape_partial(data=(2, -1))


def test_bug_4275_1564_a_reshape_with_the_batch_written_into_it() -> None:
    fixed = sym.Reshape(sym.Variable("data"), shape=(96, 7, 10), name="cut")
    assert fixed.infer_shape(data=(96, 70))[1] == [(96, 7, 10)]
    for call in (fixed.infer_shape, lambda **given: fixed.simple_bind(ax.cpu(), **given)):
        with pytest.raises(ShapeError, match=r"Reshape 'cut'.* must have as many values as shape \(96, 7, 10\) makes, but it is \(1, 70\)") as caught:
            call(data=(1, 70))
        assert "in a shape 0 copies a dim of data, -1 takes what is left" in str(caught.value)
    for shape in ((0, 7, 10), (-1, 7, 10)):
        assert sym.Reshape(sym.Variable("data"), shape=shape).infer_shape(data=(1, 70))[1] == [(1, 7, 10)]


@pytest.mark.parametrize(
    ("data", "options", "label", "choice"),
    [
        ((100, 10), {}, (100, 1), r"\(100,\) or \(100, 10\)"),
        ((100, 10), {}, (100, 1, 1, 1), r"\(100,\) or \(100, 10\)"),
        ((100, 10, 1, 1), {}, (100,), r"\(100, 10, 1, 1\)"),
        ((100, 10, 1, 1), {"multi_output": True}, (100,), r"\(100, 1\) or \(100, 1, 1\) or \(100, 1, 1, 1\) or \(100, 10, 1, 1\)"),
    ],
)
def test_bug_794_880_11086_labels_of_another_rank(data: Any, options: Any, label: Any, choice: str) -> None:
    net = sym.SoftmaxOutput(sym.Variable("data"), name="softmax", **options)
    with pytest.raises(ShapeError, match=rf"SoftmaxOutput 'softmax'.*: label 'softmax_label' must be {choice} for data"):
        net.simple_bind(ax.cpu(), data=data, softmax_label=label)


def test_bug_794_880_11086_what_to_write() -> None:
    """The labels of the reports fit once both sides say the same."""
    flat = sym.SoftmaxOutput(sym.Flatten(sym.Variable("data")), sym.Reshape(sym.Variable("softmax_label"), shape=(-1,)))
    assert flat.infer_shape(data=(100, 10, 1, 1), softmax_label=(100, 1))[1] == [(100, 10)]
    places = sym.SoftmaxOutput(sym.Variable("data"), name="softmax", multi_output=True)
    assert places.infer_shape(data=(100, 10, 1, 1), softmax_label=(100, 1))[1] == [(100, 10, 1, 1)]


def test_bug_20330_19479_6597_bind_says_what_it_wants() -> None:
    with pytest.raises(BindError, match=r"'data' must be a shape \(a tuple of whole numbers\), but it is a ndarray"):
        dense().simple_bind(ax.cpu(), data=X)
    with pytest.raises(UnknownNameError, match="there is no argument 'dat'; did you mean 'data'"):
        dense().simple_bind(ax.cpu(), dat=(4, 3))
    with pytest.raises(ShapeError) as caught:
        dense().simple_bind(ax.cpu(), fc_bias=(5,))
    assert "do not say the shape of 'data', 'fc_weight'" in str(caught.value)
    assert "give their shapes by keyword" in str(caught.value)


def test_bug_positional_shapes() -> None:
    """M8: on 1.9.1 shapes given by place failed."""
    assert dense().infer_shape((4, 3)) == dense().infer_shape(data=(4, 3)) == ([(4, 3), (5, 3), (5,)], [(4, 5)], [])
    assert dense().infer_type(np.float64) == dense().infer_type(data=np.float64)


# --- types ----------------------------------------------------------------------------------------------------------


def test_bug_3605_52_one_type_that_is_known_decides_the_others() -> None:
    net = sym.Variable("a") * sym.Variable("b") + sym.Variable("c")
    for known in "abc":
        assert net.infer_type(**{known: np.float64})[:2] == ([np.float64] * 3, [np.float64])
        executor = net.simple_bind(ax.cpu(), type_dict={known: np.float64}, a=(3,), b=(3,), c=(3,))
        third = np.full(3, 1 / 3)
        (out,) = executor.forward(a=third, b=third, c=third)
        assert out.dtype == np.float64
        np.testing.assert_allclose(out, 1 / 9 + 1 / 3, rtol=1e-15)


def test_bug_5413_148_7_half_precision_reaches_every_layer() -> None:
    net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = sym.LeakyReLU(sym.BatchNorm(net, name="bn"), act_type="prelu", name="slope")
    net = sym.Deconvolution(sym.Pooling(net, kernel=(2, 2), pool_type="max"), kernel=(2, 2), num_filter=2, name="up")
    net = sym.L2Normalization(sym.LRN(sym.InstanceNorm(net, name="norm"), nsize=3))
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    found, outputs, auxiliary = net.infer_type(data=np.float16)
    types = dict(zip(net.list_arguments(), found, strict=True))
    statistics = {"bn_gamma", "bn_beta", "norm_gamma", "norm_beta"}  # of 16 bits they would be sums of nothing
    assert {name for name, dtype in types.items() if dtype is np.float32} == statistics
    assert {types[name] for name in types.keys() - statistics} == set(outputs) == {np.float16}
    assert auxiliary == [np.float32] * 2
    executor = net.simple_bind(ax.cpu(), type_dict={"data": np.float16}, data=(2, 1, 6, 6))
    draw = np.random.default_rng(1)
    for name, array in executor.arg_dict.items():
        array[...] = 1 if "label" in name else draw.normal(size=array.shape)
    executor.forward(is_train=True)
    executor.backward()
    for name, array in executor.grad_dict.items():
        assert np.isfinite(array).all(), name
        assert array.any() or name in ("softmax_label", "conv_bias", "bn_gamma"), name


def test_bug_11966_sorting_of_every_type_that_binds() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8):
        data = np.array([[3, 1, 2], [0, 5, 4]], dtype)
        for name, wanted in (("argsort", data.argsort()), ("sort", np.sort(data)), ("topk", [[0], [1]])):
            (out,) = getattr(sym, name)(sym.Variable("data")).bind(ax.cpu(), {"data": data}).forward()
            np.testing.assert_array_equal(out, wanted)


# --- softmax heads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [np.float32, np.float64, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("data", [np.float16, np.float32, np.float64])
def test_bug_labels_of_every_type(data: Any, label: Any) -> None:
    """M5: on 1.9.1 the type of the label had to be that of the data, so half precision and labels of 32 bits did not bind."""
    net = sym.SoftmaxOutput(sym.Variable("data"), name="softmax")
    classes = np.array([0, 2, 1, 1])
    found = slope(net, data=X.astype(data), softmax_label=classes.astype(label))
    assert found.dtype == data
    np.testing.assert_allclose(found, softmax(X) - np.eye(3)[classes], rtol=0, atol=2e-3 if data is np.float16 else 1e-6)


def test_bug_softmax_of_three_dims() -> None:
    """M6: on 1.9.1 labels of further places were silently not read."""
    data, label = np.random.default_rng(2).normal(size=(2, 3, 2)), np.array([[1, 0, 1], [0, 0, 1]])
    with pytest.raises(ShapeError, match=r"but it is \(2, 3\); multi_output=True or preserve_shape=True says where the classes are"):
        sym.SoftmaxOutput(sym.Variable("data"), name="softmax").simple_bind(ax.cpu(), data=(2, 3, 2), softmax_label=(2, 3))
    net = sym.SoftmaxOutput(sym.Variable("data"), name="softmax", preserve_shape=True)
    np.testing.assert_allclose(slope(net, data=data, softmax_label=label), softmax(data) - np.eye(2)[label], 1e-12)


def test_bug_softmax_times_the_head_gradient() -> None:
    """M7: on 1.9.1 out_grad=True took the output itself for the gradient that arrives."""
    net = sym.SoftmaxOutput(sym.Variable("data"), name="softmax", out_grad=True)
    label, heads = np.array([0, 2, 1, 1]), np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
    plain = softmax(X) - np.eye(3)[label]
    for head in (heads, np.ones_like(heads), 100 * np.ones_like(heads)):
        np.testing.assert_allclose(slope(net, [head], data=X, softmax_label=label), plain * head, 1e-4, 1e-6)
