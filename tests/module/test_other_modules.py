"""Chains of modules, modules of Python code, FeedForward, files of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArgumentError, CheckpointError, NotBoundError, UnknownNameError
from tests.module.test_module import CPUS, X, Y, assert_same, batch, batches, ready, values
from tests.parallel.networks import mlp

sym = ax.sym


def hidden() -> Any:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1")
    return sym.Activation(net, act_type="relu", name="relu1")


def head(data: str = "hidden") -> Any:
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Variable(data), num_hidden=3, name="fc2"), name="softmax")


def chain(devices: Any = None) -> Any:
    module = ax.mod.SequentialModule()
    module.add(ax.mod.Module(hidden(), label_names=None, context=devices or ax.cpu()))
    return module.add(
        ax.mod.Module(head(), ("hidden",), context=devices or ax.cpu()), take_labels=True, auto_wiring=True
    )


@pytest.mark.parametrize("devices", [ax.cpu(), CPUS], ids=["one", "three"])
def test_a_chain_trains_as_the_whole(devices: Any) -> None:
    whole, parts = ready(devices=devices), chain(devices)
    parts.bind([("data", (8, 6))], [("softmax_label", (8,))], inputs_need_grad=True)
    parts.init_params(None, *values(mlp(), data=(8, 6)))
    options = {"learning_rate": 0.1, "momentum": 0.9}
    for module in (whole, parts):
        module.init_optimizer(optimizer_params=options)
        for start, rows in ((0, 8), (8, 8), (16, 5)):
            module.forward_backward(batch(start, rows))
            module.update()
    assert_same(whole.get_params(), parts.get_params())
    np.testing.assert_allclose(whole.get_outputs()[0], parts.get_outputs()[0], 1e-5)
    assert parts.get_input_grads()[0].shape == (5, 6)
    assert parts.output_names == ["softmax_output"]
    assert parts.data_names == ["data"]
    np.testing.assert_allclose(parts.predict(batches(7, pad=True)), whole.predict(X), 1e-5, 1e-6)
    assert parts.score(batches(7, pad=True), "acc") == whole.score(batches(7, pad=True), "acc")


def test_a_chain_fits() -> None:
    module = chain()
    module.fit(batches(8), num_epoch=40, optimizer_params={"learning_rate": 0.5}, initializer=ax.init.Xavier())
    assert module.score(batches(8), "acc")[0][1] > 0.8


def test_a_chain_refuses() -> None:
    module = ax.mod.SequentialModule()
    with pytest.raises(ArgumentError, match="a chain must have a module"):
        module.bind([("data", (8, 6))])
    with pytest.raises(ArgumentError, match="no option 'take_label'; did you mean 'take_labels'"):
        module.add(ax.mod.Module(hidden()), take_label=True)
    module = ax.mod.SequentialModule()
    module.add(ax.mod.Module(hidden(), label_names=None)).add(
        ax.mod.Module(sym.FullyConnected(sym.Variable("data"), num_hidden=8, name="fc1"), label_names=None), auto_wiring=True
    )
    module.bind([("data", (8, 6))])
    with pytest.raises(ArgumentError, match="modules 0 and 1 both have 'fc1_weight'"):
        module.init_params()
    module = chain()
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    args = values(mlp(), data=(8, 6))[0]
    with pytest.raises(UnknownNameError, match="no module has 'fc2_weights'; did you mean 'fc2_weight'"):
        module.init_params(None, args | {"fc2_weights": np.ones(3)})


def test_a_loss_in_python() -> None:
    def gradient(scores: Any, labels: Any) -> Any:
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True) - np.eye(3)[labels.astype(int)]

    scores = sym.FullyConnected(hidden(), num_hidden=3, name="fc2")
    module = ax.mod.SequentialModule()
    module.add(ax.mod.Module(scores, label_names=None, context=CPUS[:2]))
    module.add(ax.mod.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(None, *values(mlp(), data=(8, 6)))
    whole = ready()
    for one in (module, whole):
        one.init_optimizer(optimizer_params={"learning_rate": 0.1})
        for start in (0, 8):
            one.forward_backward(batch(start))
            one.update()
    assert_same(module.get_params(), whole.get_params())
    assert module.score(batches(8), "acc") == whole.score(batches(8), "acc")
    assert module.output_shapes == [("pyloss_output", (8, 3))]


def test_padded_rows_do_not_count_in_the_metric_of_a_loss_in_python() -> None:
    loss, metric = ax.mod.PythonLossModule(), ax.metric.create("acc")
    loss.bind([("data", (8, 3))], [("softmax_label", (8,))])
    loss.init_params()
    scores = np.eye(3, dtype=np.float32)[np.zeros(8, int)]
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1], np.float32)
    for pad, value in ((0, 3 / 8), (4, 3 / 4)):
        metric.reset()
        loss.forward(ax.io.DataBatch([scores], [labels], pad=pad))
        loss.update_metric(metric, [labels])
        assert metric.get()[1] == value


def test_python_modules_refuse() -> None:
    loss = ax.mod.PythonLossModule()
    with pytest.raises(ArgumentError, match="grad_req of a PythonLossModule must be 'write'"):
        loss.bind([("data", (8, 3))], [("softmax_label", (8,))], grad_req="add")
    loss.bind([("data", (8, 3))], [("softmax_label", (8,))])
    loss.init_params()
    with pytest.raises(NotBoundError, match="run forward first"):
        loss.get_outputs()
    loss.forward(ax.io.DataBatch([X[:8, :3]], [Y[:8]]))
    with pytest.raises(ArgumentError, match="takes no out_grads"):
        loss.backward([X])
    with pytest.raises(NotBoundError, match="PythonLossModule has no grad_func"):
        loss.backward()


# --- FeedForward ---------------------------------------------------------------------------------------------------


def test_feed_forward_on_arrays(tmp_path: Any) -> None:
    seen: list[int] = []
    ax.random.seed(1)
    model = ax.model.FeedForward.create(
        mlp(), X, Y, ctx=CPUS[:2], num_epoch=60, learning_rate=0.5, initializer=ax.init.Xavier(), numpy_batch_size=8,
        eval_data=(X, Y), batch_end_callback=lambda p: seen.append(p.nbatch),
    )  # fmt: skip
    assert seen[:4] == [1, 2, 3, 1]
    outputs = model.predict(X)
    assert outputs.shape == (24, 3)
    assert (outputs.argmax(axis=1) == Y).mean() > 0.8
    assert model.score(batches(7, pad=True)) == pytest.approx(float((outputs.argmax(axis=1) == Y).mean()))
    found, data, label = model.predict(batches(7, pad=True), return_data=True)
    np.testing.assert_allclose(found, outputs, 1e-6)
    np.testing.assert_array_equal(data, X)
    np.testing.assert_array_equal(label, Y)
    model.save(str(tmp_path / "m"))
    other = ax.model.FeedForward.load(str(tmp_path / "m"), 60)
    np.testing.assert_allclose(other.predict(X), outputs, 1e-6)
    assert other.begin_epoch == 60


def test_feed_forward_over_buckets() -> None:
    sentences = [[1, 2, 3][: 2 + i % 2] for i in range(32)]
    data = ax.rnn.BucketSentenceIter(sentences, 4, buckets=[2, 3], invalid_label=0)

    def sym_gen(length: int) -> Any:
        net = sym.FullyConnected(
            sym.Embedding(sym.Variable("data"), input_dim=5, output_dim=4, name="embed"), num_hidden=5, flatten=False, name="o"
        )
        return sym.SoftmaxOutput(net, preserve_shape=True, name="softmax")

    model = ax.model.FeedForward(sym_gen, num_epoch=2, epoch_size=3, learning_rate=0.1)
    model.fit(data, eval_metric=ax.metric.Loss())
    assert sorted(model.arg_params) == ["embed_weight", "o_bias", "o_weight"]
    assert model.symbol.list_outputs() == ["softmax_output"]


def test_feed_forward_refuses() -> None:
    model = ax.model.FeedForward(mlp(), num_epoch=1)
    with pytest.raises(ArgumentError, match="y must be given"):
        model.fit(X)
    with pytest.raises(ArgumentError, match="one number a row, but its shape is"):
        model.fit(X, X)
    with pytest.raises(NotBoundError, match="there are no parameters"):
        model.predict(X)
    with pytest.raises(ArgumentError, match="num_epoch"):
        ax.model.FeedForward(mlp()).fit(X, Y)
    with pytest.raises(ArgumentError, match="a Symbol or a function"):
        ax.model.FeedForward(3)
    extra = ax.model.FeedForward(mlp(), num_epoch=1, arg_params={"other": X})
    with pytest.raises(UnknownNameError, match="arg_params has 'other'"):
        extra.fit(X, Y)
    ax.model.FeedForward(mlp(), num_epoch=1, arg_params={"other": X}, allow_extra_params=True).fit(X, Y)


# --- files ---------------------------------------------------------------------------------------------------------


def test_casts_of_mixed_precision_are_left_out_of_files(tmp_path: Any) -> None:
    net = sym.FullyConnected(sym.amp_cast(sym.Variable("data"), dtype="float16"), num_hidden=3, name="fc")
    both = sym.amp_multicast(net, sym.Variable("other"), num_outputs=2)
    net = sym.Group([both[0] + 1, both[1]])
    args = {"fc_weight": X[:3], "fc_bias": Y[:3]}
    for removed in (True, False):
        ax.model.save_checkpoint(str(tmp_path / "m"), 0, net, args, {}, remove_amp_cast=removed)
        read = ax.model.load_checkpoint(str(tmp_path / "m"), 0)[0]
        assert ("amp" in read.tojson()) is not removed
        assert read.list_arguments() == net.list_arguments()
    plain = ax.model.load_checkpoint(str(tmp_path / "m"), 0)[0]
    assert plain.tojson() == net.tojson()


def test_bare_names_in_a_file(tmp_path: Any) -> None:
    net = mlp(norm=True)
    args, aux = values(net, data=(8, 6))
    ax.model.save_checkpoint(str(tmp_path / "m"), 3, net, args, aux)
    ax.nd.save(str(tmp_path / "m-0004.params"), args | aux)
    for epoch in (3, 4):
        symbol, read_args, read_aux = ax.model.load_checkpoint(str(tmp_path / "m"), epoch)
        assert symbol.tojson() == net.tojson()
        assert_same((read_args, read_aux), (args, aux), rtol=0)
    ax.nd.save(str(tmp_path / "m-0005.params"), list(args.values()))
    with pytest.raises(CheckpointError, match="must have names"):
        ax.model.load_params(str(tmp_path / "m"), 5)
    ax.model.save_checkpoint(str(tmp_path / "n"), 0, None, args, aux)
    assert not (tmp_path / "n-symbol.json").exists()
