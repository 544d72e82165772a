"""NDArrays that hold arrays of a device other than the host's, on the strict device of the tests."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import arrayexec.compat.mxnet as mx
from arrayexec.compat.mxnet.array import DeviceNDArray, unwrap
from arrayexec.context import Context
from tests.strict_device import strict


@pytest.fixture(scope="module")
def ctx() -> Context:
    strict(0)
    return Context("strict", 0)


def test_making_reading_and_moving(ctx: Context) -> None:
    array = mx.nd.array([[1, 2, 3], [4, 5, 6]], ctx)
    assert isinstance(array, DeviceNDArray) and isinstance(array, mx.nd.NDArray)
    assert (array.shape, array.size, array.ndim, array.dtype, array.context) == ((2, 3), 6, 2, np.float32, ctx)
    assert array.asnumpy().tolist() == np.asarray(array).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array.T.asnumpy().flags.c_contiguous and np.array(array, np.int32).dtype == np.int32
    assert repr(array) == "\n[[1. 2. 3.]\n [4. 5. 6.]]\n<NDArray 2x3 @strict(0)>"
    host = array.as_in_context(mx.cpu())
    assert host.context == mx.cpu(0) and host.asnumpy().tolist() == array.asnumpy().tolist()
    assert host.as_in_context(ctx).context == ctx and array.as_in_context(ctx) is array
    for made in (mx.nd.zeros((2,), ctx), mx.nd.ones((2,), ctx), mx.nd.full((2,), 7, ctx), mx.nd.arange(3, ctx=ctx)):
        assert made.context == ctx
    assert mx.nd.full((2,), 7, ctx).asnumpy().tolist() == [7, 7]
    with ctx:
        assert mx.nd.ones((2,)).context == ctx
    assert pickle.loads(pickle.dumps(array)).context == ctx


def test_arithmetic_and_operators(ctx: Context) -> None:
    a, b = mx.nd.array([[1, 2, 3], [4, 5, 6]], ctx), mx.nd.array([[6, 5, 4], [3, 2, 1]], ctx)
    host_a, host_b = a.as_in_context(mx.cpu()), b.as_in_context(mx.cpu())
    for rule in (
        lambda x, y: x + y, lambda x, y: 2 - x, lambda x, y: x / 2, lambda x, y: x > y, lambda x, y: -x,
        lambda x, y: x.sum(axis=1), lambda x, y: mx.nd.dot(x, y, transpose_b=True), lambda x, y: x.reshape((3, -1)),
        lambda x, y: x.astype("int32"), lambda x, y: mx.nd.concat(x, y, dim=0), lambda x, y: x.T, lambda x, y: x ** 2 % 5,
        lambda x, y: mx.nd.softmax(x), lambda x, y: x.max(), lambda x, y: mx.nd.maximum(x, 3), lambda x, y: abs(x - y),
    ):  # fmt: skip
        found, wanted = rule(a, b), rule(host_a, host_b)
        assert found.context == ctx and found.dtype is wanted.dtype
        assert mx.test_utils.almost_equal(found, wanted, rtol=1e-6, atol=0)
    a += b
    assert a.asnumpy().tolist() == [[7, 7, 7], [7, 7, 7]]
    out = mx.nd.zeros((2, 3), ctx)
    assert mx.nd.elemwise_mul(a, b, out=out) is out and out.asnumpy()[0].tolist() == [42, 35, 28]
    assert bool(a[0, 0] == 7) and float(a[1, 1]) == 7.0 and a[0].asnumpy().tolist() == [7, 7, 7]


def test_indexing(ctx: Context) -> None:
    a = mx.nd.array(np.arange(12).reshape(4, 3), ctx)
    view = a[1:3]
    view[:] = -1
    view[0] = mx.nd.array([5, 6, 7], ctx)
    a[3] = np.array([8, 8, 8])
    a[0, 1] = 9
    assert a.asnumpy().tolist() == [[0, 9, 2], [5, 6, 7], [-1, -1, -1], [8, 8, 8]]
    assert a[[3, 0]].asnumpy().tolist() == [[8, 8, 8], [0, 9, 2]]
    assert a[mx.nd.array([1], ctx)].asnumpy().tolist() == [[5, 6, 7]]
    assert a[:, 1].asnumpy().tolist() == [9, 6, -1, 8] and a[2, 2].shape == (1,)


def test_devices_do_not_mix(ctx: Context) -> None:
    with pytest.raises(mx.MXNetError, match="all arrays must lie on"):
        mx.nd.ones((2,), ctx) + mx.nd.ones((2,))


def test_an_executor_on_the_device(ctx: Context) -> None:
    x = mx.sym.Variable("x")
    executor = mx.sym.FullyConnected(x, num_hidden=2, name="fc").simple_bind(ctx, x=(3, 4))
    executor.arg_dict["fc_weight"][:] = 1
    out = executor.forward(is_train=True, x=mx.nd.ones((3, 4), ctx))[0]
    assert isinstance(out, DeviceNDArray) and out.asnumpy().tolist() == [[4, 4]] * 3
    executor.backward(mx.nd.ones((3, 2), ctx))
    assert executor.grad_dict["fc_bias"].asnumpy().tolist() == [3, 3]
    assert unwrap(executor.outputs[0]) is executor.core.outputs[0]


def test_a_module_on_the_device(ctx: Context) -> None:
    class Right(mx.metric.EvalMetric):
        def __init__(self) -> None:
            super().__init__("right")

        def update(self, labels: list[mx.nd.NDArray], preds: list[mx.nd.NDArray]) -> None:
            assert isinstance(preds[0], DeviceNDArray)
            right = mx.nd.argmax(preds[0], axis=1).asnumpy() == labels[0].asnumpy()
            self.sum_metric += right.sum()
            self.num_inst += right.size

    class Plain(mx.optimizer.Optimizer):
        def create_state(self, index: int, weight: mx.nd.NDArray) -> mx.nd.NDArray:
            return mx.nd.zeros(weight.shape, weight.context)

        def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: mx.nd.NDArray) -> None:
            assert isinstance(weight, mx.nd.NDArray) and weight.context == state.context == grad.context
            contexts.add(weight.context)
            self._update_count(index)
            state += grad
            weight -= self._get_lr(index) * self.rescale_grad * grad

    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    symbol = mx.sym.SoftmaxOutput(hidden, name="softmax")
    contexts = set()
    rows = np.random.RandomState(0).randn(12, 4).astype(np.float32)
    labels = rows[:, :3].argmax(axis=1).astype(np.float32)
    found = []
    for context, metric in ((ctx, Right()), (mx.cpu(), "acc")):
        module = mx.mod.Module(symbol, context=context)
        start = {"fc_weight": mx.nd.ones((3, 4)) * 0.1, "fc_bias": mx.nd.zeros((3,))}
        module.fit(
            mx.io.NDArrayIter(rows, labels, 4), eval_metric=metric, num_epoch=2, arg_params=start,
            optimizer=Plain(learning_rate=0.5, rescale_grad=0.25),
        )  # fmt: skip
        predicted = module.predict(mx.io.NDArrayIter(rows, None, 5))
        assert predicted.shape == (12, 3) and predicted.context == context
        args, _ = module.get_params()
        assert args["fc_weight"].context == mx.cpu(0)
        found.append([predicted.asnumpy(), args["fc_weight"].asnumpy()])
    assert contexts == {ctx, mx.cpu()}
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_custom_operator_on_the_device(ctx: Context) -> None:
    seen = []

    class Twice(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):  # type: ignore[no-untyped-def]
            seen.append(in_data[0].context)
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):  # type: ignore[no-untyped-def]
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("compat_twice")
    class TwiceProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):  # type: ignore[no-untyped-def]
            return Twice()

    executor = mx.sym.Custom(mx.sym.Variable("x"), op_type="compat_twice").simple_bind(ctx, x=(2, 2))
    assert executor.forward(is_train=True, x=mx.nd.ones((2, 2), ctx))[0].asnumpy().tolist() == [[2, 2], [2, 2]]
    executor.backward(mx.nd.ones((2, 2), ctx))
    assert executor.grad_dict["x"].asnumpy().tolist() == [[2, 2], [2, 2]] and seen == [ctx]
    assert mx.nd.Custom(mx.nd.ones((1,), ctx), op_type="compat_twice").asnumpy().tolist() == [2]


def test_stores_and_draws_on_the_device(ctx: Context) -> None:
    store, out = mx.kv.create("device"), mx.nd.zeros((2,), ctx)
    store.init(1, mx.nd.ones((2,), ctx))
    store.push(1, [mx.nd.ones((2,), ctx), mx.nd.ones((2,), ctx)])
    store.pull(1, out=out)
    assert out.asnumpy().tolist() == [2, 2]
    drawn = mx.nd.random.uniform(3, 4, shape=(5,), ctx=ctx)
    assert drawn.context == ctx and 3 <= drawn.min().asscalar() <= drawn.max().asscalar() < 4
    weight = mx.nd.ones((2,), ctx)
    mx.nd.sgd_update(weight, mx.nd.ones((2,), ctx), lr=0.5, wd=0.5, clip_gradient=0.5, out=weight)
    assert weight.asnumpy().tolist() == [0.5, 0.5]
