"""NDArrays are the engine's memory: nothing is copied that MXNet would not copy."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import arrayexec as ax
import arrayexec.compat.mxnet as mx
from arrayexec.compat.mxnet.array import unwrap, wrap


def address(array: object) -> int:
    return unwrap(array).ctypes.data  # type: ignore[no-any-return]


def test_wrapping_and_slices_share_memory() -> None:
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = wrap(plain)
    assert address(array) == plain.ctypes.data and address(array[1:3]) == plain[1:3].ctypes.data
    for view in (array, array[1:3], array[2], array[2][1:3], array.reshape((6, 4)), array.detach(), array[3, 5]):
        assert np.shares_memory(unwrap(view), plain)
    array[1:3][0] = 7
    assert (plain[1] == 7).all()
    for copy in (array[:, 1], array[::2], array[[0]], array.T, array.copy(), array.asnumpy(), array + 0, array.astype("float32")):
        assert not np.shares_memory(unwrap(copy), plain)


def test_in_place_writes_where_it_is() -> None:
    array = mx.nd.ones((300, 300))
    before = address(array)
    array += array
    array *= 0.5
    array[:] = array + 1
    assert address(array) == before and (array.asnumpy() == 2).all()
    part = array[10:20]
    part /= 4
    assert array.asnumpy().sum() == 2 * 290 * 300 + 0.5 * 10 * 300


def test_an_executor_hands_out_its_own_arrays() -> None:
    x = mx.sym.Variable("x")
    executor = mx.sym.FullyConnected(x, num_hidden=2, name="fc").simple_bind(mx.cpu(), x=(3, 4))
    core = executor.core
    assert isinstance(core, ax.Executor)
    for name, array in executor.arg_dict.items():
        assert isinstance(array, mx.nd.NDArray) and address(array) == core.arg_dict[name].ctypes.data
    executor.arg_dict["fc_bias"][:] = 5
    assert (executor.forward()[0].asnumpy() == 5).all()
    assert address(executor.outputs[0]) == core.outputs[0].ctypes.data
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((3, 2)))
    assert address(executor.grad_arrays[2]) == core.grad_dict["fc_bias"].ctypes.data
    assert (executor.grad_dict["fc_bias"].asnumpy() == 3).all()


def test_bound_arrays_are_used_where_they_lie() -> None:
    weight, gradient = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3))
    executor = (mx.sym.Variable("w") * 2).bind(mx.cpu(), {"w": weight}, {"w": gradient})
    weight[:] = 4
    assert (executor.forward(is_train=True)[0].asnumpy() == 8).all()
    executor.backward(mx.nd.ones((2, 3)))
    assert (gradient.asnumpy() == 2).all()
    weight[:] = 5
    assert (executor.forward()[0].asnumpy() == 10).all()


def test_batches_of_an_iterator_are_not_copied() -> None:
    it = mx.io.NDArrayIter(np.arange(8).reshape(4, 2), batch_size=2)
    batch = next(it)
    assert isinstance(batch.data[0], mx.nd.NDArray) and batch.data[0].asnumpy().tolist() == [[0, 1], [2, 3]]


def test_the_plain_engine_stays_plain() -> None:
    symbol = ax.sym.Variable("x") * 2
    assert type(symbol) is ax.Symbol
    executor = symbol.bind(ax.cpu(), {"x": np.ones(2, np.float32)})
    assert type(executor.forward()[0]) is np.ndarray


def test_symbols_of_the_namespace_stay_in_it() -> None:
    x = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(ax.sym.Variable("data") + x, num_hidden=3, name="fc")
    made = [
        net, x + 1, 1 - x, net[0], net.get_internals(), net.get_internals()["fc_output"], net.get_children(),
        mx.sym.Group([ax.sym.Variable("a"), x]), mx.sym.load_json(net.tojson()), pickle.loads(pickle.dumps(net)),
        net(data=mx.sym.Variable("other")), next(iter(net)), mx.sym.zeros((2, 3)), mx.sym.random.uniform(shape=(2,)),
        x.reshape((-1, 0)), x.sum(axis=1), x.astype("float64"), mx.sym.maximum(x, 2), ax.sym.Variable("b") + x,
    ]  # fmt: skip
    assert all(isinstance(symbol, mx.sym.Symbol) for symbol in made)


def test_pickle_and_copy_have_memory_of_their_own() -> None:
    array = mx.nd.array([[1, 2], [3, 4]], ctx=mx.cpu(1), dtype="int32")
    again = pickle.loads(pickle.dumps(array))
    assert isinstance(again, mx.nd.NDArray) and again.context == mx.cpu(1) and again.dtype is np.int32
    assert mx.test_utils.same(again, array) and not np.shares_memory(unwrap(again), unwrap(array))


def test_numpy_sees_plain_values() -> None:
    array = mx.nd.array([[1, 2], [3, 4]])
    for found in (np.exp(array), np.mean(array, axis=0), np.concatenate([array, array]), np.asarray(array), array.asnumpy()):
        assert type(found) is np.ndarray
    target = np.zeros((2, 2), np.float32)
    target[:] = array
    np.add(target, array, out=target)
    assert target.tolist() == [[2, 4], [6, 8]]
    assert isinstance(np.float32(2) * array, mx.nd.NDArray) and isinstance(2.0 - array, mx.nd.NDArray)


def test_draws_repeat_with_the_seed_and_differ_from_call_to_call() -> None:
    mx.random.seed(5)
    first = [mx.nd.random.normal(shape=(3,)).asnumpy() for _ in range(2)]
    mx.random.seed(5)
    again = [mx.nd.random.normal(shape=(3,)).asnumpy() for _ in range(2)]
    assert (first[0] == again[0]).all() and (first[1] == again[1]).all() and (first[0] != first[1]).all()


def test_operators_may_be_called_from_threads() -> None:
    found: list[float] = []
    data = mx.nd.ones((50, 50))

    def work(number: int) -> None:
        for _ in range(20):
            found.append(float((data * number).sum().asscalar()) - 2500 * number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0.0] * 80


@pytest.mark.parametrize("name", ["autograd", "gluon", "np", "npx", "zork", "gluo"])
def test_what_is_not_there_says_so(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(mx, name)
    assert not hasattr(mx, name)


def test_import_is_light(subprocess_env: dict[str, str]) -> None:
    code = (
        "import sys; import arrayexec.compat.mxnet as mx; "
        "print(sorted(m for m in sys.modules if m.startswith('arrayexec.')))"
    )
    out = subprocess.run([sys.executable, "-c", code], env=subprocess_env, capture_output=True, text=True, check=True)
    assert "ops" not in out.stdout and "executor" not in out.stdout, out.stdout


def test_the_plain_engine_takes_ndarrays_for_their_values() -> None:
    array = mx.nd.array([[1, 2], [3, 4]])
    executor = (ax.sym.Variable("x") * 2).simple_bind(ax.cpu(), x=(2, 2))
    assert executor.forward(is_train=True, x=array)[0].tolist() == [[2, 4], [6, 8]]
    executor.backward(mx.nd.ones((2, 2)))
    assert executor.grad_dict["x"].tolist() == [[2, 2], [2, 2]]
    executor.copy_params_from({"x": array * 3})
    assert type(executor.arg_dict["x"]) is np.ndarray and executor.arg_dict["x"].tolist() == [[3, 6], [9, 12]]
    with pytest.raises(ax.BindError, match="must be a plain array"):
        (ax.sym.Variable("x") * 2).bind(ax.cpu(), {"x": array})
    metric = ax.metric.create("mse")
    metric.update([array], [array + 1])
    assert metric.get() == ("mse", 1.0)
    iterator = ax.io.NDArrayIter(array, array[:, 0], 2)
    assert type(next(iterator).data[0]) is np.ndarray
    target = np.zeros((2, 2), np.float32)
    ax.copyto(target, array)
    assert target.tolist() == [[1, 2], [3, 4]] and type(ax.asnumpy(array)) is np.ndarray
