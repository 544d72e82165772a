"""Reports about modules, groups and buckets: what programs met, and what happens here. Numbers are the reports'."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.errors import ArgumentError, BindError, NotBoundError, ShapeError, UnknownNameError
from tests.parallel.networks import mlp

sym = ax.sym
RNG = np.random.default_rng(23)
X = RNG.normal(size=(20, 6)).astype(np.float32)
Y = X[:, :3].argmax(axis=1).astype(np.float32)
TWO, THREE = [ax.cpu(0), ax.cpu(1)], [ax.cpu(i) for i in range(3)]


def module_of(symbol: Any, rows: int = 8, devices: Any = None, seed: int = 1, **options: Any) -> Any:
    bind = {k: options.pop(k) for k in ("grad_req", "inputs_need_grad", "for_training") if k in options}
    module = ax.mod.Module(symbol, context=devices or ax.cpu(), **options)
    module.bind([("data", (rows, 6))], [("softmax_label", (rows,))] if module.label_names else None, **bind)
    ax.random.seed(seed)
    module.init_params(ax.init.Normal(0.5))
    return module


def batch(start: int = 0, rows: int = 8, **options: Any) -> Any:
    return ax.io.DataBatch([X[start : start + rows]], [Y[start : start + rows]], **options)


def step(module: Any, *batches: Any) -> dict[str, Any]:
    for one in batches:
        module.forward_backward(one)
        module.update()
    return module.get_params()[0]


def assert_same(one: Any, two: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol, atol, err_msg=name)


# --- A. several devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "devices", "sizes"), [(6, 4, [2, 2, 1, 1]), (15, 10, [2] * 5 + [1] * 5), (3, 3, [1, 1, 1])])
def test_bug_2593_a_batch_with_a_row_for_each_device_is_cut(rows: int, devices: int, sizes: list[int]) -> None:
    module = module_of(mlp(), rows, [ax.cpu(i) for i in range(devices)])
    module.forward(batch(0, rows), is_train=False)
    assert [len(part) for part in module.get_outputs(merge_multi_context=False)[0]] == sizes


def test_bug_2593_fewer_rows_than_devices() -> None:
    """The first devices get a row each."""
    module, alone = module_of(mlp(), 3, [ax.cpu(i) for i in range(4)]), module_of(mlp(), 3)
    for one in (module, alone):
        one.init_optimizer(optimizer_params={"learning_rate": 0.5})
    assert_same(step(module, batch(0, 3)), step(alone, batch(0, 3)))
    assert [len(part) for part in module.get_outputs(merge_multi_context=False)[0]] == [1, 1, 1]


@pytest.mark.parametrize(("rows", "devices"), [(20, 8), (19, 10)])
def test_bug_9877_12803_1061_uneven_parts_differ_by_one_row(rows: int, devices: int) -> None:
    module = module_of(mlp(), rows, [ax.cpu(i) for i in range(devices)])
    module.forward(batch(0, rows), is_train=False)
    sizes = [len(part) for part in module.get_outputs(merge_multi_context=False)[0]]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


def test_bug_566_loads_of_devices() -> None:
    module = module_of(mlp(), 8, THREE, work_load_list=[5, 1.5, 5])
    module.forward(batch(), is_train=False)
    assert [len(part) for part in module.get_outputs(merge_multi_context=False)[0]] == [3, 1, 4]


@pytest.mark.parametrize("normalization", ["batch", "valid"])
def test_bug_6710_normalized_losses_train_alike_on_any_number_of_devices(normalization: str) -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    net = sym.SoftmaxOutput(net, normalization=normalization, name="softmax")
    found = []
    for devices in (ax.cpu(), TWO, THREE):
        module = module_of(net, devices=devices, loss_weighting="samples")
        module.init_optimizer(optimizer_params={"learning_rate": 0.5, "rescale_grad": 1.0})
        found.append(step(module, batch(), batch(8, 7)))
    for other in found[1:]:
        assert_same(found[0], other)
    plain = module_of(net, devices=TWO)  # as in MXNet: the sum of what the devices' own means give
    plain.init_optimizer(optimizer_params={"learning_rate": 0.5, "rescale_grad": 0.5})
    once = module_of(net)
    once.init_optimizer(optimizer_params={"learning_rate": 0.5, "rescale_grad": 1.0})
    assert_same(step(plain, batch()), step(once, batch()))


def test_bug_7847_13752_12713_adam_counts_once_a_step_on_several_devices(tmp_path: Any) -> None:
    found = []
    for devices in (ax.cpu(), TWO):
        module = module_of(mlp(), devices=devices)
        schedule = ax.lr_scheduler.FactorScheduler(1, 0.5)
        module.init_optimizer(None, "adam", {"learning_rate": 0.1, "lr_scheduler": schedule})
        step(module, batch())
        module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
        step(module, batch(8), batch(0))
        assert module.optimizer.num_update == 3
        found.append(module.get_params()[0])
    assert_same(*found, rtol=1e-4, atol=1e-5)


def test_bug_4230_2327_validation_of_several_devices_is_that_after_a_resume(tmp_path: Any) -> None:
    seen = []
    module = ax.mod.Module(mlp(norm=True), context=TWO)
    data, held = ax.io.NDArrayIter(X[:16], Y[:16], 8), ax.io.NDArrayIter(X, Y, 7)
    module.fit(
        data, held, num_epoch=1, initializer=ax.init.Normal(0.5), eval_end_callback=lambda p: seen.append(p.eval_metric.get()[1]),
        validation_metric=ax.metric.CrossEntropy(), optimizer_params={"learning_rate": 0.5},
        epoch_end_callback=lambda epoch, *rest: ax.model.save_checkpoint(str(tmp_path / "m"), epoch, *rest),
    )  # fmt: skip
    other = ax.mod.Module.load(str(tmp_path / "m"), 0)
    other.bind(held.provide_data, held.provide_label, for_training=False)
    assert other.score(held, ax.metric.CrossEntropy())[0][1] == pytest.approx(seen[0], rel=1e-5)


def test_bug_6587_labels_that_are_no_rows_are_refused_by_name() -> None:
    module = ax.mod.Module(mlp(), context=TWO)
    with pytest.raises(ShapeError, match=r"input 'softmax_label' \(24,\) must have the 8 rows of the batch on axis 0"):
        module.bind([("data", (8, 6))], [("softmax_label", (24,))])


def test_bug_5509_6707_sentences_of_time_major_layout_are_cut_along_the_batch() -> None:
    sentences = [[int(n) for n in RNG.integers(1, 7, length)] for length in (3, 4, 4, 3, 4, 4)]
    data = ax.rnn.BucketSentenceIter(sentences, 3, buckets=[4], invalid_label=0, layout="TN")
    net = sym.FullyConnected(
        sym.Embedding(sym.Variable("data"), input_dim=7, output_dim=5, name="embed"), num_hidden=7, flatten=False, name="out"
    )
    net = sym.SoftmaxOutput(net, preserve_shape=True, name="softmax")
    found, first = [], next(data)
    for devices in (ax.cpu(), THREE):
        ax.random.seed(2)
        module = ax.mod.BucketingModule(lambda key: (net, ("data",), ("softmax_label",)), 4, context=devices)
        module.bind(data.provide_data, data.provide_label)
        module.init_params(ax.init.Normal(0.5))
        module.forward(first, is_train=False)
        found.append(module.get_outputs()[0])
        assert found[-1].shape == (4, 3, 7)
    np.testing.assert_allclose(*found, 1e-5)


def test_bug_5347_a_monitor_tells_devices_apart() -> None:
    module = module_of(mlp(), devices=THREE)
    monitor = ax.mon.Monitor(1, pattern="fc1_output")
    module.install_monitor(monitor)
    monitor.tic()
    module.forward(batch(), is_train=False)
    assert sorted(name for _, name, _ in monitor.toc()) == [f"fc1_output[cpu({i})]" for i in range(3)]


def test_bug_6815_a_net_that_counts_on_rows_of_the_whole_batch_is_refused_by_node() -> None:
    def net(begin: int) -> Any:
        part = sym.slice_axis(sym.Variable("data"), axis=0, begin=begin, end=8, name="part")
        return sym.SoftmaxOutput(sym.FullyConnected(part, num_hidden=3, name="fc"), name="softmax")

    four = [ax.cpu(i) for i in range(4)]
    whole, parts = module_of(net(0)), module_of(net(0), devices=four)  # up to 8 rows: each device has fewer
    for one in (whole, parts):
        one.forward(batch(), is_train=False)
    np.testing.assert_allclose(parts.get_outputs()[0], whole.get_outputs()[0], 1e-6)
    with pytest.raises(ShapeError, match=r"slice_axis 'part' .*must hold something at \[4:8, :\], but it is \(2, 6\)"):
        ax.mod.Module(net(4), context=four).bind([("data", (8, 6))])


def test_bug_4900_2830_the_loss_does_not_depend_on_the_devices() -> None:
    curves = []
    for devices in (ax.cpu(), TWO, THREE):
        ax.random.seed(8)
        module, losses = ax.mod.Module(mlp(), context=devices), list[float]()
        module.fit(
            ax.io.NDArrayIter(X, Y, 10), eval_metric=ax.metric.CrossEntropy(), num_epoch=5, initializer=ax.init.Xavier(),
            optimizer_params={"learning_rate": 0.5}, batch_end_callback=lambda p: losses.append(p.eval_metric.get()[1]),  # noqa: B023
        )  # fmt: skip
        curves.append(losses)
    np.testing.assert_allclose(curves[1], curves[0], 1e-5)
    np.testing.assert_allclose(curves[2], curves[0], 1e-5)


# --- B. buckets ----------------------------------------------------------------------------------------------------


def language_model(key: Any) -> Any:
    """Every length shares its parameters; lengths above 6 have a layer more, and another order of arguments."""
    length = key if isinstance(key, int) else key[0]
    embed, out = sym.Variable("embed_weight"), sym.Variable("out_weight")
    if length % 2:  # the other way round
        net = sym.Embedding(sym.Variable("data"), embed, input_dim=9, output_dim=6, name="embed")
    else:
        zero = sym.sum(out) * 0
        net = sym.broadcast_add(zero, sym.Embedding(sym.Variable("data"), embed, input_dim=9, output_dim=6, name="embed"))
    if length > 6:
        net = sym.FullyConnected(net, num_hidden=6, flatten=False, name="mid")
    net = sym.FullyConnected(net, out, num_hidden=9, flatten=False, name="out")
    return sym.SoftmaxOutput(net, preserve_shape=True, name="softmax"), ("data",), ("softmax_label",)


def words(length: int, rows: int = 4, key: Any = None) -> Any:
    rng = np.random.default_rng([length, rows])
    data, label = rng.integers(0, 9, (rows, length)), rng.integers(0, 9, (rows, length))
    return ax.io.DataBatch(
        [data], [label], bucket_key=length if key is None else key, provide_data=[("data", data.shape)],
        provide_label=[("softmax_label", label.shape)],
    )  # fmt: skip


def buckets_of(default: Any = 8, rows: int = 4, sym_gen: Any = language_model, **options: Any) -> Any:
    bind = {k: options.pop(k) for k in ("grad_req",) if k in options}
    module = ax.mod.BucketingModule(sym_gen, default, **options)
    length = default if isinstance(default, int) else default[0]
    module.bind([("data", (rows, length))], [("softmax_label", (rows, length))], **bind)
    ax.random.seed(4)
    module.init_params(ax.init.Normal(0.3))
    return module


def held_bytes(module: Any) -> int:
    """What a module's devices hold beside parameters and gradients."""
    store = module._manager.stores[0]
    return store.arena.nbytes + sum(array.nbytes for array in store.inputs.values())


def test_bug_5035_5133_1799_many_buckets_need_the_memory_of_the_largest() -> None:
    found = []
    for order in ([60], range(10, 61, 5), range(60, 9, -5)):
        module = buckets_of(60)
        module.init_optimizer()
        for length in order:
            step(module, words(length))
        found.append(held_bytes(module))
    assert found[1] == found[0] == found[2]


def test_bug_8158_no_bucket_is_the_largest_in_everything() -> None:
    one, alone = buckets_of(8), {}
    shapes = [(8, 2), (3, 20), (8, 2), (5, 7), (3, 20)]
    for length, rows in shapes:
        module = buckets_of(length, rows)
        module.set_params(one.get_params()[0], {}, allow_missing=True, allow_extra=True)
        module.forward(words(length, rows), is_train=False)
        alone[length, rows] = module.get_outputs()[0]
    for shape in shapes:
        one.forward(words(*shape), is_train=False)
        np.testing.assert_array_equal(one.get_outputs()[0], alone[shape])


def test_bug_3323_9416_growth_is_told_once_a_name(caplog: pytest.LogCaptureFixture) -> None:
    module = buckets_of(3)
    with caplog.at_level(logging.WARNING):
        for length in (4, 5, 6, 8):
            module.forward(words(length), is_train=False)
    grown = [record.getMessage() for record in caplog.records if "it grows" in record.getMessage()]
    assert sorted(text.split("'")[1] for text in grown) == ["data", "softmax_label"]
    caplog.clear()
    plain = module_of(mlp(), 2)
    with caplog.at_level(logging.WARNING):
        plain.forward(batch(0, 20), is_train=False)
    assert not caplog.records


@pytest.mark.parametrize("order", [(5, 3), (3, 5)])
def test_bug_smaller_buckets_through_feed_forward(order: tuple[int, ...]) -> None:
    """M1: on 1.9.1 a bucket that is smaller than the one before could not be reshaped to."""
    sentences = [[1 + i % 8] * length for length in order for i in range(8)]
    data = ax.rnn.BucketSentenceIter(sentences, 4, buckets=[3, 5], invalid_label=0)
    model = ax.model.FeedForward(lambda length: language_model(length)[0], num_epoch=2, learning_rate=0.1)
    model.fit(data, eval_metric=ax.metric.Perplexity(0))
    assert np.isfinite(model.arg_params["out_weight"]).all()


def test_bug_buckets_with_fewer_parameters() -> None:
    """M2: on 1.9.1 a bucket without one of the layers was an IndexError, or took other layers' arrays."""
    module = buckets_of(8)
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    before = module.get_params()[0]
    after = step(module, words(5))
    np.testing.assert_array_equal(after["mid_weight"], before["mid_weight"])
    assert not np.array_equal(after["out_weight"], before["out_weight"])


def test_bug_11384_a_bucket_may_bring_parameters() -> None:
    module = buckets_of(3)
    assert "mid_weight" not in module.get_params()[0]
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    after = step(module, words(8), words(8))
    assert after["mid_weight"].std() == pytest.approx(0.3, rel=0.4)


def test_bug_8860_what_a_lender_lacks_is_named() -> None:
    lender = language_model(5)[0].simple_bind(ax.cpu(), data=(4, 5))
    with pytest.raises(BindError, match="'mid_weight' is to be shared, but the executor of 'softmax' on cpu"):
        language_model(8)[0].simple_bind(ax.cpu(), shared_exec=lender, shared_arg_names=["mid_weight"], data=(4, 8))


def test_bug_1615_1624_buckets_with_another_order_of_arguments() -> None:
    assert language_model(5)[0].list_arguments() != language_model(6)[0].list_arguments()
    module = buckets_of(6)
    args = module.get_params()[0]
    alone = language_model(5)[0].simple_bind(ax.cpu(), grad_req="null", data=(4, 5))
    alone.copy_params_from(args)
    one = words(5)
    module.forward(one, is_train=False)
    wanted = alone.forward(data=one.data[0])[0]
    np.testing.assert_allclose(module.get_outputs()[0], wanted, 1e-6)


def test_bug_10904_13984_requests_reach_every_bucket() -> None:
    module = buckets_of(8, grad_req="add")
    for length in (8, 5, 5):
        module.forward_backward(words(length))
    assert set(module._manager.execgrp_bucket[5].train_execs[0].grad_req.values()) == {"add", "null"}
    sums = {n: a.copy() for n, a in module._manager.stores[0].gradients.items()}
    module.zero_grad()
    parts = []
    for length in (8, 5, 5):
        module.forward_backward(words(length))
        parts.append({n: a.copy() for n, a in module._manager.stores[0].gradients.items()})
        module.zero_grad()
    for name, total in sums.items():
        np.testing.assert_allclose(total, sum(part[name] for part in parts), 1e-4, 1e-5, err_msg=name)


def test_bug_3318_keys_that_are_lists() -> None:
    module = buckets_of([8, 1])
    module.forward(words(5, key=[5, 2]), is_train=False)
    assert module.get_outputs()[0].shape == (4, 5, 9)


def test_bug_4195_8696_monitors_watch_all_buckets() -> None:
    model_seen: list[str] = []
    monitor = ax.mon.Monitor(1, stat_func=lambda a: model_seen.append("x") or float(a.size), pattern=".*(mid|out)_output.*")  # type: ignore[func-returns-value]
    module = buckets_of(8)
    module.install_monitor(monitor)
    found = []
    for length in (8, 5):
        monitor.tic()
        module.forward(words(length), is_train=False)
        found.append({name.split("[")[0] for _, name, _ in monitor.toc()})
    assert found == [{"mid_output", "out_output"}, {"out_output"}]
    sentences = [[1 + i % 8] * 5 for i in range(8)]
    data = ax.rnn.BucketSentenceIter(sentences, 4, buckets=[5], invalid_label=0)
    model = ax.model.FeedForward(lambda length: language_model(length)[0], num_epoch=1, learning_rate=0.1)
    model_seen.clear()
    model.fit(data, eval_metric=ax.metric.Perplexity(0), monitor=ax.mon.Monitor(1, lambda a: model_seen.append("y") or 0.0))  # type: ignore[func-returns-value]
    assert model_seen


def test_bug_5289_15528_checkpoints_of_buckets(tmp_path: Any) -> None:
    module = buckets_of(8)
    module.init_optimizer(optimizer="adam")
    step(module, words(8), words(5))  # the short one is current
    module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    assert ax.model.load_checkpoint(str(tmp_path / "m"), 1)[0].list_arguments() == language_model(8)[0].list_arguments()
    other = ax.mod.BucketingModule.load(str(tmp_path / "m"), 1, language_model, 8, load_optimizer_states=True)
    other.bind([("data", (4, 8))], [("softmax_label", (4, 8))])
    other.init_optimizer(optimizer="adam")
    assert_same(step(module, words(5), words(8)), step(other, words(5), words(8)), rtol=0, atol=0)


def test_bug_6495_predictions_cover_what_the_iterator_gives() -> None:
    """The iterator leaves out sentences that fill no batch; of every batch that it gives there are predictions."""
    data = ax.rnn.BucketSentenceIter([[1, 2, 3]] * 10, 4, buckets=[3], invalid_label=0)
    module = buckets_of(3)
    assert module.predict(data).shape == (8, 3, 9)


def test_bug_momentum_goes_with_the_name_of_a_parameter() -> None:
    """M3: on 1.9.1 it went by position among a bucket's own parameters."""
    module, alone = buckets_of(8), buckets_of(8)
    for one in (module, alone):
        one.init_optimizer(optimizer_params={"learning_rate": 0.5, "momentum": 0.9})
    step(module, words(8), words(5), words(8))
    assert set(module._updater.get_states()["states"]) == set(module.get_params()[0])
    step(alone, words(8))
    states = [one._updater.get_states()["states"]["mid_weight"]["momentum"] for one in (module, alone)]
    assert states[0].shape == states[1].shape == (6, 6)


def test_bug_437_136_buckets_with_batches_of_their_own_size() -> None:
    module = buckets_of(8, context=TWO)
    module.init_optimizer()
    for length, rows in ((8, 4), (3, 10), (5, 6), (3, 3)):
        step(module, words(length, rows))
        assert module.get_outputs()[0].shape == (rows, length, 9)


# --- C. gradients --------------------------------------------------------------------------------------------------


def test_bug_10782_2036_one_name_twice_is_one_argument() -> None:
    net = sym.MakeLoss(sym.Variable("a") * sym.Variable("a"))
    executor = net.simple_bind(ax.cpu(), a=(1,))
    executor.forward(True, a=np.array([3.0]))
    executor.backward()
    assert (executor.outputs[0][0], executor.grad_dict["a"][0]) == (9.0, 6.0)
    module = ax.mod.Module(net, ("a",), label_names=None)
    module.bind([("a", (1,))])
    module.init_params()


def test_bug_6998_1238_two_modules_share_their_parameters() -> None:
    first = module_of(mlp())
    second = ax.mod.Module(mlp())
    second.bind([("data", (4, 6))], [("softmax_label", (4,))], for_training=False, shared_module=first)
    first.set_params({n: np.full(a.shape, 0.25) for n, a in first.get_params()[0].items()}, {})
    assert_same(first.get_params()[0], second.get_params()[0], rtol=0)


@pytest.mark.parametrize("devices", [ax.cpu(), TWO], ids=["one", "two"])
def test_bug_16969_18659_3283_accumulated_gradients(devices: Any) -> None:
    module, whole = module_of(mlp(), 5, devices, grad_req="add"), module_of(mlp(), 20)
    for one in (module, whole):
        one.init_optimizer(optimizer_params={"learning_rate": 0.2, "rescale_grad": 1 / 20})
    for _ in range(3):
        for start in range(0, 20, 5):
            module.forward_backward(batch(start, 5))
        module.update()
        module.zero_grad()
        step(whole, batch(0, 20))
    assert_same(module.get_params()[0], whole.get_params()[0])


def test_bug_18499_batch_norm_accumulates() -> None:
    net = mlp(norm=True)
    once, thrice = module_of(net), module_of(net, grad_req="add")
    thrice.set_params(*once.get_params())
    once.forward_backward(batch())
    for _ in range(3):
        thrice.forward_backward(batch())
    for name, gradient in once._manager.stores[0].gradients.items():
        np.testing.assert_allclose(thrice._manager.stores[0].gradients[name], 3 * gradient, 1e-4, 1e-5, err_msg=name)


def test_bug_17989_16708_a_parameter_used_many_times_accumulates() -> None:
    weight, net = sym.Variable("w_weight"), sym.Variable("data")
    for number in range(5):
        net = sym.FullyConnected(net, weight, num_hidden=6, no_bias=True, name=f"fc{number}")
    net = sym.MakeLoss(sym.sum(net), name="loss")
    found = []
    for request in ("write", "add"):
        module = module_of(net, label_names=None, grad_req=request)
        for start in (0, 8):
            module.forward_backward(ax.io.DataBatch([X[start : start + 8]]))
            found.append(module._manager.stores[0].gradients["w_weight"].copy())
    np.testing.assert_allclose(found[3], found[0] + found[1], 1e-4)
    np.testing.assert_allclose(found[2], found[0], 1e-6)


def test_bug_2232_1952_1474_batches_of_many_sizes_need_bounded_memory() -> None:
    module = module_of(mlp(), 20)
    module.init_optimizer()
    step(module, batch(0, 20))
    before = held_bytes(module)
    for number in range(200):
        step(module, batch(0, 1 + number * 7 % 20))
    assert held_bytes(module) == before
    assert len(module._manager._groups) <= 16


def test_bug_5983_6737_9451_a_deleted_module_gives_its_memory_back() -> None:
    module = module_of(mlp(), devices=TWO)
    module.init_optimizer()
    step(module, batch())
    held = [weakref.ref(a) for store in module._manager.stores for a in (*store.parameters.values(), *store.gradients.values())]
    blocks = [weakref.ref(block) for store in module._manager.stores for block in store.arena.blocks.values()]
    gc.collect()
    gc.disable()
    try:
        del module
        assert all(ref() is None for ref in (*held, *blocks))
    finally:
        gc.enable()


def test_bug_1388_7879_an_output_that_is_watched_needs_no_head_gradient() -> None:
    hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    head = sym.SoftmaxOutput(hidden, name="softmax")
    module = module_of(sym.Group([head, sym.BlockGrad(hidden, name="watched")]))
    module.init_optimizer()
    step(module, batch())
    assert [output.shape for output in module.get_outputs()] == [(8, 3), (8, 3)]
    module = module_of(sym.Group([head, hidden]))
    module.forward(batch(), is_train=True)
    with pytest.raises(BindError, match="backward needs out_grads: output 'fc_output' is no loss head"):
        module.backward()


def test_bug_9624_3037_3424_fixed_gammas_stay_one() -> None:
    net = sym.BatchNorm(sym.Variable("data"), name="bn")  # fix_gamma is the default
    net = sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    module = module_of(net)
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "wd": 0.5, "momentum": 0.9})
    after = step(module, *[batch()] * 5)
    np.testing.assert_array_equal(after["bn_gamma"], np.ones(6))


def test_bug_18751_running_statistics_of_ones() -> None:
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.BatchNorm(sym.Variable("data"), name="bn"), num_hidden=3, name="fc"), name="softmax")
    module = module_of(net, devices=TWO)
    for _ in range(120):
        module.forward(ax.io.DataBatch([np.ones((8, 6))], [Y[:8]]), is_train=True)
    aux = module.get_params()[1]
    np.testing.assert_allclose(aux["bn_moving_mean"], 1, 1e-4)
    np.testing.assert_allclose(aux["bn_moving_var"], 0, atol=1e-4)


def test_bug_10692_5691_5752_a_monitor_installed_late_sees_all_and_keeps_nothing() -> None:
    module = module_of(mlp())
    seen: list[weakref.ref[Any]] = []

    def look(array: Any) -> float:
        seen.append(weakref.ref(array))
        return 0.0

    monitor = ax.mon.Monitor(1, look)
    module.install_monitor(monitor)
    for _ in range(2):
        monitor.tic()
        module.forward(batch(), is_train=False)
        names = [name for _, name, _ in monitor.toc()]
        assert names[:3] == ["fc1_output", "relu1_output", "fc2_output"]
    values = {id(a) for a in module._manager.held("parameters").values()} | {
        id(a) for e in module._manager.execgrp.train_execs for a in e.arg_arrays
    }
    assert all(ref() is None or id(ref()) in values for ref in seen)


# --- E. life of a module -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [None, [], ()])
def test_bug_8910_3877_6234_training_without_labels(labels: Any) -> None:
    net = sym.MakeLoss(sym.sum(sym.square(sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")), axis=1), name="loss")
    module = ax.mod.Module(net, label_names=labels)
    losses: list[float] = []
    module.fit(
        ax.io.NDArrayIter(X, batch_size=10), num_epoch=3, eval_metric=ax.metric.Loss(), initializer=ax.init.Normal(1),
        epoch_end_callback=lambda *_: losses.append(float(module.predict(ax.io.NDArrayIter(X, batch_size=10)).mean())),
        optimizer_params={"learning_rate": 0.05},
    )  # fmt: skip
    assert losses == sorted(losses, reverse=True)


def test_bug_6958_no_word_about_labels_where_none_are_needed(caplog: pytest.LogCaptureFixture) -> None:
    module = ax.mod.Module(mlp())
    module.bind([("data", (8, 6))], for_training=False)
    module.init_params()
    module.predict(X)
    assert not caplog.records


def test_bug_992_3465_5125_8802_predictions_for_other_batches() -> None:
    module = ax.mod.Module(mlp(), context=TWO)
    module.fit(ax.io.NDArrayIter(X, Y, 10), num_epoch=1, initializer=ax.init.Normal(0.5))
    whole = module.predict(ax.io.NDArrayIter(X, batch_size=20))
    for size in (1, 5, 7):
        np.testing.assert_allclose(module.predict(ax.io.NDArrayIter(X, batch_size=size)), whole, 1e-5, 1e-6)


def test_bug_8638_6753_107_modules_of_users_with_less_options() -> None:
    class Own(ax.mod.Module):
        def init_params(  # type: ignore[override]
            self, initializer: Any = None, arg_params: Any = None, aux_params: Any = None, allow_missing: bool = False,
            force_init: bool = False,
        ) -> None:  # fmt: skip
            super().init_params(initializer and ax.init.One(), arg_params, aux_params, allow_missing, force_init)

    module = Own(mlp())
    module.fit(ax.io.NDArrayIter(X, Y, 10), num_epoch=1, optimizer_params={"learning_rate": 0.0})
    args, aux = module.get_params()
    assert args["fc1_weight"].mean() == 1
    module.set_params({name: 2 * array for name, array in args.items()}, aux)
    assert module.get_params()[0]["fc1_weight"].mean() == 2


def test_bug_names_that_nobody_has_are_refused() -> None:
    """M4: on 1.9.1 allow_extra=False rejected nothing."""
    module = module_of(mlp())
    args, aux = module.get_params()
    for call in (module.set_params, lambda *a: module.init_params(None, *a, force_init=True)):
        with pytest.raises(ValueError, match="has 'q', which the symbol has not"):
            call(args | {"q": X}, aux)
    with pytest.raises(UnknownNameError, match="aux_params has 'q'"):
        module.set_params(args, {"q": X})


def test_bug_4163_7961_fixed_and_multiplied_by_zero_are_both_still() -> None:
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1}
    fixed, zero = module_of(mlp(), fixed_param_names=["fc1_weight"]), module_of(mlp())
    for one in (fixed, zero):
        one.init_optimizer(optimizer_params=options)
    zero.optimizer.set_lr_mult({"fc1_weight": 0.0})
    assert_same(step(fixed, batch(), batch(8)), step(zero, batch(), batch(8)), rtol=0, atol=0)


def test_bug_11897_10077_6223_frozen_batch_norm() -> None:
    module = module_of(mlp(norm=True), fixed_param_names=["fc1_weight", "fc1_bias", "bn_gamma", "bn_beta"], freeze_aux=True)
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    before = module.get_params()
    step(module, batch(), batch(8))
    after = module.get_params()
    assert_same(before[1], after[1], rtol=0, atol=0)
    changed = {n for n in after[0] if not np.array_equal(after[0][n], before[0][n])}
    assert changed == {"fc2_weight", "fc2_bias"}


def test_bug_9511_14703_an_optimizer_object_decays_what_its_name_would() -> None:
    found = []
    for optimizer in ("sgd", ax.optimizer.SGD(learning_rate=0.1, wd=0.5, rescale_grad=1 / 8)):
        module = module_of(mlp())
        module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.1, "wd": 0.5})
        found.append(step(module, batch()))
    assert_same(*found, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_bug_17357_5059_4638_2735_4124_a_resumed_training_goes_on(optimizer: str, tmp_path: Any) -> None:
    """Also: Adam restarted its bias correction, states lay on other devices (5428, 6716, 6731)."""

    def options() -> dict[str, Any]:
        return {"learning_rate": 0.1, "wd": 0.01, "lr_scheduler": ax.lr_scheduler.MultiFactorScheduler([2, 4], 0.5)}

    module = module_of(mlp())
    module.init_optimizer(optimizer=optimizer, optimizer_params=options())
    step(module, batch(), batch(8), batch(4))
    module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    resumed = ax.mod.Module.load(str(tmp_path / "m"), 1, load_optimizer_states=True, context=TWO)
    resumed.bind([("data", (8, 6))], [("softmax_label", (8,))])
    resumed.init_optimizer(optimizer=optimizer, optimizer_params=options())
    assert resumed.optimizer.num_update == 3
    assert_same(step(module, batch(), batch(8)), step(resumed, batch(), batch(8)))
    assert module.optimizer.learning_rate == resumed.optimizer.learning_rate == pytest.approx(0.025)


def test_bug_2226_predictions_stay_what_they_were() -> None:
    module = module_of(mlp())
    parts = [outputs[0] for outputs, _, _ in module.iter_predict(ax.io.NDArrayIter(X, batch_size=10))]
    np.testing.assert_allclose(np.concatenate(parts), module.predict(X), 1e-6)


def test_bug_3374_losses_in_the_graph_see_their_labels_in_validation() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    loss = sym.MakeLoss(-sym.pick(sym.log_softmax(net), sym.Variable("softmax_label")), name="loss")
    module, plain = module_of(loss), module_of(sym.SoftmaxOutput(net, name="softmax"))
    plain.set_params(*module.get_params())
    held = ax.io.NDArrayIter(X, Y, 8)
    assert module.score(held, ax.metric.Loss())[0][1] == pytest.approx(plain.score(held, "ce")[0][1], rel=1e-5)


def test_bug_5811_7522_outputs_of_hidden_layers() -> None:
    net = mlp()
    internals = net.get_internals()
    module = module_of(net)
    hidden = ax.mod.Module(sym.Group([internals["relu1_output"], internals["fc2_output"]]), label_names=None)
    hidden.bind([("data", (20, 6))], for_training=False)
    hidden.set_params(*module.get_params())
    one, two = hidden.predict(X)
    args = module.get_params()[0]
    np.testing.assert_allclose(one, np.maximum(X @ args["fc1_weight"].T + args["fc1_bias"], 0), 1e-4, 1e-5)
    np.testing.assert_allclose(two, one @ args["fc2_weight"].T + args["fc2_bias"], 1e-4, 1e-5)


def test_bug_4504_an_array_is_no_list_of_arrays() -> None:
    class Batch:
        data, label = X[:8], [Y[:8]]

    module = module_of(mlp())
    with pytest.raises(TypeError, match="data of a batch must be a list of arrays, but it is a ndarray"):
        module.forward(Batch())


def test_bug_3793_states_without_a_shape_are_named() -> None:
    net = sym.broadcast_add(sym.Variable("data"), sym.Variable("init_c"))
    module = ax.mod.Module(net, label_names=None, state_names=["init_c"])
    with pytest.raises(ShapeError, match="init_c"):
        module.bind([("data", (8, 6))], for_training=False)


# --- others --------------------------------------------------------------------------------------------------------


def test_bug_11091_parameters_without_prefixes(tmp_path: Any) -> None:
    net = mlp(norm=True)
    module = module_of(net)
    args, aux = module.get_params()
    net.save(str(tmp_path / "m-symbol.json"))
    ax.nd.save(str(tmp_path / "m-0000.params"), args | aux)
    loaded = ax.mod.Module.load(str(tmp_path / "m"), 0)
    loaded.bind([("data", (8, 6))], [("softmax_label", (8,))])
    np.testing.assert_array_equal(loaded.predict(X), module.predict(X))


def test_bug_3488_padded_rows_do_not_count() -> None:
    module = module_of(mlp(), 4)
    held = ax.io.NDArrayIter(X[:10], Y[:10], 4)
    exact = float((module.predict(X[:10]).argmax(axis=1) == Y[:10]).mean())
    assert module.score(held, "acc") == [("accuracy", pytest.approx(exact))]
    held.reset()
    for one in held:
        one.pad = None  # some iterators say nothing
        module.score([one], "acc")


def test_bug_5690_rows_held_over_do_not_come_up_in_a_prediction() -> None:
    data = ax.io.NDArrayIter(X[:10], Y[:10], 4, last_batch_handle="roll_over")
    module = ax.mod.Module(mlp())
    module.fit(data, num_epoch=1, initializer=ax.init.Normal(0.5))
    first = module.predict(data)
    np.testing.assert_allclose(first, module.predict(X[:8]), 1e-6)


def test_bug_4253_4918_11480_12182_10437_the_metric_of_an_epoch_is_that_of_all_its_batches(caplog: pytest.LogCaptureFixture) -> None:
    """Also with two callbacks that look at it (5827, 5767)."""
    module = ax.mod.Module(mlp())
    with caplog.at_level(logging.INFO):
        module.fit(
            ax.io.NDArrayIter(X, Y, 5), num_epoch=1, optimizer_params={"learning_rate": 0.0}, initializer=ax.init.Normal(0.5),
            batch_end_callback=[ax.callback.Speedometer(5, 2), ax.callback.Speedometer(5, 1)],
        )  # fmt: skip
    exact = module.score(ax.io.NDArrayIter(X, Y, 5), "acc")[0][1]
    assert f"Epoch[0] Train-accuracy={exact:f}" in [record.getMessage() for record in caplog.records]


def test_bug_8907_the_learning_rate_changes_while_training() -> None:
    module = module_of(mlp())
    module.init_optimizer(optimizer_params={"learning_rate": 0.1})
    step(module, batch())
    module.optimizer.set_learning_rate(0.0)
    before = module.get_params()[0]
    assert_same(step(module, batch(8)), before, rtol=0, atol=0)


def test_bug_2116_1312_labels_and_outputs_that_do_not_pair_up() -> None:
    hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    module = module_of(sym.Group([sym.SoftmaxOutput(hidden, name="softmax"), sym.BlockGrad(hidden)]))
    module.forward(batch(), is_train=False)
    with pytest.raises(ShapeError, match="as many label arrays as predictions, but there are 1 and 2"):
        module.update_metric(ax.metric.Accuracy(), [Y[:8]])


def test_bug_life_begins_with_bind() -> None:
    """M13: on 1.9.1 calls in a wrong order were assertions without a word."""
    module = ax.mod.Module(mlp())
    for call in (lambda: module.forward(batch()), lambda: module.init_params(), lambda: module.init_optimizer()):
        with pytest.raises(NotBoundError, match="the module must be bound first: call bind"):
            call()
    with pytest.raises(NotBoundError, match="the module must have parameters first"):
        module.get_params()
    module = module_of(mlp())
    with pytest.raises(NotBoundError, match="the module must have an optimizer first"):
        module.update()
    with pytest.raises(ArgumentError, match="num_epoch must be given"):
        module.fit(ax.io.NDArrayIter(X, Y, 10))
    with pytest.raises(ArgumentError, match="it gives none in epoch 0"):
        module.fit(ax.io.NDArrayIter(X, Y, 30, last_batch_handle="discard"), num_epoch=1)
