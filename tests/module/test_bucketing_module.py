"""BucketingModule: buckets with shapes, parameters and rows of their own, on one set of parameters."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArgumentError, UnknownNameError

sym = ax.sym
RNG = np.random.default_rng(11)


def pooled(key: Any) -> Any:
    """The mean over positions, a layer that only long buckets have, and a softmax."""
    length = key[0] if isinstance(key, tuple) else key
    data = sym.Embedding(sym.Variable("data"), input_dim=9, output_dim=4, name="embed")
    net = sym.mean(data, axis=1)
    if length > 5:
        net = sym.FullyConnected(net, num_hidden=4, name="mid")
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="out"), name="softmax")
    return net, ("data",), ("softmax_label",)


def batch(length: int, rows: int = 6, key: Any = None, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, length, rows])
    data, label = rng.integers(0, 9, (rows, length)), rng.integers(0, 3, rows)
    return ax.io.DataBatch(
        [data], [label], bucket_key=length if key is None else key, provide_data=[("data", data.shape)],
        provide_label=[("softmax_label", label.shape)],
    )  # fmt: skip


def ready(default: Any = 8, devices: Any = None, rows: int = 6, initializer: Any = None, **options: Any) -> Any:
    bind = {k: options.pop(k) for k in ("grad_req",) if k in options}
    module = ax.mod.BucketingModule(pooled, default, context=devices or ax.cpu(), **options)
    length = default[0] if isinstance(default, (tuple, list)) else default
    module.bind([("data", (rows, length))], [("softmax_label", (rows,))], **bind)
    module.init_params(initializer or ax.init.Uniform(0.5))
    return module


def train(module: Any, steps: Any) -> None:
    for number, (length, rows) in enumerate(steps):
        module.forward_backward(batch(length, rows, seed=number))
        module.update()


STEPS = [(8, 6), (3, 6), (7, 4), (3, 2), (8, 6), (5, 12)]


def test_buckets_train_as_modules_of_their_own_would() -> None:
    """Momentum goes with the name: a bucket without a layer does not shift that of the others."""
    module = ready()
    values = module.get_params()[0]
    options = {"learning_rate": 0.5, "momentum": 0.9, "rescale_grad": 1 / 6}
    module.init_optimizer(optimizer_params=options)
    train(module, STEPS)
    updater = ax.optimizer.get_updater(ax.optimizer.create("sgd", **options))
    for number, (length, rows) in enumerate(STEPS):
        one, symbol = batch(length, rows, seed=number), pooled(length)[0]
        names = [n for n in symbol.list_arguments() if n in values]
        alone = symbol.simple_bind(ax.cpu(), dict.fromkeys(names, "write"), data=(rows, length))
        for name in names:
            alone.arg_dict[name][:] = values[name]
        alone.forward(True, data=one.data[0], softmax_label=one.label[0])
        alone.backward()
        for name in names:
            updater(name, alone.grad_dict[name], values[name])
    after = module.get_params()[0]
    assert after.keys() == values.keys()
    for name in values:
        np.testing.assert_allclose(after[name], values[name], 1e-5, 1e-6, err_msg=name)


def test_devices_train_as_one() -> None:
    found = []
    for devices in (ax.cpu(), [ax.cpu(0), ax.cpu(1), ax.cpu(2)]):
        module = ready(devices=devices)
        module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.1})
        train(module, STEPS)
        found.append(module.get_params()[0])
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("default", [3, 8])
def test_a_bucket_brings_parameters(default: int) -> None:
    module = ready(default, initializer=ax.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0})
    train(module, [(3, 6), (8, 6)])
    args = module.get_params()[0]
    np.testing.assert_array_equal(args["mid_weight"], np.ones((4, 4)))
    np.testing.assert_array_equal(args["mid_bias"], np.zeros(4))


def test_values_of_other_buckets_are_kept_until_they_come() -> None:
    values = ready(8).get_params()[0]
    module = ready(3)
    module.set_params(values, {})
    module.forward(batch(8), is_train=False)
    other = ready(8)
    other.set_params(values, {})
    other.forward(batch(8), is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0], other.get_outputs()[0])


def test_kept_values_are_saved_again(tmp_path: Any) -> None:
    values = ready(8).get_params()[0]
    module = ready(3)
    module.set_params(values, {})
    module.save_checkpoint(str(tmp_path / "m"), 1)
    saved = ax.model.load_params(str(tmp_path / "m"), 1)[0]
    assert saved.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(saved[name], value)


@pytest.mark.parametrize("announce", ["keys", "iterator"])
def test_values_that_no_announced_bucket_has(announce: str) -> None:
    keys = [3, [8, 1]]
    module = ax.mod.BucketingModule(pooled, 3, bucket_keys=keys if announce == "keys" else None)
    if announce == "iterator":
        module._announce(SimpleNamespace(buckets=keys))  # as ``fit`` does
    module.bind([("data", (6, 3))], [("softmax_label", (6,))])
    values = ready(8, initializer=ax.init.One()).get_params()[0]
    strange = values | {"mdi_weight": values["mid_weight"]}
    for call in (module.init_params, module.set_params):
        options = {"arg_params": strange, "aux_params": {}}
        with pytest.raises(UnknownNameError, match="arg_params has 'mdi_weight', which the symbol has not"):
            call(**options)
        call(**options, allow_extra=True)
        assert module.get_params()[0].keys() == values.keys()
    module.forward(batch(8, key=(8, 1)), is_train=False)
    np.testing.assert_array_equal(module.get_params()[0]["mid_weight"], np.ones((4, 4)))


def test_symbols_of_other_buckets_are_made_for_strange_names_alone() -> None:
    made: list[Any] = []

    def generate(key: Any) -> Any:
        made.append(key)
        return pooled(key)

    module = ax.mod.BucketingModule(generate, 3, bucket_keys=[3, 6, 8])
    module.bind([("data", (6, 3))], [("softmax_label", (6,))])
    module.init_params(arg_params=ready(3).get_params()[0])
    assert set(made) == {3}
    del made[:]
    values = ready(8).get_params()[0]
    for _ in range(2):
        module.set_params(values, {})
    assert made == [3, 6]  # the first that has them, once


def test_a_value_that_waits_under_nearly_the_name_of_a_new_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    values = ready(8).get_params()[0]
    module = ready(3)
    module.set_params({"mid_wieght" if name == "mid_weight" else name: value for name, value in values.items()}, {})
    assert not caplog.records
    module.forward(batch(8), is_train=False)
    assert [record.getMessage() for record in caplog.records][1:] == [  # the first: inputs grow
        "'mid_weight' got a first value, since none was given; did you mean 'mid_wieght'?"
    ]


def test_requests_hold_in_all_buckets() -> None:
    module, large = ready(grad_req="add"), ready()
    large.set_params(*module.get_params())
    options = {"learning_rate": 0.5, "rescale_grad": 1 / 12}
    for one in (module, large):
        one.init_optimizer(optimizer_params=options)
    parts = [batch(3, 6, seed=1), batch(3, 6, seed=2)]
    for part in parts:
        module.forward_backward(part)
    module.update()
    module.zero_grad()
    joined = ax.io.DataBatch(
        [np.concatenate([p.data[0] for p in parts])], [np.concatenate([p.label[0] for p in parts])], bucket_key=3,
        provide_data=[("data", (12, 3))], provide_label=[("softmax_label", (12,))],
    )  # fmt: skip
    large.forward_backward(joined)
    large.update()
    for name, value in large.get_params()[0].items():
        np.testing.assert_allclose(module.get_params()[0][name], value, 1e-5, 1e-6, err_msg=name)


def test_keys_may_be_lists() -> None:
    module = ready([8, 2])
    for key in ([8, 2], (3, 1), [3, 1]):
        module.forward(batch(key[0], key=key), is_train=False)
        assert module.get_outputs()[0].shape == (6, 3)
    assert set(module._manager.execgrp_bucket) == {(8, 2), (3, 1)}


def test_monitors_watch_buckets_that_come_later() -> None:
    class Watch:
        def __init__(self) -> None:
            self.executors: list[Any] = []

        def install(self, executor: Any) -> None:
            self.executors.append(executor)

    module, watch = ready(), Watch()
    module.install_monitor(watch)
    for length in (3, 8, 5):
        module.forward(batch(length), is_train=False)
    assert len(watch.executors) == 3


def test_switching_makes_a_bucket_current() -> None:
    module = ready()
    assert module.data_shapes[0].shape == (6, 8)
    module.switch_bucket(3, [("data", (6, 3))], [("softmax_label", (6,))])
    assert module.data_shapes[0].shape == (6, 3)
    assert module.output_names == ["softmax_output"]
    assert "mid_weight" in module.symbol.list_arguments()  # that of the default bucket


def test_checkpoints_hold_the_default_symbol_and_all_parameters(tmp_path: Any) -> None:
    prefix = str(tmp_path / "net")
    module = ready(3)
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    train(module, STEPS)
    module.save_checkpoint(prefix, 4, save_optimizer_states=True)
    symbol, args, _ = ax.model.load_checkpoint(prefix, 4)
    assert symbol.list_arguments() == pooled(3)[0].list_arguments()
    assert "mid_weight" in args
    other = ax.mod.BucketingModule.load(prefix, 4, pooled, 3, load_optimizer_states=True)
    other.bind([("data", (6, 3))], [("softmax_label", (6,))])
    other.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    for one in (module, other):
        train(one, STEPS)
    for name, value in module.get_params()[0].items():
        np.testing.assert_array_equal(other.get_params()[0][name], value, err_msg=name)


def test_fit_score_and_predict_over_sentences(caplog: pytest.LogCaptureFixture) -> None:
    sentences = [list(RNG.integers(1, 9, int(n))) for n in RNG.integers(2, 9, 120)]
    data = ax.rnn.BucketSentenceIter(sentences, 8, buckets=[3, 5, 8], invalid_label=0)

    def sym_gen(length: int) -> Any:
        net = sym.Embedding(sym.Variable("data"), input_dim=9, output_dim=6, name="embed")
        net = sym.FullyConnected(net, num_hidden=9, flatten=False, name="out")
        return sym.SoftmaxOutput(net, preserve_shape=True, name="softmax"), ("data",), ("softmax_label",)

    module = ax.mod.BucketingModule(sym_gen, data.default_bucket_key, context=[ax.cpu(0), ax.cpu(1)])
    with caplog.at_level(logging.INFO):
        module.fit(
            data, data, eval_metric=ax.metric.Loss(), num_epoch=1, optimizer_params={"learning_rate": 0.1},
        )  # fmt: skip
    assert [r.getMessage().split("=")[0] for r in caplog.records if r.levelno == logging.INFO] == [
        "Epoch[0] Train-loss", "Epoch[0] Time cost", "Epoch[0] Validation-loss",
    ]  # fmt: skip
    lengths = [outputs[0].shape[1] for outputs in module.predict(data, merge_batches=False)]
    assert set(lengths) == {3, 5, 8}


def test_a_bucketing_module_needs_a_key() -> None:
    with pytest.raises(ArgumentError, match="default_bucket_key must be given"):
        ax.mod.BucketingModule(pooled)
    with pytest.raises(ArgumentError, match="sym_gen must be given"):
        ax.mod.BucketingModule.load("x", 0)
