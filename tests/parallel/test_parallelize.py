"""`parallelize`: the order of events, names of blobs, inputs, memory, checkpoints, nets that are taken out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.comm.guard import Guard
from arrayexec.train.model_helper import Reader
from tests.parallel.parallelized import MODELS, batches, build, convolutional, mlp, train
from tests.parallel.test_comm import Letters

RECORDED = Path(__file__).parents[1] / "conformance" / "caffe2"


def plain(model: ax.ModelHelper) -> Any:
    return model.build_sgd(0.1)


def fed(model: Any, rows: int = 8, shape: tuple[int, ...] = (12,)) -> Any:
    rng = np.random.default_rng(3)
    model.feed("data", rng.normal(size=(rows, *shape)).astype(np.float32))
    model.feed("label", rng.integers(0, 4, rows))
    return model


# --- order of events -------------------------------------------------------------------------------------------------


def test_order_of_callbacks_is_caffe2s() -> None:
    seen: list[str] = []

    def note(what: str, result: Any = None) -> Any:
        def call(model: ax.ModelHelper, *_: Any) -> Any:
            seen.append(f"{what}|scope={model.scope}|dev={model.device}")
            return result(model) if result else None

        return call

    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        seen.append(f"forward|scope={model.scope}|dev={model.device}")
        assert loss_scale == 0.5
        return mlp(model, loss_scale)

    def transform(model: ax.ModelHelper, *rest: Any) -> None:
        seen.append(f"net_transformer|scope={model.scope}|dev={model.device}")
        assert rest == (2, "cpu", "cpu")

    ax.parallelize(
        ax.ModelHelper("order"), note("input"), forward, optimizer_builder_fun=note("optimizer", plain),
        post_sync_builder_fun=note("post_sync"), pre_grad_net_transformer_fun=note("pre_grad"),
        net_transformer_fun=transform, devices=[0, 1], cpu_device=True,
    )  # fmt: skip
    recorded = (RECORDED / "hooks_order.txt").read_text().split("\n\n")[0].splitlines()
    assert seen == [line.rpartition("|")[0] for line in recorded]


def test_order_of_a_step_is_caffe2s() -> None:
    """Gradients are reduced in the recorded order, updates follow by device, in the order of the parameters."""
    lines = (RECORDED / "hooks_order.txt").read_text().splitlines()
    sums = [line.split("out=['cpu_0/")[1][:-2] for line in lines if line.startswith("Sum ")]
    updates = [line.split("out=['")[1][:-2] for line in lines if line.startswith("WeightedSum ")]
    model = fed(build("sgd", [0, 1]))
    assert model.run() is model
    events = list(model.plan.events)
    assert [event.split()[1] for event in events if event.startswith("reduce")] == sums
    assert [event.split()[1] for event in events if event.startswith("update")] == updates
    kinds = list(dict.fromkeys(event.split()[0] for event in events))
    assert kinds == ["forward", "backward", "reduce", "update"]
    assert events[2:4] == ["backward cpu_1", "backward cpu_0"]
    for plan in model.plan.devices.values():  # the plan finishes them in that order, up to those of one node
        order = plan.gradient_order()
        assert [name[:3] for name in order] == [name[:3] for name in sums]


def test_what_was_assigned_after_the_first_sync_is_done_then() -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        with model.name_scope("block"):
            h = model.fc("data", "fc1", 12, 4, bias_init=ax.init.Constant(3.0))
        assert model.blob("block/fc1") is model.blobs["block/fc1"]
        _, loss = model.softmax_with_loss(h, "label")
        return [model.scale(loss, "scaled", loss_scale)]

    def doubled(model: ax.ModelHelper) -> None:
        bias = model.param("block/fc1_b")
        model.assign(bias, model.weighted_sum(bias, 2))

    model = ax.parallelize_cpu(ax.ModelHelper("sync"), None, forward, optimizer_builder_fun=plain, devices=[0, 2], post_sync_builder_fun=doubled).init()
    for device in (0, 2):
        assert np.array_equal(model.blob("block/fc1_b", device), np.full(4, 6, np.float32))
    assert np.array_equal(model.blob("cpu_2/block/fc1_w"), model.blob("cpu_0/block/fc1_w"))


def test_transformers_may_give_new_graphs_and_the_plan_is_seen() -> None:
    seen: list[Any] = []

    def doubled(model: ax.ModelHelper, *_: Any) -> dict[str, Any]:
        return {prefix: ax.sym.Group([net.graph[0] * 2, net.graph[1]]) for prefix, net in model.nets.items()}

    def declared(model: ax.ModelHelper) -> None:
        model.input("data", (4, 12))
        model.input("label", (4,))

    model = ax.parallelize_cpu(
        ax.ModelHelper("plan"), declared, mlp, optimizer_builder_fun=plain, devices=[0, 1], net_transformer_fun=doubled,
        plan_hook_fun=lambda model: seen.append(model.plan),
    )  # fmt: skip
    assert seen == []
    model.init()
    assert len(seen) == 1
    assert list(seen[0].devices) == ["cpu_0", "cpu_1"]
    assert seen[0].bytes["cpu_0"]["parameter"] >= 4 * (12 * 16 + 16)
    before = np.array(model.blob("fc3_b"))
    fed(model).run()
    plainly = ax.parallelize_cpu(ax.ModelHelper("plan"), None, mlp, optimizer_builder_fun=plain, devices=[0, 1]).init()
    fed(plainly).run()
    np.testing.assert_allclose(model.blob("fc3_b") - before, 2 * plainly.blob("fc3_b"), rtol=1e-5)
    model.run(2)
    assert len(seen) == 1
    assert model.iteration == 3


def test_parameters_may_begin_as_zeros() -> None:
    model = ax.parallelize_cpu(ax.ModelHelper("zeros", init_params=False), None, mlp, devices=[0]).init()
    assert not any(value.any() for value in model.master.params.values())


# --- blobs, inputs ---------------------------------------------------------------------------------------------------


def test_blobs_are_named_as_in_caffe2() -> None:
    model = fed(build("momentum", [2, 5])).run()
    names = ("fc1_w", "fc1_b", "fc1", "tanh1", "softmax", "loss", "loss_scaled", "fc1_w_grad", "fc1_grad", "fc1_w_momentum", "data", "label")
    for name in names:
        for device in (2, 5):
            assert model.blob(f"cpu_{device}/{name}") is not None
            np.testing.assert_array_equal(model.blob(name, device), model.blob(f"cpu_{device}/{name}"))
    assert np.shares_memory(model.blob("fc1_w"), model.blob("cpu_2/fc1_w"))
    assert model.blob("fc1").shape == (4, 16)
    assert list(model.losses()) == ["cpu_2/loss_scaled", "cpu_5/loss_scaled"]
    assert model.loss() == pytest.approx(np.mean([model.blob("loss", d)[0] for d in (2, 5)]), rel=1e-6)
    assert model.blob("optimizer_iteration")[0] == 1
    assert model.learning_rate_blobs() == ["SgdOptimizer_0_lr_cpu"]
    assert model.blob("SgdOptimizer_0_lr_cpu")[0] == np.float32(0.1)


def test_learning_rate_blobs_of_updates_by_hand() -> None:
    model = fed(build("by hand", [0])).run(2)
    assert model.learning_rate_blobs() == ["learning_rate_0.1_inv"]
    assert "fc1_w_moment" in model.master.states


def test_gradients_are_those_of_the_executor() -> None:
    """The blob's gradient is the sum over both devices, whatever the memory; numerically the slope of the loss."""
    model = build("sgd", [0, 1], num_threads_per_device=1)
    data, label = batches("sgd")[0]
    model.feed("data", data)
    model.feed("label", label)
    start = {name: np.array(value) for name, value in model.master.params.items()}
    model.run()
    gradient, rate = np.array(model.blob("fc3_b_grad")), 0.2
    np.testing.assert_allclose(start["fc3_b"] - model.blob("fc3_b"), rate * gradient, atol=1e-7)


def test_readers_are_shared_by_all_devices() -> None:
    rng = np.random.default_rng(1)
    source = [(rng.normal(size=(4, 12)).astype(np.float32), rng.integers(0, 4, 4)) for _ in range(4)]
    other = ax.parallelize_cpu(ax.ModelHelper("read"), lambda model: model.read(source, ["data", "label"]), mlp, optimizer_builder_fun=plain, devices=[0, 1]).init().run()
    np.testing.assert_array_equal(other.blob("data", 1), source[1][0])
    reader = Reader(source)
    model = ax.parallelize_cpu(ax.ModelHelper("read"), lambda model: model.read(reader, ["data", "label"], ["float32", "int32"]), mlp, optimizer_builder_fun=plain, devices=[3, 1]).init()
    model.run()
    np.testing.assert_array_equal(model.blob("data", 3), source[0][0])
    np.testing.assert_array_equal(model.blob("data", 1), source[1][0])
    model.run()
    np.testing.assert_array_equal(model.blob("label", 1), source[3][1])
    with pytest.raises(StopIteration):
        model.run()
    reader.reset()
    model.run()
    np.testing.assert_array_equal(model.blob("data", 3), source[0][0])


def test_batches_of_any_size_and_the_first_parts_are_larger() -> None:
    model = build("sgd", range(4))
    for rows in (8, 30, 4, 9):
        fed(model, rows).run()
        assert [len(model.blob("data", i)) for i in range(4)] == [len(part) for part in np.array_split(np.zeros(rows), 4)]


def test_a_device_scope_puts_nodes_on_another_context() -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        with model.device_scope(ax.cpu(7)):
            h = model.fc("data", "fc1", 12, 16)
        _, loss = model.softmax_with_loss(model.fc(h, "fc2", 16, 4), "label")
        return [model.scale(loss, "scaled", loss_scale)]

    model = ax.parallelize_cpu(ax.ModelHelper("places"), None, forward, optimizer_builder_fun=plain, devices=[0, 1]).init()
    fed(model).run()
    assert [str(context) for context in model.master.executor.contexts] == ["cpu(0)", "cpu(7)"]


def test_gradients_that_a_group_of_gpus_sums() -> None:
    """What NCCL does on GPUs: each array becomes the sum of all; here by hand."""

    class Group:
        calls = 0

        def allreduce(self, arrays: Any) -> None:
            self.calls += 1
            total = sum(np.array(array) for array in arrays)
            for array in arrays:
                array[...] = total

    wanted = fed(build("adam", [0, 1])).run(3)
    model = fed(build("adam", [0, 1]))
    model._group = Group()
    model.run(3)
    assert Group.calls + model._group.calls >= 3
    for name in wanted.trained:
        np.testing.assert_array_equal(model.blob(name, 1), wanted.blob(name, 1))


def test_an_exception_on_a_device_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fed(build("combined", [0, 1, 2]), 9, (1, 4, 4)).run()

    def fails(*_: Any, **__: Any) -> Any:
        raise OverflowError("broken")
        yield

    with monkeypatch.context() as patch, pytest.raises(OverflowError, match="broken") as error:
        patch.setattr(model.devices[1].executor, "stages", fails)
        model.run()
    assert error.value.__notes__ == ["on cpu_1, one of 3 devices"]
    assert model.run().iteration == 2


# --- running statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [True, False, "average"])
def test_computed_parameters(how: Any) -> None:
    model = build("combined", [0, 1], combine_spatial_bn=False, broadcast_computed_params=how)
    data, label = batches("combined")[0]
    model.feed("data", data)
    model.feed("label", label)
    model.run()
    means = [0.1 * model.blob("conv1", i).mean(axis=(0, 2, 3)) for i in (0, 1)]
    found = [model.blob("bn_left_rm", i) for i in (0, 1)]
    wanted = {True: [means[0]] * 2, False: means, "average": [np.mean(means, axis=0)] * 2}[how]
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-6)


def test_a_forward_only_model_shares_parameters() -> None:
    """A test model: parameters and running statistics of the trained one, nothing moves."""
    trained = ax.ModelHelper("train")
    model = ax.parallelize_cpu(trained, None, convolutional, optimizer_builder_fun=plain, devices=[0, 1]).init()

    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        convolutional(model, loss_scale)
        model.accuracy("softmax", "label", "accuracy")

    tested = ax.parallelize_cpu(ax.ModelHelper("test", shares=trained), None, forward, devices=[0, 1]).init()
    before = np.array(model.blob("bn_left_rm"))
    fed(tested, 8, (1, 4, 4)).run(2)
    assert tested.blob("fc_w") is model.blob("fc_w")
    assert np.array_equal(model.blob("bn_left_rm"), before)
    hits = np.concatenate([tested.blob("softmax", i).argmax(1) == tested.blob("label", i) for i in (0, 1)])
    assert np.mean([tested.blob("accuracy", i)[0] for i in (0, 1)]) == pytest.approx(hits.mean())
    before = np.array(tested.blob("softmax"))
    fed(model, 8, (1, 4, 4)).run()
    fed(tested, 8, (1, 4, 4)).run()
    assert not np.allclose(tested.blob("softmax"), before)


# --- memory ----------------------------------------------------------------------------------------------------------


def chain(model: ax.ModelHelper, loss_scale: float) -> Any:
    h: Any = "data"
    for i in range(20):
        h = model.relu(model.fc(h, f"fc{i}", 512, 512), f"relu{i}")
    _, loss = model.softmax_with_loss(model.fc(h, "head", 512, 10), "label")
    return [model.scale(loss, "scaled", loss_scale)]


def declared(model: ax.ModelHelper) -> None:
    model.input("data", (2048, 512))
    model.input("label", (2048,))


def momentum(model: ax.ModelHelper) -> Any:
    return model.build_sgd(0.1, momentum=0.9)


def test_memory_of_the_chain_is_at_least_as_small_as_caffe2s() -> None:
    """All blobs: −41 % with shared gradients; what a step makes (gradients, activations, batch): −73 % if freed."""
    found = {}
    for option in ("", "optimize_gradient_memory", "dynamic_memory_management"):
        options = {option: True} if option else {}
        model = ax.parallelize_cpu(ax.ModelHelper("chain"), declared, chain, optimizer_builder_fun=momentum, devices=[0], **options).init()
        held = model.plan.bytes["cpu_0"]
        assert held["arena"] == model.master.arena.nbytes  # what is told is what is taken
        found[option] = (sum(held.values()), held["arena"] + held["gradient"] + held["input"])
    everything, step = found[""]
    print(f"\n  MiB in all, of a step: { {k: tuple(round(v / 2**20, 1) for v in pair) for k, pair in found.items()} }")
    assert found["optimize_gradient_memory"][0] <= 0.59 * everything
    assert found["dynamic_memory_management"][1] <= 0.27 * step


def test_memory_can_be_optimized_later() -> None:
    model = ax.parallelize_cpu(ax.ModelHelper("chain"), None, chain, optimizer_builder_fun=momentum, devices=[0]).init()
    told = ax.optimize_gradient_memory(model, {"data": (64, 512), "label": (64,)}, ["fc3_grad"])
    assert told["after"]["arena"] < 0.7 * told["before"]["arena"]
    rng = np.random.default_rng(0)
    model.feed("data", rng.normal(size=(64, 512)).astype(np.float32))
    model.feed("label", rng.integers(0, 10, 64))
    model.run()
    assert model.blob("fc3_grad").shape == (64, 512)
    with pytest.raises(ax.BlobFreedError):
        model.blob("fc4_grad")
    recycled = model.optimize_gradient_memory(recycle_activations=True)
    assert recycled["after"]["arena"] < recycled["before"]["arena"]
    model.run()
    with pytest.raises(KeyError, match="blobs_to_keep"):
        model.blob("fc4")


def test_freed_blobs_say_so_and_kept_ones_stay() -> None:
    wanted = fed(build("sgd", [0, 1])).run()
    model = fed(build("sgd", [0, 1], dynamic_memory_management=True, blobs_to_keep=["tanh1", "loss", "fc2_grad"])).run()
    for name in ("tanh1", "loss", "loss_scaled", "fc2_grad", "fc1_w", "fc1_w_grad"):
        for device in (0, 1):
            np.testing.assert_array_equal(model.blob(name, device), wanted.blob(name, device), err_msg=name)
    for name in ("fc1", "softmax", "fc1_grad"):
        with pytest.raises(ax.BlobFreedError, match=f"blobs_to_keep=\\['{name}'\\]"):
            model.blob(name)
    model = fed(build("sgd", [0], optimize_gradient_memory=True)).run()
    assert model.blob("fc1") is not None
    with pytest.raises(ax.BlobFreedError):
        model.blob("fc1_grad")


def test_names_to_keep_that_are_not_there_are_warned_of() -> None:
    model = build("sgd", [0], dynamic_memory_management=True, blobs_to_keep=["tanh3"])
    with pytest.warns(UserWarning, match="there is no blob 'tanh3'; did you mean 'tanh2' or 'tanh1'?"):
        fed(model).run()
    with pytest.warns(UserWarning, match="without a memory option"):
        build("sgd", [0], blobs_to_keep=["tanh1"])


# --- checkpoints, consistency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["npz", "params"])
@pytest.mark.parametrize("name", ["adam", "shared", "combined", "by hand"])
def test_training_goes_on_from_a_checkpoint_on_other_devices(name: str, ending: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"model.{ending}")
    wanted, _ = train(name, [0, 1])
    model = build(name, [0, 1])
    pairs = batches(name)
    for number, (data, label) in enumerate(pairs):
        if number == 3:
            assert {key for key in model.checkpoint_params() if key.endswith("_w")} >= {"cpu_0/fc_w" if name == "combined" else "cpu_0/fc1_w"}
            model.save(path)
            ax.random.seed(99)  # the checkpoint's own counts
            model = ax.parallelize_cpu(ax.ModelHelper("again"), None, MODELS[name][0], devices=[5, 3, 4], **MODELS[name][2]).init()
            model.load(path)
            assert model.iteration == 3
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    for key, value in wanted.items():
        np.testing.assert_allclose(model.blob(key), value, rtol=2e-4, atol=1e-5, err_msg=key)
        np.testing.assert_array_equal(model.blob(key, 4), model.blob(key, 5))


def test_finalize_gives_all_devices_the_masters_blobs() -> None:
    model = build("momentum", [0, 1])
    model.blob("fc1_w")[...] = 5
    model.blob("fc2_w_momentum")[...] = 6
    model.finalize_after_checkpoint(["fc1_w"])
    assert (model.blob("cpu_1/fc1_w") == 5).all()
    assert not (model.blob("cpu_1/fc2_w_momentum") == 6).any()
    model.finalize_after_checkpoint(["cpu_0/fc2_w_momentum"])
    assert (model.blob("cpu_1/fc2_w_momentum") == 6).all()
    with pytest.raises(KeyError):
        model.finalize_after_checkpoint(["fc9_w"])


def test_differing_replicas_are_named() -> None:
    model = fed(build("sgd", [0, 1])).run()
    model.check_consistency()
    model.blob("cpu_1/fc2_b")[3] += 1e-6
    with pytest.raises(ax.InconsistentReplicaError, match="'fc2_b' differs at step 1"):
        model.check_consistency()
    model.check_every = 2
    with pytest.raises(ax.InconsistentReplicaError, match="at step 2"):
        model.run(2)
    model.check_for_failures()
    model.synchronize(5)


def test_a_rank_that_raised_or_left_is_seen_without_waiting() -> None:
    for state, text in (("raised", "raised after barrier"), ("left", "left after barrier")):
        letters = Letters(3)
        watcher = Guard(letters, lambda: "")
        watcher.enter("barrier", "step 1")
        watcher.look("check_for_failures")
        letters.hear(2, "waiting", 1)
        watcher.look("check_for_failures")
        letters.hear(0, state, 0)
        with pytest.raises(ax.PeerFailure) as error:
            watcher.look("check_for_failures")
        assert str(error.value) == f"check_for_failures: rank 0 {text}; rank 1 is in barrier (step 1)"
        with pytest.raises(ax.CollectiveError, match="no collective can follow one that failed"):
            watcher.look("run")


@pytest.mark.parametrize(("op", "wanted"), [("broadcast", 1.0), ("sum", 4.0), ("mean", 2.0)])
def test_blobs_that_all_devices_have_alike(op: str, wanted: float) -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        model.create_param("cpu_temp", (2,), ax.init.Constant(1.0))
        return mlp(model, loss_scale)

    model = ax.parallelize_cpu(ax.ModelHelper("sync"), None, forward, optimizer_builder_fun=plain, devices=[0, 1]).init()
    model.add_blob_sync([])
    model.add_blob_sync(["cpu_temp"], op)
    model.blob("cpu_temp", 1)[...] = 3.0
    fed(model).run()
    for device in (0, 1):
        assert model.blob("cpu_temp", device).tolist() == [wanted] * 2


# --- nets of their own -----------------------------------------------------------------------------------------------


def test_a_converted_net_runs_on_its_device() -> None:
    net = ax.sym.FullyConnected(ax.sym.Variable("a"), num_hidden=3, name="b")
    found = ax.convert_net_for_device(net, ax.cpu(3))
    assert found.list_arguments() == ["cpu_3/a", "cpu_3/b_weight", "cpu_3/b_bias"]
    assert found.list_outputs() == ["cpu_3/b_output"]
    executor = found.simple_bind(ax.cpu(0), group2ctx={"cpu(3)": ax.cpu(3)}, **{"cpu_3/a": (2, 5)})
    assert [str(context) for context in executor.contexts] == ["cpu(0)", "cpu(3)"]
    with ax.cpu(2):
        assert ax.convert_net_for_device(net).list_outputs() == ["cpu_2/b_output"]


@pytest.mark.parametrize("combine", [False, True])
def test_the_predictor_predicts_as_a_test_model(combine: bool) -> None:
    helper = ax.ModelHelper("train")
    model = ax.parallelize_cpu(helper, None, convolutional, optimizer_builder_fun=plain, devices=[0, 1], combine_spatial_bn=combine).init()
    fed(model, 8, (1, 4, 4)).run(5)
    tested = ax.parallelize_cpu(ax.ModelHelper("test", shares=helper), None, lambda m, s: (convolutional(m, s), None)[1], devices=[0]).init()
    data = np.random.default_rng(9).normal(size=(3, 1, 4, 4)).astype(np.float32)
    tested.feed("data", data)
    tested.feed("label", np.zeros(3))
    tested.run()
    predictor = ax.extract_predictor_net(model, ["data"], ["softmax"])
    assert set(predictor.symbol.list_arguments()) == {"data", *(name for name in model.master.net.trained)}
    (found,) = predictor(data=data)
    np.testing.assert_allclose(found, tested.blob("softmax"), rtol=1e-5, atol=1e-6)
    (inner,) = ax.extract_predictor_net(model, ["pool"], ["fc"])(pool=np.ones((2, 4, 2, 2), np.float32))
    assert inner.shape == (2, 4)


def test_a_predictor_of_rows_of_a_table() -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        _, loss = model.softmax_with_loss(model.fc(model.gather("idx", "emb", 9, 5), "fc", 5, 4), "label")
        return [model.scale(loss, "scaled", loss_scale)]

    model = ax.parallelize_cpu(ax.ModelHelper("table"), None, forward, optimizer_builder_fun=plain, devices=[0, 1]).init()
    before = np.array(model.blob("emb_w"))
    model.feed("idx", np.array([1, 3, 3, 8]))
    model.feed("label", np.array([0, 1, 2, 3]))
    model.run()
    moved = np.flatnonzero(np.abs(model.blob("emb_w") - before).sum(axis=1))
    assert moved.tolist() == [1, 3, 8]
    (found,) = ax.extract_predictor_net(model, ["idx"], ["emb"])(idx=np.array([3.0, 1.0], np.float32))
    np.testing.assert_array_equal(found, model.blob("emb_w")[[3, 1]])


def test_rows_count_in_the_length_of_a_gradient() -> None:
    """A table with gradients by rows trains as one whose gradient is dense, also where the gradient is cut."""
    found = []
    for sparse in (True, False):

        def forward(model: ax.ModelHelper, loss_scale: float, sparse: bool = sparse) -> Any:
            h = model.gather("idx", "emb", 9, 5, sparse=sparse)
            _, loss = model.softmax_with_loss(model.fc(h, "fc", 5, 4), "label")
            return [model.scale(loss, "scaled", loss_scale)]

        def optimizer(model: ax.ModelHelper) -> Any:
            return model.build_sgd(0.5, max_gradient_norm=0.1, sparse_dedup_aggregator="sum")

        ax.random.seed(4)
        model = ax.parallelize_cpu(ax.ModelHelper("table"), None, forward, optimizer_builder_fun=optimizer, devices=[0, 1]).init()
        model.feed("idx", np.array([1, 3, 3, 8]))
        model.feed("label", np.array([0, 1, 2, 3]))
        model.run(3)
        found.append((np.array(model.blob("emb_w")), np.array(model.blob("fc_w"))))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


# --- layers ----------------------------------------------------------------------------------------------------------


def test_layers_of_all_kinds() -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        h = model.lstm("data", "lstm", 3, 5, num_layers=2)
        last = model.flatten(model.concat([model.sigmoid(h, "sig"), model.stop_gradient(h, "stopped")], "both", axis=2), "flat")
        probabilities = model.softmax(model.fc(last, "fc", 40, 4), "softmax")
        losses = model.label_cross_entropy(probabilities, "label", "losses")
        return [model.scale(model.averaged_loss(losses, "loss"), "scaled", loss_scale)]

    model = ax.parallelize_cpu(ax.ModelHelper("layers"), None, forward, optimizer_builder_fun=lambda model: model.build_adam(0.02), devices=[0]).init()
    model.feed("data", np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32))
    model.feed("label", np.arange(6) % 4)
    first = model.run().loss()
    assert model.run(60).loss() < 0.8 * first
    chosen = model.blob("softmax")[np.arange(6), np.arange(6) % 4]
    assert float(model.blob("loss")[0]) == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


def test_learning_rates_follow_their_policies() -> None:
    from arrayexec.train.model_optimizer import policy

    assert [policy(1.0, "step", stepsize=2, gamma=0.5)(t) for t in (1, 2, 3, 4)] == [1, 0.5, 0.5, 0.25]
    assert [policy(1.0, "multistep", boundaries=[2, 4], gamma=0.1)(t) for t in (1, 2, 4)] == pytest.approx([1, 0.1, 0.01])
    assert [policy(2.0, "poly", max_iter=4, power=2)(t) for t in (1, 2, 4, 9)] == pytest.approx([2 * 0.75**2, 0.5, 0, 0])
    assert policy(1.0, "inv", gamma=1.0, power=0.5)(3) == 0.5
    warm = policy(1.0, start_warmup_multiplier=0.2, constant_warmup_num_iter=1, linear_warmup_num_iter=4)
    assert [warm(t) for t in range(1, 7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
