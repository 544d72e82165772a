"""Parallel models that are watched: monitors, values that are not finite; starts, blobs to sync, rates by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.comm.local import LocalCommunicator
from tests.parallel import fake_nccl
from tests.parallel.parallelized import batches, build, mlp
from tests.parallel.test_parallelize import fed, plain


def given(model: Any, name: str, number: int = 0) -> Any:
    data, label = batches(name)[number]
    model.feed("data", data)
    model.feed("label", label)
    return model


@pytest.mark.parametrize("name", ["adam", "combined", "dynamic memory"])
def test_a_monitor_sees_all_devices_and_changes_no_bit(name: str) -> None:
    wanted = given(build(name, [3, 0]), name).run(2)
    model = build(name, [3, 0])
    seen: list[tuple[str, Any]] = []
    monitor = ax.mon.Monitor(2, lambda array: float(np.abs(array).max()), pattern="fc|loss")
    given(model, name)
    model.install_monitor(monitor)
    for step in range(2):
        monitor.tic()
        model.run()
        seen.append(monitor.toc())
        if step == 0:
            loss = model.losses()["cpu_0/" + model.master.net.losses[0].name]
    assert seen[1] == []  # every second step
    first = {key: float(text) for _, key, text in seen[0]}
    assert first[f"{model.master.net.losses[0].name}_output[cpu_0]"] == pytest.approx(loss)
    assert {key.rpartition("[")[2] for key in first} == {"cpu_3]", "cpu_0]"}
    assert any("backward" in key for key in first)
    for key, value in wanted.master.params.items():
        assert value.tobytes() == model.blob(key).tobytes(), key
    given(model, name, 1)
    model.feed("data", batches(name)[1][0][:10])
    model.feed("label", batches(name)[1][1][:10])
    monitor.tic()
    model.run()  # new shapes: a new executor, watched as well
    assert monitor.toc()


@pytest.mark.parametrize("name", ["adam", "combined", "gradient memory", "dynamic memory"])
def test_what_is_not_finite_is_found_and_the_model_stays_as_it_was(name: str) -> None:
    model = given(build(name, [0, 1]), name).run()
    held = {key: value.tobytes() for key, value in model.checkpoint_params().items()}
    data, label = batches(name)[1]
    spoiled = data.copy()
    spoiled[-1] = np.inf
    model.feed("data", spoiled)
    model.feed("label", label)
    with pytest.raises(ax.errors.NonFiniteError, match="argument 'data'") as error:
        model.run(check="finite")
    assert "on cpu_1, one of 2 devices" in "".join(error.value.__notes__)
    assert {key: value.tobytes() for key, value in model.checkpoint_params().items()} == held
    model.feed("data", data)
    model.run(check="finite")
    wanted = given(given(build(name, [0, 1]), name).run(), name, 1).run()
    for key, value in wanted.checkpoint_params().items():
        assert value.tobytes() == model.checkpoint_params()[key].tobytes(), key


def test_gradients_that_are_not_finite_move_nothing() -> None:
    def net(model: ax.ModelHelper, loss_scale: float) -> Any:
        h = model.make("sqrt", "root", model.fc("data", "fc", 12, 1, no_bias=True, weight_init=ax.init.Zero()))
        return [model.scale(model.averaged_loss(h, "loss"), "scaled", loss_scale)]

    model = ax.parallelize_cpu(ax.ModelHelper("m"), None, net, optimizer_builder_fun=plain, devices=[0, 1]).init()
    model.feed("data", np.ones((4, 12), np.float32))
    with pytest.raises(ax.errors.NonFiniteError, match="root"):
        model.run(check="finite")
    assert model.iteration == 0
    assert not model.blob("fc_w").any()


def test_a_model_starts_once() -> None:
    model = fed(build("sgd", [0, 1])).run()
    with pytest.raises(ax.AlreadyParallelizedError, match="'sgd' is started already"):
        model.init()
    assert model.iteration == 1


@pytest.mark.parametrize("bad", [-1, 1.5, True, None, "3"])
def test_steps_are_counted_in_whole_numbers(bad: Any) -> None:
    with pytest.raises(ax.ArrayExecError, match="iterations must be a whole number >= 0"):
        fed(build("sgd", [0])).run(bad)
    assert fed(build("sgd", [0])).run(np.int64(2)).iteration == 2


def test_devices_are_any_whole_numbers() -> None:
    assert [one.net.prefix for one in build("sgd", np.array([4, 1], np.int16)).devices] == ["cpu_4", "cpu_1"]


def test_blobs_to_sync_may_be_named_before_the_start() -> None:
    model = ax.parallelize_cpu(ax.ModelHelper("m"), None, mlp, optimizer_builder_fun=plain, devices=[0, 1])
    model.add_blob_sync(["loss"], "mean")
    fed(model.init(), 9).run()
    assert model.blob("loss", 0) == model.blob("loss", 1)


def test_blocks_sync_the_blobs_that_they_were_told() -> None:
    options = {"devices": [2, 0], "cpu_device": True, "optimizer_builder_fun": lambda model: model.build_sgd(0.1, momentum=0.9)}
    model = ax.parallelize_bmuf(ax.ModelHelper("m"), None, mlp, add_blobs_to_sync=["loss"], **options).init()
    fed(model, 9).run(2)
    assert model.blob("loss", 0) == model.blob("loss", 2)
    other = fed(ax.parallelize_bmuf(ax.ModelHelper("m"), None, mlp, **options).init(), 9).run(2)
    assert other.blob("loss", 0) != other.blob("loss", 2)


def test_rates_by_hand_that_differ_in_options_alone_are_two() -> None:
    def update(model: ax.ModelHelper) -> None:
        rates = [model.learning_rate(0.1, "step", stepsize=1, gamma=gamma) for gamma in (0.5, 1.0, 0.5)]
        assert [rate.name for rate in rates] == ["learning_rate_0.1_step", "learning_rate_0.1_step_1", "learning_rate_0.1_step"]
        for param, rate in zip(model.get_params(), rates * 2, strict=True):
            model.assign(param, model.weighted_sum(param, 1, model.param_to_grad[param.name] * -1.0, rate))

    model = ax.parallelize_cpu(ax.ModelHelper("m"), None, mlp, param_update_builder_fun=update, devices=[0, 1]).init()
    fed(model).run(2)
    assert [model.blob(name)[0] for name in model.learning_rate_blobs()] == [np.float32(0.025), np.float32(0.1)]


def test_states_are_compared_as_well() -> None:
    model = given(build("adam", [0, 1]), "adam").run()
    model.check_consistency()
    model.blob("fc2_w_second_moment", 1)[0] += 1e-3
    with pytest.raises(ax.InconsistentReplicaError, match="'fc2_w_second_moment' differs at step 1"):
        model.check_consistency()


def test_nccl_of_one_process_among_ranks_is_warned_of() -> None:
    ranks = type("Ranks", (LocalCommunicator,), {"size": 2})()
    remove = fake_nccl.install(2)
    try:
        with pytest.warns(UserWarning, match="use_nccl means nothing among ranks"):
            ax.parallelize_gpu(ax.ModelHelper("m"), None, mlp, optimizer_builder_fun=plain, use_nccl=True, rendezvous=ranks)
    finally:
        remove()


def test_a_predictor_knows_where_it_runs() -> None:
    model = fed(build("sgd", [0, 1])).run()
    predictor = ax.extract_predictor_net(model, ["data"], ["softmax"], ax.cpu(5))
    data = np.ones((3, 12), np.float32)
    assert predictor.context == ax.cpu(5)
    np.testing.assert_array_equal(predictor(data=data)[0], predictor(ax.cpu(0), data=data)[0])


def test_blocks_in_less_memory_have_the_same_bits() -> None:
    held = []
    for option in (False, True):
        ax.random.seed(1)
        options = {"optimizer_builder_fun": plain, "cpu_device": True, "devices": [0, 1], "optimize_gradient_memory": option}
        model = fed(ax.parallelize_bmuf(ax.ModelHelper("m"), None, mlp, **options).init()).run(3)
        held.append((model.plan.bytes["cpu_0"]["arena"], {name: value.tobytes() for name, value in model.master.params.items()}))
    assert held[1][0] < held[0][0]
    assert held[1][1] == held[0][1]
