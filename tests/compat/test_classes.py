"""Classes of the drop-in namespace as programs use them: iterators, metrics, cells, operators, optimizers, modules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
import arrayexec.compat.mxnet as mx

utils = mx.test_utils


def net() -> Any:
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")


def test_initialisers() -> None:
    array = mx.nd.zeros((4, 5))
    mx.init.Xavier()("fc_weight", array)
    plain = np.zeros((4, 5), np.float32)
    ax.init.Xavier()("fc_weight", plain)
    assert (array.asnumpy() == plain).all() and plain.any()
    mx.init.Constant(3).init_array(array)
    assert (array.asnumpy() == 3).all()

    class Own(mx.init.Initializer):
        def _init_weight(self, name: str, arr: Any) -> None:
            arr[:] = mx.nd.ones(arr.shape, arr.context) * len(name)

    Own()("a_weight", array)
    assert (array.asnumpy() == 8).all()
    module = mx.mod.Module(net(), label_names=[])
    module.bind([("data", (3, 4))], for_training=False)
    module.init_params(Own())
    values = module.get_params()[0]
    assert (values["fc_weight"].asnumpy() == 9).all() and (values["fc_bias"].asnumpy() == 0).all()
    module.init_params(mx.init.Mixed(["fc_bias", ".*"], [mx.init.One(), mx.init.Uniform(0.1)]), force_init=True)
    assert abs(module.get_params()[0]["fc_weight"].asnumpy()).max() <= 0.1


def test_iterators_around_iterators() -> None:
    data = np.arange(8, dtype=np.float32).reshape(8, 1)
    inner = mx.io.NDArrayIter(data, np.zeros(8), 2)
    for iterator in (mx.io.ResizeIter(inner, 3), mx.io.PrefetchingIter(mx.io.NDArrayIter(data, np.zeros(8), 2))):
        assert isinstance(iterator, mx.io.DataIter)
        batch = next(iter(iterator))
        assert isinstance(batch.data[0], mx.nd.NDArray) and isinstance(batch.label[0], mx.nd.NDArray)
        assert batch.data[0].asnumpy().tolist() == [[0], [1]]

    class Own(mx.io.DataIter):
        def __init__(self) -> None:
            super().__init__(2)
            self.provide_data, self.provide_label = [("data", (2, 4))], []
            self.left = 3

        def next(self) -> Any:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return mx.io.DataBatch(data=[mx.nd.ones((2, 4)) * self.left], label=[], pad=0)

        def reset(self) -> None:
            self.left = 3

    module = mx.mod.Module(net(), label_names=None)
    module.bind([("data", (2, 4))], for_training=False)
    module.init_params(mx.init.One())
    found = module.predict(Own())
    assert isinstance(found, mx.nd.NDArray) and found[:, 0].asnumpy().tolist() == [8, 8, 4, 4, 0, 0]
    [outputs, *_] = [outputs for outputs, _, _ in module.iter_predict(Own())]
    assert isinstance(outputs[0], mx.nd.NDArray)
    assert isinstance(module.predict(mx.nd.ones((5, 4))), mx.nd.NDArray)


def test_metrics_of_all_kinds() -> None:
    label, pred = [mx.nd.array([1, 0])], [mx.nd.array([[0.1, 0.9], [0.2, 0.8]])]
    both = mx.metric.CompositeEvalMetric()
    both.add("acc")
    both.add(mx.metric.CrossEntropy())
    both.update(label, pred)
    assert both.get()[1][0] == 0.5 and isinstance(both, mx.metric.EvalMetric)
    one = mx.metric.create(lambda label, pred: float(label.sum()))
    one.update(label, pred)
    assert one.get()[1] == 1.0 and isinstance(one, mx.metric.CustomMetric)
    accuracy = mx.metric.create("acc")
    assert isinstance(accuracy, mx.metric.Accuracy) and isinstance(accuracy, mx.metric.EvalMetric)
    accuracy.update_dict({"softmax_label": label[0]}, {"softmax_output": pred[0]})
    assert accuracy.get() == ("accuracy", 0.5)

    @mx.metric.register
    class CompatCount(mx.metric.EvalMetric):
        def __init__(self, name: str = "count") -> None:
            super().__init__(name)

        def update(self, labels: Any, preds: Any) -> None:
            self.sum_metric += labels[0].asnumpy().size
            self.num_inst += 1

    counted = mx.metric.create("compatcount")
    counted.update_dict({"l": np.zeros(3)}, {"o": np.zeros(3)})
    assert counted.get() == ("count", 3.0)


def test_sentences_become_numbers() -> None:
    sentences = [["a", "b", "a"], ["c"]]
    assert mx.rnn.encode_sentences(sentences) == ([[0, 1, 0], [2]], {"\n": -1, "a": 0, "b": 1, "c": 2})
    assert mx.rnn.encode_sentences(sentences, invalid_label=1, start_label=1)[0] == [[2, 3, 2], [4]]
    known = {"a": 0, "?": 1}
    assert mx.rnn.encode_sentences(sentences, known, unknown_token="?") == ([[0, 1, 0], [1]], known)
    assert mx.rnn.encode_sentences([["z"]], {"a": 0}, unknown_token="?") == ([[1]], {"a": 0, "?": 1})


def test_cells_and_their_checkpoints(tmp_path: Any) -> None:
    stack = mx.rnn.SequentialRNNCell()
    stack.add(mx.rnn.LSTMCell(3, prefix="a_"))
    outputs, states = stack.unroll(2, inputs=mx.sym.Variable("data"), merge_outputs=True)
    assert isinstance(outputs, mx.sym.Symbol) and all(isinstance(one, mx.sym.Symbol) for one in states)
    module = mx.mod.Module(outputs, label_names=None)
    module.bind([("data", (2, 2, 4))], for_training=False)
    module.init_params(mx.init.Uniform(0.5))
    args, auxiliary = module.get_params()
    prefix = str(tmp_path / "lstm")
    mx.rnn.do_rnn_checkpoint(stack, prefix, 2)(1, outputs, args, auxiliary)
    assert {"a_i2h_f_weight", "a_h2h_o_bias"} < set(mx.model.load_params(prefix, 2)[0])
    symbol, loaded, _ = mx.rnn.load_rnn_checkpoint(stack, prefix, 2)
    assert isinstance(symbol, mx.sym.Symbol)
    assert all(mx.test_utils.same(loaded[name], args[name]) for name in args)
    fused = mx.rnn.FusedRNNCell(3, num_layers=2, mode="gru", prefix="f_")
    assert isinstance(fused.unfuse().unroll(2, inputs=mx.sym.Variable("data"))[0][0], mx.sym.Symbol)


def test_the_oldest_kind_of_operator() -> None:
    class Soft(mx.operator.NumpyOp):
        def __init__(self) -> None:
            super().__init__(need_top_grad=False)

        def list_arguments(self) -> list[str]:
            return ["data", "label"]

        def infer_shape(self, in_shape: Any) -> Any:
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

        def forward(self, in_data: Any, out_data: Any) -> None:
            values = np.exp(in_data[0])
            out_data[0][:] = values / values.sum(axis=1, keepdims=True)

        def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
            in_grad[0][:] = out_data[0]
            in_grad[0][np.arange(2), in_data[1].astype(int)] -= 1

    symbol = Soft()(data=mx.sym.Variable("data"), name="soft")
    assert symbol.list_arguments() == ["data", "soft_label"] and symbol.list_outputs() == ["soft_output"]
    executor = symbol.simple_bind(mx.cpu(), data=(2, 3), grad_req={"data": "write"})
    executor.forward(is_train=True, data=mx.nd.zeros((2, 3)), soft_label=mx.nd.array([2, 0]))
    executor.backward()
    np.testing.assert_allclose(executor.grad_dict["data"].asnumpy() * 3, [[1, 1, -2], [-2, 1, 1]], rtol=1e-6)

    class Doubled(mx.operator.NDArrayOp):
        def forward(self, in_data: Any, out_data: Any) -> None:
            out_data[0][:] = in_data[0] * 2

        def backward(self, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any) -> None:
            in_grad[0][:] = out_grad[0] * 2

    utils.check_numeric_gradient(Doubled()(mx.sym.Variable("data")), [np.ones((2, 2))])


def test_executors_of_a_module_under_their_old_name() -> None:
    symbol = mx.sym.LinearRegressionOutput(net(), name="lr")
    module = mx.mod.Module(symbol, label_names=["lr_label"], context=[mx.cpu(0), mx.cpu(1)])
    module.bind([("data", (4, 3))], [("lr_label", (4, 2))])
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
    batch = mx.io.DataBatch([mx.nd.ones((4, 3))], [mx.nd.zeros((4, 2))])
    module.forward_backward(batch)
    group = module._exec_group
    kept = [[gradient.copyto(gradient.context) for gradient in row] for row in group.grad_arrays]
    module.forward_backward(batch)
    for row, others in zip(group.grad_arrays, kept, strict=True):
        for gradient, other in zip(row, others, strict=True):
            gradient += other
    module.update()
    assert len(group.execs) == 2 and isinstance(group.execs[0].outputs[0], mx.nd.NDArray)
    # 4 rows, each with the gradient 3 / 2 of a weight, twice
    assert module.get_params()[0]["fc_weight"].asnumpy().tolist() == [[1 - 2 * 4 * 1.5] * 3] * 2


def test_labels_and_predictions_are_counted() -> None:
    one, other = mx.nd.ones((2,)), mx.nd.ones((3,))
    assert mx.metric.check_label_shapes([one], [other]) == ([one], [other])
    assert mx.metric.check_label_shapes(one, mx.nd.zeros((2,)), wrap=True, shape=True)[0] == [one]
    with pytest.raises(ValueError, match="the shape of predictions"):
        mx.metric.check_label_shapes(one, other, shape=True)


def test_what_is_made_here_is_of_the_classes_here() -> None:
    assert isinstance(mx.init.Xavier(), mx.init.Initializer) and isinstance(mx.init.create("one"), ax.init.Initializer)
    assert isinstance(mx.optimizer.SGD(), mx.optimizer.Optimizer) and isinstance(mx.optimizer.create("adam"), mx.optimizer.Adam)
    assert isinstance(mx.rnn.LSTMCell(3), mx.rnn.BaseRNNCell) and isinstance(mx.metric.Accuracy(), mx.metric.EvalMetric)
    assert isinstance(mx.io.NDArrayIter(np.zeros((2, 1))), mx.io.DataIter) and isinstance(mx.kv.create(), mx.kv.KVStore)

    class Half(mx.init.Xavier):
        def _init_weight(self, name: Any, arr: Any) -> None:
            super()._init_weight(name, arr)
            assert isinstance(arr, mx.nd.NDArray)
            arr *= 0.5

    array, whole = mx.nd.zeros((3, 4)), mx.nd.zeros((3, 4))
    Half()("a_weight", array)
    mx.init.Xavier()("a_weight", whole)
    assert (array * 2).asnumpy().tolist() == whole.asnumpy().tolist()

    class Slow(mx.optimizer.SGD):
        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
            assert isinstance(weight, mx.nd.NDArray)
            weight -= 0.5 * grad

    weight = mx.nd.ones((2,))
    mx.optimizer.get_updater(Slow())(0, mx.nd.ones((2,)), weight)
    assert weight.asnumpy().tolist() == [0.5, 0.5]


def test_optimizers_are_called_without_an_updater() -> None:
    for name, options in (("nag", {"momentum": 0.9}), ("sgd", {}), ("adam", {}), ("rmsprop", {})):
        one, other = (mx.optimizer.create(name, learning_rate=0.1, **options) for _ in range(2))
        weight, right, step = mx.nd.ones((2, 3)), mx.nd.ones((2, 3)), mx.optimizer.get_updater(other)
        state = one.create_state(0, weight)
        for _ in range(3):
            one.update(0, weight, mx.nd.array([[1, 2, 3], [4, 5, 6]]), state)
            step(index=0, grad=mx.nd.array([[1, 2, 3], [4, 5, 6]]), weight=right)
        assert utils.same(weight, right) and weight[0, 0].asscalar() < 1
    sgd = mx.optimizer.SGD(learning_rate=0.5)
    weight = mx.nd.ones((2,))
    sgd.update_multi_precision(0, weight, mx.nd.ones((2,)), sgd.create_state_multi_precision(0, weight))
    assert weight.asnumpy().tolist() == [0.5, 0.5]
    assert copy.deepcopy(sgd).lr == pickle.loads(pickle.dumps(sgd)).lr == 0.5


def test_outputs_may_be_taken_before_the_first_forward() -> None:
    symbol = mx.sym.SoftmaxOutput(net(), name="softmax")
    executor = symbol.simple_bind(mx.cpu(), data=(3, 4))
    early = dict(zip(symbol.list_outputs(), executor.outputs, strict=True))["softmax_output"]
    for is_train in (True, False, True):
        executor.forward(is_train=is_train, data=mx.nd.ones((3, 4)))
        assert utils.same_array(early, executor.outputs[0]) and (early.asnumpy() == 0.5).all()
        executor.backward()
    smaller = symbol.bind(
        mx.cpu(), {**executor.arg_dict, "data": mx.nd.ones((2, 4)), "softmax_label": mx.nd.zeros((2,))},
        shared_exec=executor,
    )  # fmt: skip
    smaller.forward(is_train=False)
    executor.forward(is_train=True, data=mx.nd.zeros((3, 4)))
    assert utils.same_array(early, executor.outputs[0])


def test_a_metric_with_sums_of_its_own(caplog: Any) -> None:
    class Both(mx.metric.EvalMetric):
        def __init__(self) -> None:
            super().__init__("both")

        def reset(self) -> None:
            self.num_inst, self.sum_metric = [0, 0], [0.0, 0.0]

        def update(self, labels: Any, preds: Any) -> None:
            label, pred = labels[0].asnumpy(), preds[0].asnumpy()
            for i, value in enumerate(((pred.argmax(axis=1) == label).sum(), pred.max(axis=1).sum())):
                self.sum_metric[i] += float(value)
                self.num_inst[i] += label.size

        def get(self) -> Any:
            return ["right", "sure"], [a / b if b else float("nan") for a, b in zip(self.sum_metric, self.num_inst, strict=True)]

    module = mx.mod.Module(mx.sym.SoftmaxOutput(net(), name="softmax"))
    data = mx.io.NDArrayIter(np.ones((8, 4)), np.zeros(8), 2)
    with caplog.at_level("INFO"):
        module.fit(data, data, Both(), num_epoch=1, batch_end_callback=mx.callback.Speedometer(2, 2), initializer=mx.init.Zero())
    assert "right=1.0" in caplog.text and "Train-sure=" in caplog.text and "Validation-right=1.0" in caplog.text
    assert [name for name, _ in module.score(data, mx.metric.create(["acc", Both()]))] == ["accuracy", "right", "sure"]


class Mutable(mx.mod.BaseModule):
    """A module of a program's own, around one that is bound anew where shapes change."""

    def __init__(self, symbol: Any, data_names: Any, label_names: Any) -> None:
        super().__init__()
        self._symbol, self._names = symbol, (data_names, label_names)
        self._curr: Any = None

    data_names = property(lambda self: self._names[0])
    output_names = property(lambda self: self._symbol.list_outputs())
    data_shapes = property(lambda self: self._curr.data_shapes)
    label_shapes = property(lambda self: self._curr.label_shapes)
    output_shapes = property(lambda self: self._curr.output_shapes)
    symbol = property(lambda self: self._symbol)

    def get_params(self) -> Any:
        return self._curr.get_params()

    def init_params(self, initializer: Any = None, arg_params: Any = None, aux_params: Any = None, allow_missing: bool = False, force_init: bool = False, allow_extra: bool = False) -> None:
        if not self.params_initialized or force_init:
            self._curr.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
            self.params_initialized = True

    def bind(self, data_shapes: Any, label_shapes: Any = None, for_training: bool = True, inputs_need_grad: bool = False, force_rebind: bool = False, shared_module: Any = None, grad_req: Any = "write") -> None:
        self._curr = mx.mod.Module(self._symbol, *self._names)
        self._curr.bind(data_shapes, label_shapes, for_training)
        self.binded, self.for_training = True, for_training

    def init_optimizer(self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (), force_init: bool = False) -> None:
        self._curr.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    def forward(self, data_batch: Any, is_train: Any = None) -> None:
        assert isinstance(data_batch.data[0], mx.nd.NDArray)
        shapes = [("data", data_batch.data[0].shape)]
        labels = [("softmax_label", data_batch.label[0].shape)]
        if tuple(self._curr.data_shapes[0].shape) != shapes[0][1]:
            other = mx.mod.Module(self._symbol, *self._names)
            other.bind(shapes, labels, self._curr.for_training, shared_module=self._curr)
            if self.optimizer_initialized:
                other.borrow_optimizer(self._curr)
            self._curr = other
        self._curr.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        self._curr.backward(out_grads)

    def update(self) -> None:
        self._curr.update()

    def get_outputs(self, merge_multi_context: bool = True) -> Any:
        return self._curr.get_outputs(merge_multi_context)

    def update_metric(self, eval_metric: Any, labels: Any, pre_sliced: bool = False) -> None:
        self._curr.update_metric(eval_metric, labels, pre_sliced)

    def install_monitor(self, mon: Any) -> None:
        self._curr.install_monitor(mon)


def test_a_module_of_the_program() -> None:
    draw = np.random.RandomState(0)
    rows = draw.randn(30, 4)
    labels = (rows[:, 0] > 0).astype(float)
    module = Mutable(mx.sym.SoftmaxOutput(net(), name="softmax"), ["data"], ["softmax_label"])
    data, odd = mx.io.NDArrayIter(rows, labels, 10), mx.io.NDArrayIter(rows, labels, 8)
    seen = []
    module.fit(
        data, odd, num_epoch=6, optimizer_params={"learning_rate": 1.0}, initializer=mx.init.One(),
        epoch_end_callback=lambda epoch, symbol, args, states: seen.append(args["fc_weight"]),
    )  # fmt: skip
    assert len(seen) == 6 and all(isinstance(array, mx.nd.NDArray) for array in seen)
    assert dict(module.score(odd, "acc"))["accuracy"] >= 0.9
    predicted = module.predict(odd)
    assert isinstance(predicted, mx.nd.NDArray) and predicted.shape == (30, 2)
    assert ((predicted.asnumpy().argmax(axis=1) == labels).mean()) >= 0.9


def test_simple_bind_passes_over_names_that_a_cut_net_has_not() -> None:
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    executor = hidden.simple_bind(
        mx.cpu(), grad_req={"fc_weight": "write", "softmax_label": "null"}, type_dict={"data": "float64", "softmax_label": "float32"},
        data=(4, 3), softmax_label=(4,),
    )  # fmt: skip
    assert sorted(executor.arg_dict) == ["data", "fc_bias", "fc_weight"]
    assert executor.arg_dict["fc_weight"].dtype is np.float64
    with pytest.raises(ValueError, match="do not say the shape of 'data'"):
        hidden.simple_bind(mx.cpu(), dat=(4, 3))
