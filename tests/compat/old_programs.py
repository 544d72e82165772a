"""Pieces of programs in MXNet's manner, each a function of the namespace ``mx`` that gives arrays by name.

``python old_programs.py`` in an environment with MXNet 1.9.1 writes `old_programs.json` anew.
"""

from __future__ import annotations

import collections
import json
import os

import numpy as np

ROWS = np.random.RandomState(1).randn(40, 8).astype("float32")
CLASSES = ROWS[:, :3].argmax(1).astype("float32")


def perceptron(mx):
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, name="fc1")
    hidden = mx.sym.Activation(hidden, act_type="relu", name="relu1")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def first_values(mx, symbol, **shapes):
    """The same everywhere, whatever draws numbers there."""
    draw = np.random.RandomState(3)
    found = dict(zip(symbol.list_arguments(), symbol.infer_shape(**shapes)[0]))  # noqa: B905
    return {
        name: mx.nd.array(draw.randn(*shape) * 0.3)
        for name, shape in found.items()
        if name not in shapes and "label" not in name
    }


def initialiser_with_rules_for_many_names(mx):
    class Own(mx.init.Initializer):
        def _init_weight(self, name, arr):
            arr[:] = 0.3
            arr[0] = mx.nd.arange(arr.shape[1])

        def _init_bias(self, name, arr):
            arr[:] = -1

        def _init_gamma(self, name, arr):
            arr[:] = mx.nd.ones(arr.shape) * 2

        def _init_default(self, name, arr):
            arr[:] = 9

    symbol = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), name="bn")
    module = mx.mod.Module(mx.sym.broadcast_mul(symbol, mx.sym.Variable("scale", shape=(1, 2))), label_names=None)
    module.bind([("data", (4, 3))])
    module.init_params(Own())
    return dict(module.get_params()[0])


def optimizer_on_top_of_another(mx):
    class Damped(mx.optimizer.Adam):
        def create_state(self, index, weight):
            return super().create_state(index, weight), mx.nd.ones_like(weight)

        def update(self, index, weight, grad, state):
            (mean, var), count = state
            mean *= 0.5
            count += 1
            super().update(index, weight, grad * 2, (mean, var))

    mx.optimizer.Optimizer.register(Damped)
    symbol = perceptron(mx)
    module = mx.mod.Module(symbol)
    module.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 10), optimizer="damped", optimizer_params={"learning_rate": 0.05, "wd": 0.01},
        arg_params=first_values(mx, symbol, data=(10, 8)), initializer=None, num_epoch=2,
    )  # fmt: skip
    return dict(module.get_params()[0])


def optimizer_that_asks_for_names(mx):
    @mx.optimizer.register
    class FasterBias(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

        def update(self, index, weight, grad, state):
            self._update_count(index)
            rate = self._get_lr(index) * (3 if self.idx2name[index].endswith("bias") else 1)
            state[:] = 0.9 * state - rate * (grad * self.rescale_grad + self._get_wd(index) * weight)
            weight += state

    symbol = perceptron(mx)
    module = mx.mod.Module(symbol)
    module.fit(
        mx.io.NDArrayIter(ROWS, CLASSES, 10), optimizer="fasterbias", optimizer_params={"learning_rate": 0.1, "wd": 0.1},
        arg_params=first_values(mx, symbol, data=(10, 8)), initializer=None, num_epoch=2,
    )  # fmt: skip
    names = module._optimizer.idx2name
    return {"values": dict(module.get_params()[0]), "names": [len(names), names[0], 7 in names, names.get(7)]}


def steps_of_optimizers(mx):
    draw, found = np.random.RandomState(0), {}

    def some():
        return mx.nd.array(draw.randn(2, 2))

    def positive():
        return mx.nd.array(draw.rand(2, 2) + 1)

    for turn, options in enumerate([{}, {"wd": 0.1, "rescale_grad": 0.5, "clip_gradient": 0.3}]):
        many = {name: value for name, value in options.items() if name != "wd"}
        w, n, g, delta = some(), positive(), some() * 0.1, some()
        mx.nd.rmspropalex_update(w, some(), n, g, delta, lr=0.1, out=w, gamma1=0.8, clip_weights=0.9, **options)
        found[f"rmspropalex{turn}"] = [w, n, g, delta]
        w, d, v, z = some(), positive(), positive(), some()
        cut = {"clip_grad" if name == "clip_gradient" else name: value for name, value in options.items()}
        mx.nd.ftml_update(w, some(), d, v, z, lr=0.1, t=3, out=w, **cut)
        found[f"ftml{turn}"] = [w, d, v, z]
        for name in ("nag_mom_update", "sgd_mom_update"):
            w, mom, grad = some(), some(), some()
            for _ in range(2):
                getattr(mx.nd, name)(w, grad, mom, lr=0.1, momentum=0.9, out=w, **options)
            new = getattr(mx.nd, name)(w, grad, mom, lr=0.1, momentum=0.9, **options)
            master, mom16 = some(), some()
            half, grad = master.astype("float16"), grad.astype("float16")
            for _ in range(2):
                getattr(mx.nd, "mp_" + name)(half, grad, mom16, master, lr=0.1, momentum=0.9, out=half, **options)
            found[f"{name}{turn}"] = [w, mom, new, half, mom16, master]
        half = master.astype("float16")
        mx.nd.mp_sgd_update(half, grad, master, lr=0.1, out=half, **options)
        found[f"mp_sgd{turn}"] = [half, master]
        weights, moms = [some(), some()], [some(), some()]
        both = {"lrs": (0.1, 0.2), "wds": (0.1, 0.0), "num_weights": 2, "out": weights}
        mx.nd.multi_sgd_update(weights[0], some(), weights[1], some(), **dict(both, **many))
        sets = weights[0], some(), moms[0], weights[1], some(), moms[1]
        mx.nd.multi_sgd_mom_update(*sets, momentum=0.9, **dict(both, **many))
        found[f"multi{turn}"] = weights + moms
        w, mean, var = some(), some(), positive()
        step = mx.nd.lamb_update_phase1(w, some(), mean, var, t=3, **dict({"wd": 0.0}, **options))
        mx.nd.lamb_update_phase2(w, step, w.norm(), step.norm(), lr=0.1, out=w)
        mx.nd.lamb_update_phase2(w, step, w.norm(), step.norm(), lr=0.1, lower_bound=3.0, upper_bound=4.0, out=w)
        found[f"lamb{turn}"] = [w, step, mean, var]
    return found


def tests_of_numbers(mx):
    data = mx.nd.array([[1, np.nan], [np.inf, 2], [-np.inf, 3]])
    found = {name: getattr(mx.nd.contrib, name)(data) for name in ("isnan", "isinf", "isfinite")}
    found["boolean_mask"] = mx.nd.contrib.boolean_mask(mx.nd.array(ROWS[:3]), mx.nd.array([1, 0, 1]))
    return found


def whole_numbers_of_numpy(mx):
    """Iterators make them float32, NDArrays keep their type."""
    pixels, found = (ROWS * 10).astype("uint8"), {}
    symbol = perceptron(mx)
    module = mx.mod.Module(symbol)
    first = first_values(mx, symbol, data=(10, 8))
    module.fit(mx.io.NDArrayIter(pixels, CLASSES, 10), arg_params=first, initializer=None, num_epoch=1)
    found["predicted"] = module.predict(mx.io.NDArrayIter({"data": pixels > 9}, batch_size=10))
    found["kept"] = mx.io.NDArrayIter(mx.nd.array(pixels[:4], dtype="uint8"), batch_size=4).next().data[0]
    model = mx.model.FeedForward(symbol, arg_params=first, aux_params={}, numpy_batch_size=10)
    found["older face"] = model.predict(pixels)
    return found


def predictions_with_a_loaded_model(mx):
    """As tutorials do it: shapes of labels from a module that is not bound, batches that have nothing but data."""
    symbol = perceptron(mx)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (2, 8))], for_training=False, label_shapes=module._label_shapes)
    module.set_params(first_values(mx, symbol, data=(2, 8)), {}, allow_missing=True)
    batch = collections.namedtuple("Batch", ["data"])
    module.forward(batch([mx.nd.array(ROWS[:2])]))
    inner = mx.mod.Module(symbol.get_internals()["relu1_output"], label_names=None)
    inner.bind([("data", (2, 8))], for_training=False)
    inner.init_params(arg_params=first_values(mx, symbol, data=(2, 8)), aux_params={}, allow_extra=True)
    inner.forward(batch([mx.nd.array(ROWS[:2])]))
    return {"scores": module.get_outputs()[0], "features": inner.get_outputs()[0]}


def modules_for_many_shapes(mx):
    """A module made for a batch of another shape on the parameters of the one before has its optimizer, too."""
    pooled = mx.sym.Pooling(mx.sym.Variable("data"), kernel=(1, 1), global_pool=True, pool_type="avg")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(pooled, num_hidden=3, name="fc"), name="softmax")
    draw, module = np.random.RandomState(5), None
    for size in (4, 3, 5):
        shapes = [("data", (2, 3, size, size))], [("softmax_label", (2,))]
        before, module = module, mx.mod.Module(symbol)
        module.bind(*shapes, shared_module=before)
        if before is None:
            module.init_params(arg_params=first_values(mx, symbol, data=(2, 3, 4, 4)), aux_params={})
            module.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
        batch = mx.io.DataBatch([mx.nd.array(draw.rand(2, 3, size, size))], [mx.nd.array([0, 2])])
        module.forward_backward(batch)
        module.update()
    return dict(module.get_params()[0])


PROGRAMS = [
    initialiser_with_rules_for_many_names, optimizer_on_top_of_another, optimizer_that_asks_for_names,
    steps_of_optimizers, tests_of_numbers,
    whole_numbers_of_numpy, predictions_with_a_loaded_model, modules_for_many_shapes,
]  # fmt: skip


def plain(value):
    """What a program gave, as JSON has it: arrays as a type and their rounded numbers."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "values": np.round(value.astype("float64"), 6).tolist()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in sorted(value.items())}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    np.bool = bool
    import mxnet

    record = {program.__name__: plain(program(mxnet)) for program in PROGRAMS}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "old_programs.json"), "w") as file:
        json.dump(record, file, indent=0, sort_keys=True)
        file.write("\n")
