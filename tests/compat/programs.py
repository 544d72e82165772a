"""Whole programs in MXNet's manner, each a function of the namespace ``mx`` that gives numbers by name.

``python programs.py`` in an environment with MXNet 1.9.1 writes `programs.json` anew.
"""

from __future__ import annotations

import json
import os
import tempfile

import numpy as np

ROWS = np.random.RandomState(0).randn(200, 10).astype("float32")
CLASSES = (ROWS @ np.random.RandomState(1).randn(10, 4)).argmax(1).astype("float32")


def starts(mx, symbol, **shapes):
    """The same first values everywhere, whatever draws numbers there."""
    arg_shapes, _, aux_shapes = symbol.infer_shape(**shapes)
    draw = np.random.RandomState(7)
    args = {
        name: mx.nd.array(draw.randn(*shape) * 0.1)
        for name, shape in zip(symbol.list_arguments(), arg_shapes)  # noqa: B905 (Python 3.8 runs it, too)
        if name not in shapes and "label" not in name
    }
    states = zip(symbol.list_auxiliary_states(), aux_shapes)  # noqa: B905
    return args, {name: mx.nd.array(np.zeros(s) if "mean" in name else np.ones(s)) for name, s in states}


def sums(module):
    """Two numbers of every parameter and state of a module."""
    found = {}
    for part in module.get_params():
        for name, array in part.items():
            values = array.asnumpy().astype("float64")
            found[name] = [float(values.sum()), float(np.abs(values).sum())]
    return found


def perceptron(mx):
    """A symbol with batch norm, in 20 rows a batch."""
    data = mx.sym.Variable("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=16, name="fc1")
    hidden = mx.sym.Activation(mx.sym.BatchNorm(hidden, name="bn", fix_gamma=False), act_type="relu", name="relu1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2"), name="softmax")


def fit_with_a_metric_of_its_own(mx):
    class Right(mx.metric.EvalMetric):
        def __init__(self):
            super().__init__("right")

        def update(self, labels, preds):
            for label, pred in zip(labels, preds):  # noqa: B905
                self.sum_metric += (mx.nd.argmax(pred, axis=1) == label).sum().asscalar()
                self.num_inst += label.shape[0]

    symbol, seen = perceptron(mx), []
    args, states = starts(mx, symbol, data=(20, 10))
    module = mx.mod.Module(symbol, context=mx.cpu())
    module.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 20), eval_metric=Right(), num_epoch=2, initializer=None, arg_params=args,
        aux_params=states, optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
        batch_end_callback=lambda param: seen.append(param.eval_metric.get()[1]),
        epoch_end_callback=lambda epoch, symbol, args, states: seen.append(args["fc1_bias"].asnumpy()[0]),
    )  # fmt: skip
    found = sums(module)
    found["seen"] = [float(value) for value in seen]
    whole = mx.io.NDArrayIter(ROWS[:40], CLASSES[:40], 20)
    found["predicted"] = [float(value) for value in module.predict(whole).asnumpy().sum(0)]
    found["score"] = [float(value) for _, value in module.score(whole, ["acc", "ce"])]
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "model")
        module.save_checkpoint(prefix, 2)
        _, loaded, _ = mx.model.load_checkpoint(prefix, 2)
        found["loaded"] = [float(loaded["fc2_weight"].asnumpy().sum())]
        other = mx.mod.Module.load(prefix, 2)
        other.bind(whole.provide_data, whole.provide_label, for_training=False)
        found["reloaded"] = [float(value) for value in other.predict(whole).asnumpy().sum(0)]
    return found


def optimizer_of_its_own_on_two_devices(mx):
    class Heavy(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

        def update(self, index, weight, grad, state):
            self._update_count(index)
            state[:] = 0.9 * state - self._get_lr(index) * self.rescale_grad * grad
            weight += state

    mx.optimizer.Optimizer.register(Heavy)
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=16, name="fc1"), act_type="tanh")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2"), name="softmax")
    args, _ = starts(mx, symbol, data=(20, 10))
    module = mx.mod.Module(symbol, context=[mx.cpu(0), mx.cpu(1)])
    module.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 20), num_epoch=2, optimizer="heavy", arg_params=args,
        optimizer_params={"learning_rate": 0.1},
    )  # fmt: skip
    return sums(module)


def custom_operator(mx):
    class Soft(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            values = in_data[0].asnumpy()
            values = np.exp(values - values.max(axis=1, keepdims=True))
            self.assign(out_data[0], req[0], mx.nd.array(values / values.sum(axis=1, keepdims=True)))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            label, gradient = in_data[1].asnumpy().astype(int), out_data[0].asnumpy()
            gradient[np.arange(label.size), label] -= 1
            self.assign(in_grad[0], req[0], mx.nd.array(gradient))

    class SoftProp(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=False)

        def list_arguments(self):
            return ["data", "label"]

        def list_outputs(self):
            return ["output"]

        def infer_shape(self, in_shape):
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

        def create_operator(self, ctx, shapes, dtypes):
            return Soft()

    mx.operator.register("soft_of_programs")(SoftProp)
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc")
    symbol = mx.sym.Custom(data=hidden, name="softmax", op_type="soft_of_programs")
    args, _ = starts(mx, symbol, data=(20, 10))
    module = mx.mod.Module(symbol)
    module.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 20), num_epoch=2, arg_params=args, optimizer_params={"learning_rate": 0.1}
    )
    found = sums(module)
    data, label = mx.nd.array(ROWS[:3, :4]), mx.nd.array([0, 1, 2])
    found["at once"] = mx.nd.Custom(data, label, op_type="soft_of_programs").asnumpy().reshape(-1).tolist()
    return found


def buckets_of_an_lstm(mx):
    def sym_gen(key):
        data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
        embedded = mx.sym.Embedding(data, input_dim=12, output_dim=6, name="embed")
        stack = mx.rnn.SequentialRNNCell()
        stack.add(mx.rnn.LSTMCell(num_hidden=8, prefix="l0_"))
        outputs, _ = stack.unroll(key, inputs=embedded, merge_outputs=True)
        hidden = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 8)), num_hidden=12, name="pred")
        return mx.sym.SoftmaxOutput(hidden, mx.sym.Reshape(label, shape=(-1,)), name="softmax"), ("data",), ("softmax_label",)

    module = mx.mod.BucketingModule(sym_gen, default_bucket_key=8)
    args, _ = starts(mx, sym_gen(8)[0], data=(8, 8), softmax_label=(8, 8))
    module.bind([("data", (8, 8))], [("softmax_label", (8, 8))])
    module.init_params(arg_params=args)
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.01})
    found, metric = {}, mx.metric.Perplexity(ignore_label=0)
    for key in (5, 8, 5, 8):
        rows = np.random.RandomState(key).randint(0, 12, (8, key)).astype("float32")
        batch = mx.io.DataBatch(
            [mx.nd.array(rows)], [mx.nd.array(np.roll(rows, -1, axis=1))], bucket_key=key,
            provide_data=[("data", (8, key))], provide_label=[("softmax_label", (8, key))],
        )  # fmt: skip
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        module.update_metric(metric, batch.label)
        found[f"perplexity {len(found)}"] = [float(metric.get()[1])]
    return {**found, **sums(module)}


def monitor(mx):
    symbol = perceptron(mx)
    args, states = starts(mx, symbol, data=(20, 10))
    watch = mx.mon.Monitor(1, lambda value: mx.nd.norm(value) / np.sqrt(value.size), ".*weight|fc1_output", sort=True)
    module = mx.mod.Module(symbol)
    module.bind([("data", (20, 10))], [("softmax_label", (20,))])
    module.init_params(arg_params=args, aux_params=states)
    module.install_monitor(watch)
    watch.tic()
    module.forward_backward(next(mx.io.NDArrayIter(ROWS, CLASSES, 20)))
    return {name: [float(text)] for _, name, text in watch.toc()}


def stores_and_updaters(mx):
    found, store, out = {}, mx.kv.create("local"), mx.nd.zeros((2, 2))
    store.init(3, mx.nd.ones((2, 2)))
    store.push(3, [mx.nd.ones((2, 2)), mx.nd.ones((2, 2)) * 4])
    store.pull(3, out=out)
    found["sum"] = out.asnumpy().reshape(-1).tolist()

    def updater(key, given, stored):
        stored += given * 2

    store._set_updater(updater)
    store.push(3, mx.nd.ones((2, 2)))
    store.pull(3, out=out)
    found["updated"] = out.asnumpy().reshape(-1).tolist()
    weight, step = mx.nd.ones((2,)), mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9))
    for _ in range(3):
        step(0, mx.nd.array([1, -1]), weight)
    found["stepped"] = weight.asnumpy().tolist()
    return found


def chain_of_modules(mx):
    data = mx.sym.Variable("data")
    first = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=6, name="s1"), act_type="relu")
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=4, name="s2"), name="softmax")
    args = {**starts(mx, first, data=(20, 10))[0], **starts(mx, second, data=(20, 6))[0]}
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(first, label_names=[])).add(mx.mod.Module(second), take_labels=True, auto_wiring=True)
    chain.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 20), num_epoch=2, arg_params=args, aux_params={},
        optimizer_params={"learning_rate": 0.1},
    )  # fmt: skip
    return sums(chain)


def loss_in_python(mx):
    def gradient(scores, labels):
        values, wanted = scores.asnumpy(), labels.asnumpy().astype(int)
        values[np.arange(wanted.size), wanted] -= 1
        return mx.nd.array(values)

    data = mx.sym.Variable("data")
    symbol = mx.sym.softmax(mx.sym.FullyConnected(data, num_hidden=4, name="fc"))
    chain = mx.mod.SequentialModule()
    chain.add(mx.mod.Module(symbol, label_names=[]))
    chain.add(mx.mod.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True)
    args = starts(mx, symbol, data=(20, 10))[0]
    chain.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 20), num_epoch=1, arg_params=args, aux_params={},
        optimizer_params={"learning_rate": 0.1},
    )  # fmt: skip
    return sums(chain)


def imperative_descent(mx):
    """Gradients from an executor, steps by functions of ``mx.nd``."""
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc"), name="lr")
    executor = symbol.simple_bind(mx.cpu(), data=(20, 10), lr_label=(20, 1))
    weights = {name: executor.arg_dict[name] for name in ("fc_weight", "fc_bias")}
    moments = {name: mx.nd.zeros(array.shape) for name, array in weights.items()}
    losses = []
    for _ in range(30):
        executor.forward(is_train=True, data=mx.nd.array(ROWS[:20]), lr_label=mx.nd.array(CLASSES[:20].reshape(20, 1)))
        losses.append(float(((executor.outputs[0] - executor.arg_dict["lr_label"]) ** 2).mean().asscalar()))
        executor.backward()
        for name, array in weights.items():
            mx.nd.sgd_mom_update(array, executor.grad_dict[name], moments[name], lr=0.01, momentum=0.9, wd=0.01, out=array)
    return {"losses": losses[::10], **{name: [float(array.sum().asscalar())] for name, array in weights.items()}}


def loop_over_a_manager(mx):
    """Executors on two devices; the sum over them, and the step, by a store."""
    symbol = perceptron(mx)
    args, states = starts(mx, symbol, data=(10, 10))
    data = mx.io.NDArrayIter(ROWS, CLASSES, 20)
    names = [name for name in symbol.list_arguments() if name in args]
    manager = mx.executor_manager.DataParallelExecutorManager(
        symbol=symbol, ctx=[mx.cpu(0), mx.cpu(1)], train_data=data, param_names=names,
        arg_names=symbol.list_arguments(), aux_names=symbol.list_auxiliary_states(), work_load_list=[1, 1],
    )  # fmt: skip
    manager.set_params(args, states)
    store = mx.kv.create("local")
    for index, arrays in enumerate(manager.param_arrays):
        store.init(index, arrays[0])
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1.0 / 20))
    metric = mx.metric.create("acc")
    for batch in data:
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        for index, (arrays, gradients) in enumerate(zip(manager.param_arrays, manager.grad_arrays)):  # noqa: B905
            store.push(index, gradients, priority=-index)
            store.pull(index, arrays, priority=-index)
        manager.update_metric(metric, batch.label)
    manager.copy_to(args, states)
    found = {name: [float(array.asnumpy().sum())] for name, array in {**args, **states}.items()}
    return {**found, "accuracy": [float(metric.get()[1])]}


def loops_with_parts_of_the_model(mx):
    """Two ways of updating several devices: in the store, and on every device with sums from the store."""
    found = {}
    for kind in ("local", "device"):
        for in_store in (True, False):
            data = mx.sym.Variable("data")
            hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="fc1"), act_type="tanh")
            symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=4, name="fc2"), name="softmax")
            args, _ = starts(mx, symbol, data=(10, 10))
            batches, names = mx.io.NDArrayIter(ROWS[:60], CLASSES[:60], 20), list(args)
            manager = mx.executor_manager.DataParallelExecutorManager(
                symbol=symbol, ctx=[mx.cpu(0), mx.cpu(1)], train_data=batches, param_names=names,
                arg_names=symbol.list_arguments(), aux_names=[], work_load_list=[1, 1],
            )  # fmt: skip
            manager.set_params(args, {})
            store, chosen = mx.model._create_kvstore(kind, 2, args)
            assert chosen and mx.model._create_kvstore("local", 1, args)[0] is None
            optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1.0 / 20)
            updater = mx.optimizer.get_updater(optimizer)
            if in_store:
                store.set_optimizer(optimizer)
            mx.model._initialize_kvstore(store, manager.param_arrays, args, names, in_store)
            for _ in range(2):
                batches.reset()
                for batch in batches:
                    manager.load_data_batch(batch)
                    manager.forward(is_train=True)
                    manager.backward()
                    pairs = manager.param_arrays, manager.grad_arrays
                    if in_store:
                        mx.model._update_params_on_kvstore(*pairs, store, names)
                    else:
                        mx.model._update_params(*pairs, updater=updater, num_device=2, kvstore=store, param_names=names)
            manager.copy_to(args, {})
            for name, array in args.items():
                found[f"{kind} {in_store} {name}"] = [float(array.asnumpy().sum())]
    return found


PROGRAMS = [
    fit_with_a_metric_of_its_own, optimizer_of_its_own_on_two_devices, custom_operator, buckets_of_an_lstm, monitor,
    stores_and_updaters, chain_of_modules, loss_in_python, imperative_descent,
    loop_over_a_manager, loops_with_parts_of_the_model,
]  # fmt: skip

if __name__ == "__main__":
    np.bool = bool
    import mxnet

    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "programs.json"), "w", encoding="utf-8") as file:
        json.dump({program.__name__: program(mxnet) for program in PROGRAMS}, file, indent=1)
        file.write("\n")
