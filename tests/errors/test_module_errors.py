"""Every refusal of modules. The texts stand in ``texts_module.txt``; how they are recorded: ``recorder.py``."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import arrayexec as ax
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.parallel.networks import mlp

NAMES = (
    "base_module", "bound_module", "bucketing_module", "module", "model", "model_files", "sequential_module", "python_module",
    "symbol_changes",
)  # fmt: skip
FILES = (*(f"module/{name}.py" for name in NAMES), "parallel/training_manager.py", "parallel/merging.py")
# what a class must define is one text, in one place
INTERNAL = {"self._is_missing", "self._lacks"}

RECORDER = Recorder(Path(__file__).parent / "texts_module.txt", [PACKAGE / name for name in FILES], INTERNAL)
cases = RECORDER.cases

sym = ax.sym
DATA, LABEL = [("data", (8, 6))], [("softmax_label", (8,))]
X, Y = np.zeros((8, 6), np.float32), np.zeros(8, np.float32)
Module, Buckets, Chain = ax.mod.Module, ax.mod.BucketingModule, ax.mod.SequentialModule
TWO = [ax.cpu(0), ax.cpu(1)]


def batch() -> Any:
    return ax.io.DataBatch([X], [Y])


def bound(module: Any = None, **options: Any) -> Any:
    module = module or Module(mlp())
    module.bind(DATA, LABEL, **options)
    return module


def ready(module: Any = None, **options: Any) -> Any:
    module = bound(module, **options)
    module.init_params()
    return module


def after(make: Callable[[], Any], call: Callable[[Any], Any]) -> Callable[[], Any]:
    """A case: make a module, then do what is refused."""
    return lambda: call(make())


def sized(rows: int) -> Any:
    return ax.io.DataBatch([np.zeros((rows, 6), np.float32)], [np.zeros(rows, np.float32)])


# --- one after the other

cases(
    bind_first=after(lambda: Module(mlp()), lambda m: m.forward(batch())),
    bind_first_shapes=after(lambda: Module(mlp()), lambda m: m.data_shapes),
    params_first=after(bound, lambda m: m.forward(batch())),
    optimizer_first=after(ready, lambda m: m.update()),
    forward_first=after(ready, lambda m: m.get_outputs()),
    backward_for_training=after(lambda: ready(for_training=False), lambda m: m.backward()),
    input_grads_wanted=after(ready, lambda m: (m.forward(batch()), m.get_input_grads())),
    method_missing=lambda: ax.mod.BaseModule().bind(DATA),
    property_missing=lambda: ax.mod.BaseModule().data_names,
)

# --- Module

cases(
    symbol=lambda: Module("net-symbol.json"),
    symbol_of_bucket=lambda: Buckets(lambda key: None, 8),
    data_name=lambda: Module(mlp(), ("date",)),
    state_name=lambda: Module(mlp(), state_names=["state"]),
    fixed_name=lambda: Module(mlp(), fixed_param_names=["fc1_weigth"]),
    initializer_by_name=after(bound, lambda m: m.init_params("xavier")),
    bind_inputs_grad=lambda: bound(for_training=False, inputs_need_grad=True),
    bind_data_names=lambda: Module(mlp()).bind([("x", (8, 6))]),
    bind_a_dict=lambda: Module(mlp()).bind({"data": (8, 6)}),
    bind_a_text=lambda: Module(mlp()).bind([("data", (8, "6"))]),
    bind_label_names=lambda: Module(mlp()).bind(DATA, [("y", (8,))]),
    bind_shared=lambda: bound(shared_module=3),
    bind_shared_unbound=lambda: bound(shared_module=Module(mlp())),
    bind_shared_devices=lambda: bound(Module(mlp(), context=TWO), shared_module=ready()),
    bind_groups=lambda: bound(Module(mlp(), context=TWO, group2ctxs=[{}])),
    bind_request=lambda: bound(grad_req="sum"),
    bind_request_name=lambda: bound(grad_req={"fc1_wieght": "add"}),
    bind_request_count=lambda: bound(grad_req=["write"]),
    bind_weighting=lambda: bound(Module(mlp(), loss_weighting="rows")),
    bind_weighting_add=lambda: bound(Module(mlp(), loss_weighting="samples"), grad_req="add"),
    params_missing=after(bound, lambda m: m.init_params(None, {"fc1_weight": X})),
    params_missing_aux=after(lambda: bound(Module(mlp(norm=True))), lambda m: m.init_params(None, None, {})),
    params_extra=after(ready, lambda m: m.set_params(m.get_params()[0] | {"fc2_weights": X}, {})),
    params_extra_aux=after(ready, lambda m: m.set_params(m.get_params()[0], {"mean": X})),
    params_shape=after(ready, lambda m: m.set_params({"fc1_bias": X}, {}, allow_missing=True)),
    optimizer_type=after(ready, lambda m: m.init_optimizer(optimizer=3)),
    optimizer_shared_ranks=lambda: ready(shared_module=ready()).init_optimizer(SimpleNamespace(num_workers=2, comm=object())),
    batch_data=after(ready, lambda m: m.forward(SimpleNamespace(data=X, label=[Y]))),
    batch_features=after(ready, lambda m: m.forward(ax.io.DataBatch([X[:, :5]], [Y]))),
    batch_without_labels=after(ready, lambda m: m.forward_backward(ax.io.DataBatch([X]))),
    batch_label=after(ready, lambda m: m.forward(SimpleNamespace(data=[X], label=Y))),
    states_both=after(ready, lambda m: m.set_states([X], 1.0)),
    states_count=after(ready, lambda m: m.set_states([X])),
    file_of_a_list=lambda: (ax.nd.save("x.params", [X]), ready().load_params("x.params")),
    file_names_twice=lambda: (ax.nd.save("x.params", {"w": X, "arg:w": X}), ready().load_params("x.params")),
    file_without_a_parameter=lambda: (ready().save_checkpoint("x", 1), ax.nd.save(
        "x-0001.params", {n: a for n, a in ax.nd.load("x-0001.params").items() if n != "arg:fc2_bias"}
    ), bound(Module.load("x", 1))),
    pickled=after(ready, pickle.dumps),
    bad_rebind=after(ready, lambda m: m.bind([("data", (0, 6))], LABEL, force_rebind=True)),
)

# --- runs

cases(
    fit_epochs=lambda: Module(mlp()).fit(ax.io.NDArrayIter(X, Y, 4)),
    fit_resume=lambda: Module(mlp()).fit(ax.io.NDArrayIter(X, Y, 4), num_epoch=1, resume=True),
    fit_array=lambda: Module(mlp()).fit(X, num_epoch=1),
    fit_empty=lambda: Module(mlp()).fit(ax.io.NDArrayIter(X, Y, 9, last_batch_handle="discard"), num_epoch=1),
)


@RECORDER.case
def predict_shapes() -> None:
    net = sym.Variable("data") * 2
    module = Module(net, label_names=None)
    module.bind([("data", (2, 3))], for_training=False)
    module.init_params()
    module.predict([ax.io.DataBatch([np.zeros((2, n))]) for n in (3, 4)])


# --- buckets, chains, Python, FeedForward

hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc1")
scores = sym.FullyConnected(sym.Variable("h"), num_hidden=3, name="fc2")
pair = sym.Variable("a") + sym.Variable("b")


def chain(*symbols: Any, **options: Any) -> Any:
    module = Chain()
    for one in symbols:
        names = [n for n in one.list_arguments() if not n.startswith("fc")]
        module.add(Module(one, names, label_names=None), **options)
    return module


cases(
    bucket_key=lambda: Buckets(lambda key: mlp()),
    bucket_load=lambda: Buckets.load("x", 1),
    bucket_stranger=lambda: bound(Buckets(lambda key: mlp(), 8, bucket_keys=[4, 8])).init_params(
        arg_params={"fc9_weight": X}, allow_missing=True
    ),
    bucket_out_grads=after(lambda: ready(Buckets(lambda key: mlp(), 8)), lambda m: (m.forward(batch(), True), m.backward("ones"))),
    chain_option=lambda: Chain().add(Module(mlp()), autowiring=True),
    chain_empty=lambda: Chain().bind(DATA),
    chain_inputs_grad=lambda: chain(hidden).bind(DATA, None, False, True),
    chain_shared=lambda: chain(hidden).bind(DATA, shared_module=3),
    chain_wiring=lambda: chain(hidden, pair, auto_wiring=True).bind(DATA),
    chain_twice=after(lambda: chain(hidden, hidden, auto_wiring=True), lambda m: (m.bind(DATA), m.init_params())),
    chain_extra=after(
        lambda: chain(hidden, scores, auto_wiring=True),
        lambda m: (m.bind(DATA), m.init_params(None, None), m.init_params(None, m.get_params()[0] | {"q": X}, force_init=True)),
    ),
    python_request=lambda: bound(ax.mod.PythonLossModule(), grad_req="add"),
    python_data=lambda: ax.mod.PythonLossModule().bind([("x", (8, 6))]),
    python_sliced=after(lambda: ready(ax.mod.PythonLossModule()), lambda m: m.update_metric(None, [Y], True)),
    python_names=lambda: ax.mod.PythonLossModule(data_names=("a", "b")),
    python_function=lambda: ax.mod.PythonLossModule(grad_func=3),
    python_forward=after(lambda: ready(ax.mod.PythonLossModule()), lambda m: m.get_outputs()),
    python_out_grads=after(lambda: ready(ax.mod.PythonLossModule()), lambda m: m.backward([X])),
    python_labels=after(
        lambda: ready(ax.mod.PythonLossModule()), lambda m: (m.forward(ax.io.DataBatch([X])), m.backward())
    ),
    python_backward=after(lambda: ready(ax.mod.PythonLossModule()), lambda m: m.get_input_grads()),
    feed_symbol=lambda: ax.model.FeedForward(3),
    feed_epochs=lambda: ax.model.FeedForward(mlp()).fit(X, Y),
    feed_labels=lambda: ax.model.FeedForward(mlp(), num_epoch=1).fit(X),
    feed_label_shape=lambda: ax.model.FeedForward(mlp(), num_epoch=1).fit(X, X),
    feed_params=lambda: ax.model.FeedForward(mlp()).predict(X),
    feed_save=lambda: ax.model.FeedForward(mlp()).save("x"),
)

found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached, test_what_is_held_elsewhere_is_there = checks_of(RECORDER)
