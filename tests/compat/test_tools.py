"""Test utilities, pictures and the small modules of the drop-in namespace."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
import arrayexec.compat.mxnet as mx

utils = mx.test_utils


def net() -> Any:
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")


def location() -> dict[str, Any]:
    draw = np.random.RandomState(0)
    return {"data": draw.rand(3, 4), "fc_weight": draw.rand(2, 4), "fc_bias": draw.rand(2)}


def test_numeric_gradients_agree_and_a_wrong_one_is_found() -> None:
    utils.check_numeric_gradient(net(), location())
    utils.check_numeric_gradient(net(), list(location().values()), grad_nodes={"fc_weight": "add", "fc_bias": "null"})
    utils.check_numeric_gradient(mx.sym.tanh(mx.sym.Variable("x")), [np.ones((2, 2))], dtype=np.float64, rtol=1e-5)
    norm = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=False, name="bn")
    values = [np.random.RandomState(1).rand(6, 2), np.ones(2), np.zeros(2)]
    utils.check_numeric_gradient(norm, values, [np.zeros(2), np.ones(2)], rtol=0.05, dtype=np.float64)

    @mx.operator.register("compat_wrong_gradient")
    class Wrong(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):  # type: ignore[no-untyped-def]
            class Op(mx.operator.CustomOp):
                def forward(self, is_train, req, in_data, out_data, aux):  # type: ignore[no-untyped-def]
                    self.assign(out_data[0], req[0], in_data[0] * in_data[0])

                def backward(self, req, out_grad, in_data, out_data, in_grad, aux):  # type: ignore[no-untyped-def]
                    self.assign(in_grad[0], req[0], out_grad[0] * in_data[0])

            return Op()

    wrong = mx.sym.Custom(mx.sym.Variable("data"), op_type="compat_wrong_gradient")
    with pytest.raises(AssertionError, match="NUMERICAL_data and BACKWARD_data differ"):
        utils.check_numeric_gradient(wrong, [np.ones((2, 2))])


def test_symbolic_checks() -> None:
    x = mx.sym.Variable("x")
    value = np.array([[1.0, 2.0], [3.0, 4.0]])
    outputs = utils.check_symbolic_forward(x * x, [value], [value * value])
    assert isinstance(outputs[0], mx.nd.NDArray)
    for request in ("write", "add", "null"):
        utils.check_symbolic_backward(x * x, {"x": value}, [np.ones((2, 2))], {"x": 2 * value}, grad_req=request)
    with pytest.raises(AssertionError, match="BACKWARD_x"):
        utils.check_symbolic_backward(x * x, [value], [np.ones((2, 2))], [value])
    ways = [{"ctx": mx.cpu(i), "x": (3, 2), "type_dict": {"x": kind}} for i, kind in enumerate((np.float64, np.float32))]
    utils.check_consistency(mx.sym.exp(x), ways)
    assert utils.simple_forward(x + 1, x=value).tolist() == (value + 1).tolist()
    executor = (x * x).bind(mx.cpu(), {"x": mx.nd.array(value)})
    found = utils.numeric_grad(executor, {"x": mx.nd.array(value)}, eps=1e-2)
    np.testing.assert_allclose(found["x"], 2 * value, rtol=1e-3)


def test_comparisons() -> None:
    one = mx.nd.array([1, 2, 3])
    assert utils.same(one, [1, 2, 3]) and not utils.same(one, [1, 2, 4]) and not utils.same(one, [1, 2])
    assert utils.almost_equal(one, one + 1e-4) and not utils.almost_equal(one, one + 1e-2)
    assert not utils.almost_equal(one, one + 1e-4, rtol=1e-6, atol=0)
    lost = np.array([1, np.nan, 3])
    assert not utils.almost_equal(lost, lost) and utils.almost_equal(lost, lost, equal_nan=True)
    utils.assert_almost_equal_ignore_nan(lost, np.array([1, 7, 3]))
    assert utils.almost_equal_ignore_nan(lost, one) and not utils.almost_equal_ignore_nan(lost, one * 2)
    utils.assert_allclose(one, [1, 2, 3])
    assert utils.same_array(one, one.detach()) and not utils.same_array(one, one.copy())
    utils.assert_exception(int, ValueError, "x")
    assert utils.get_rtol(dtype=np.float32) == 1e-4 and utils.get_atol(0.5) == 0.5
    assert utils.default_numeric_eps()[np.dtype(np.float32)] == 2.0**-9
    assert utils.default_rtols()[np.dtype(np.float16)] == 1e-2 and utils.default_atols()[np.dtype(np.float64)] == 1e-20


def test_random_things() -> None:
    assert all(1 <= dim <= 5 for dim in utils.rand_shape_3d(5, 5, 5)) and len(utils.rand_shape_nd(4, 3)) == 4
    assert utils.random_arrays((2, 3), 4)[0].dtype == np.float32 and utils.random_arrays(3).shape == (3,)
    chosen = utils.random_sample(range(10), 4)
    assert len(set(chosen)) == 4 and chosen == sorted(chosen)
    array = utils.rand_ndarray((50, 2), dtype="float64")
    assert array.dtype is np.float64 and -1 <= array.min().asscalar() < array.max().asscalar() < 1
    low, high = utils.rand_coord_2d(2, 3, 5, 6)
    assert (low, high) == (2, 5)
    assert utils.create_2d_tensor(2, 3).asnumpy().tolist() == [[0, 0, 0], [1, 1, 1]]


def test_helpers_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPAT_TEST", raising=False)
    with utils.environment("COMPAT_TEST", "3"):
        assert os.environ["COMPAT_TEST"] == "3" == mx.util.getenv("COMPAT_TEST")
    assert "COMPAT_TEST" not in os.environ
    mx.util.setenv("COMPAT_TEST", "4")
    assert os.environ.pop("COMPAT_TEST") == "4"
    calls = []

    @utils.retry(3)
    def flaky() -> int:
        calls.append(1)
        assert len(calls) == 3
        return 7

    assert flaky() == 7
    dummy = utils.DummyIter(mx.io.NDArrayIter(np.arange(4).reshape(4, 1), batch_size=2))
    assert next(dummy) is next(dummy) and dummy.batch_size == 2
    assert utils.np_reduce(np.ones((2, 3, 4)), (0, 2), True, np.sum).shape == (1, 3, 1)
    assert utils.assign_each(np.array([1.0, 2.0]), lambda value: value * 2).tolist() == [2, 4]
    assert list(utils.list_gpus()) == list(range(mx.num_gpus()))


def test_the_default_context_can_be_set() -> None:
    try:
        utils.set_default_context(mx.cpu(2))
        assert mx.nd.zeros((1,)).context == mx.cpu(2) == utils.default_context()
        utils.set_default_context(mx.cpu(1))
        assert utils.default_context() == mx.cpu(1) and utils.default_dtype() is np.float32
        with mx.cpu(3):
            assert mx.nd.ones((1,)).context == mx.cpu(3)
    finally:
        utils.set_default_context(mx.cpu(0))


def test_a_picture_of_a_network(tmp_path: Any) -> None:
    picture = mx.viz.plot_network(net(), "net", shape={"data": (3, 4)}, node_attrs={"fontsize": "9"})
    assert "fc\\nFullyConnected" in picture.source and 'fontsize="9"' in picture.source and "(3, 4)" in picture.source
    path = picture.save(directory=str(tmp_path))
    assert path.endswith("net.gv") and Path(path).read_text(encoding="utf-8") == picture.source == str(picture)


def test_a_summary_has_a_row_a_layer(capsys: Any) -> None:
    mx.viz.print_summary(mx.sym.Activation(net(), act_type="relu", name="act"), {"data": (3, 4)}, 60, [0.4, 0.6, 0.8, 1])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 60 for line in lines)
    rows = [line.split() for line in lines if "(" in line]
    assert rows[0][:2] == ["Layer", "(type)"]
    assert rows[1:] == [["data(null)", "4", "0"], ["fc(FullyConnected)", "2", "10", "data"], ["act(Activation)", "2", "0", "fc"]]


def test_images() -> None:
    picture = mx.nd.array(np.arange(48).reshape(4, 4, 3), dtype="uint8")
    cut, place = mx.image.center_crop(picture, (2, 2))
    assert isinstance(cut, mx.nd.NDArray) and cut.shape == (2, 2, 3) and place == (1, 1, 2, 2)
    assert mx.image.CastAug()(picture).dtype is np.float32
    normal = mx.image.color_normalize(mx.nd.ones((2, 2, 3)), mx.nd.array([1, 0, 0]), mx.nd.array([1, 1, 2]))
    assert normal.asnumpy()[0, 0].tolist() == [0, 1, 0.5]


def test_names_that_programs_import() -> None:
    for name in (
        "nd ndarray sym symbol mod module model io metric optimizer opt init initializer lr_scheduler callback mon monitor kv "
        "kvstore rnn viz visualization random rnd operator recordio image img name attribute context executor engine util "
        "profiler test_utils base executor_manager contrib"
    ).split():
        assert getattr(mx, name).__name__.startswith("arrayexec."), name
    assert mx.nd is mx.ndarray and mx.opt is mx.optimizer and mx.__version__ == "1.9.1"
    assert mx.cpu(1).device_id == 1 and mx.Context("cpu", 1) == mx.cpu(1) and mx.current_context() == mx.cpu(0)
    assert issubclass(mx.MXNetError, Exception) and mx.base.MXNetError is mx.MXNetError is ax.ArrayExecError
    with mx.AttrScope(ctx_group="a"), mx.name.Prefix("p_"), mx.engine.bulk(10):
        assert mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=1, name="fc").name == "p_fc"
    mx.profiler.set_config(filename="x.json")
    mx.profiler.set_state("run")
    assert "memory_plan" in mx.profiler.dumps() and mx.engine.set_bulk_size(3) == 0
    assert not mx.util.is_np_array() and not mx.util.is_np_shape()
    assert set(dir(mx.nd)) > {"FullyConnected", "array", "sgd_update"} and "Module" in dir(mx.mod)
    assert {"Accuracy", "create"} < set(dir(mx.metric)) and {"LSTMCell"} < set(dir(mx.rnn)) and "Xavier" in dir(mx.init)
    assert {"NDArrayIter", "ResizeIter"} < set(dir(mx.io)) and {"SGD", "Updater"} < set(dir(mx.optimizer))


def test_modules_are_imported_under_the_names_that_programs_use() -> None:
    for path, public in (
        ("callback.Speedometer", mx.callback.Speedometer), ("module.base_module.BaseModule", mx.mod.BaseModule),
        ("module.module.Module", mx.mod.Module), ("lr_scheduler.FactorScheduler", mx.lr_scheduler.FactorScheduler),
        ("executor_manager._split_input_slice", mx.executor_manager._split_input_slice), ("io.io.DataIter", mx.io.DataIter),
        ("ndarray.ndarray.NDArray", mx.nd.NDArray), ("rnn.rnn_cell.LSTMCell", mx.rnn.LSTMCell),
        ("recordio.MXRecordIO", mx.recordio.MXRecordIO), ("initializer.Xavier", mx.init.Xavier), ("name.Prefix", mx.name.Prefix),
        ("model.load_checkpoint", mx.model.load_checkpoint), ("symbol.Symbol", mx.sym.Symbol), ("base.MXNetError", mx.MXNetError),
    ):  # fmt: skip
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(f"arrayexec.compat.mxnet.{module}"), name) is public, path


def test_scopes_of_names_and_attributes_in_force() -> None:
    with mx.AttrScope(a="1"), mx.AttrScope(b="2"):
        assert mx.AttrScope.current.get({"c": "3"}) == {"a": "1", "b": "2", "c": "3"}
    assert mx.AttrScope.current.get(None) == {}
    with mx.name.Prefix("p_"):
        assert mx.name.NameManager.current.get(None, "fc") == "p_fc0"
    with mx.name.NameManager():
        assert mx.name.NameManager.current.get(None, "fc") == "fc0"


def test_operators_of_contrib() -> None:
    for namespace in (mx.contrib.nd, mx.contrib.ndarray, mx.nd.contrib):
        priors = namespace.MultiBoxPrior(mx.nd.zeros((1, 3, 2, 2)), sizes=(0.5,), ratios=(1, 2))
        assert priors.shape == (1, 8, 4)
    for namespace in (mx.contrib.sym, mx.contrib.symbol, mx.sym.contrib):
        symbol = namespace.MultiBoxPrior(mx.sym.Variable("data"), sizes=(0.5,), ratios=(1, 2), name="prior")
        assert isinstance(symbol, mx.sym.Symbol) and symbol.infer_shape(data=(1, 3, 2, 2))[1] == [(1, 8, 4)]
    assert not hasattr(mx.contrib, "quantization")
