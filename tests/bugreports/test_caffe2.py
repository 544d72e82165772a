"""Public reports about Caffe2's data_parallel_model, and what was wrong with it when it was run: each row by its number.

``C`` is caffe2/caffe2, ``P`` pytorch/pytorch; rows ``B`` were found by running release 1.7.1.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.comm import GradientBuckets
from arrayexec.comm.local import LocalCommunicator
from arrayexec.context import asnumpy
from arrayexec.parallel.model_checks import ENGINES
from tests.parallel import fake_nccl
from tests.parallel.mpi_helper import run_ranks
from tests.parallel.parallelized import alike, batches, build, built, convolutional, mlp, normalised, train

DOCS = Path(__file__).parents[2] / "docs"


def sgd(model: ax.ModelHelper) -> Any:
    return model.build_sgd(0.1, momentum=0.9)


def made(net: Any = mlp, **options: Any) -> Any:
    given = {"optimizer_builder_fun": sgd, "devices": [0, 1], "cpu_device": True, **options}
    return ax.parallelize(ax.ModelHelper("m"), None, net, **given)


def fed(model: Any, rows: int = 12) -> Any:
    rng = np.random.default_rng(3)
    model.feed("data", rng.normal(size=(rows, 12)).astype(np.float32))
    model.feed("label", rng.integers(0, 4, rows))
    return model


# --- A: public reports -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [[1, 0], [5, 2, 9], [3, 0]])
def test_row_2_c674_devices_in_any_order(devices: list[int]) -> None:
    found, model = train("momentum", devices)
    alike(found, train("momentum", [0])[0], devices)
    assert model.master.net.prefix == f"cpu_{devices[0]}"


@pytest.mark.parametrize("devices", [[0, 1], [2, 0, 1]])
def test_rows_3_4_c633_c659_gradients_need_no_peer_access(devices: list[int]) -> None:
    """On strict devices the array of another one cannot be touched: a sum that did would fail."""
    remove = fake_nccl.install(3)
    try:
        ax.random.seed(7)
        net = made(devices=devices, cpu_device=False, use_nccl=False).init()
        fed(net).run(2)
        found = {name: asnumpy(value).copy() for name, value in net.master.params.items()}
        assert fake_nccl.log == []
    finally:
        remove()
    ax.random.seed(7)
    alike(found, {k: np.array(v) for k, v in fed(made(devices=devices).init()).run(2).master.params.items()}, devices)


@pytest.mark.mpi
def test_rows_5_6_detectron32_detectron219_a_hang_names_rank_and_place() -> None:
    run = run_ranks("parallelized_late.py", 2, 1, timeout=60)
    assert run.code != 0
    assert "BarrierTimeoutError: rank 1 is missing in barrier (step 2 of the model 'sgd')" in run.err
    assert "last seen of rank 1" in run.err


def test_row_7_nccl70_buckets_start_one_at_a_time_whatever_thread_finishes_them() -> None:
    segment = np.zeros(64 * 64, np.float32)
    gradients = {f"g{i}": segment[i * 64 : (i + 1) * 64] for i in range(64)}
    buckets = GradientBuckets(LocalCommunicator(), gradients, [segment], max_bytes=512)
    names = list(gradients)
    threads = [threading.Thread(target=lambda part=names[i::4]: [buckets.ready(name) for name in part]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buckets.finish()
    assert [i for _, what, i in buckets.events if what == "start"] == list(range(len(buckets.buckets)))


def test_row_9_c630_running_statistics_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("gradient memory", [0, 1], combine_spatial_bn=False)
    assert len(model.master.computed) == 6
    calls: list[int] = []
    inner = model._sync_arrays
    monkeypatch.setattr(model, "_sync_arrays", lambda arrays, how: (calls.append(arrays[0].size), inner(arrays, how)))
    data, label = batches("gradient memory")[0]
    model.feed("data", data)
    model.feed("label", label)
    model.run()
    assert len(calls) == 1


def test_row_10_nonlocal5_nccl_that_cannot_work_is_refused_and_the_option_is_explained() -> None:
    with pytest.raises(ax.ParallelizeError, match="use_nccl=True needs GPUs"):
        made(use_nccl=True)
    remove = fake_nccl.install(2, available=False)
    try:
        with pytest.raises(ax.BackendUnavailableError, match="NCCL"):
            made(cpu_device=False, use_nccl=True).init()
    finally:
        remove()
    assert "broadcast_computed_params=True" in (DOCS / "distributed.md").read_text()


def test_rows_11_b11_b14_c1359_no_list_of_devices() -> None:
    assert len(made(devices=None).devices) == len(ax.parallelize_bmuf(
        ax.ModelHelper("b"), None, mlp, optimizer_builder_fun=sgd, cpu_device=True
    ).devices)  # fmt: skip
    for call in (made, lambda **options: ax.parallelize_bmuf(ax.ModelHelper("b"), None, mlp, optimizer_builder_fun=sgd, cpu_device=True, **options)):
        with pytest.raises(ax.DeviceError, match="the list is empty"):
            call(devices=[])
    with pytest.raises(ax.ParallelizeError, match="max_concurrent_distributed_ops must be a whole number of at least 1"):
        made(max_concurrent_distributed_ops=0)


def test_row_12_c928_devices_that_the_machine_does_not_have() -> None:
    remove = fake_nccl.install(2)
    try:
        with pytest.raises(ax.DeviceError, match="device 2 is not there: the GPUs are 0 to 1"):
            made(devices=[0, 2], cpu_device=False)
    finally:
        remove()


def test_row_13_c2244_statistics_of_all_devices_are_documented_and_work_on_both_backends() -> None:
    assert "combine_spatial_bn" in (DOCS / "parallelize.md").read_text()
    remove = fake_nccl.install(2)
    try:
        ax.random.seed(7)
        model = made(normalised, cpu_device=False, combine_spatial_bn=True).init()
        fed(model, 11).run(2)
        found = {name: asnumpy(value).copy() for name, value in {**model.master.params, **model.master.computed}.items()}
    finally:
        remove()
    ax.random.seed(7)
    model = fed(made(normalised, combine_spatial_bn=True).init(), 11).run(2)
    wanted = {**model.master.params, **model.master.computed}
    del found["fc1_b"], wanted["fc1_b"]  # the normalisation takes it out: its gradient is rounding
    alike(found, {name: np.array(value) for name, value in wanted.items()}, "gpu")


@pytest.mark.parametrize("devices", [[0], [0, 1], [1, 3, 0]])
def test_row_14_p42151_running_variances_are_unbiased_with_the_count_of_all(devices: list[int]) -> None:
    model = made(normalised, devices=devices, combine_spatial_bn=True).init()
    fed(model, 11).run()
    rows = np.concatenate([model.blob("fc1", i) for i in devices])
    np.testing.assert_allclose(model.blob("bn_riv"), 0.9 + 0.1 * rows.var(axis=0, ddof=1), rtol=1e-5)


@pytest.mark.mpi
def test_rows_16_18_20_21_23_b4_on_ranks(tmp_path: Path) -> None:
    """C#360 C#969 C#1553 C#1050 C#902: statistics over hosts, handshake, mpirun, few messages."""
    run = run_ranks("caffe2_reports.py", 2, timeout=60)
    assert (run.code, run.out, run.err) == (0, "", "")


@pytest.mark.parametrize("name", ["kv_handler", "transport", "interface", "mpi_rendezvous"])
def test_rows_17_19_22_c984_c918_p6269_there_is_no_store_and_no_transport_to_set(name: str) -> None:
    shards = {"engine": "GLOO", "num_shards": 1, "shard_id": 0}
    with pytest.warns(UserWarning, match=f"'{name}' means nothing here: ranks meet over MPI"):
        assert made(rendezvous={**shards, name: "/nfs/run1"}).comm is None
    with pytest.raises(ax.RendezvousError, match="there is no engine 'REDIS'; there are: " + ", ".join(ENGINES)):
        made(rendezvous={**shards, "engine": "REDIS"})


def test_row_24_longterm26_devices_work_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device waits for the others inside its step: one that came alone would wait for ever."""
    model = fed(made(devices=[0, 1, 2]).init()).run()
    together = threading.Barrier(3, timeout=20)
    for device in model.devices:
        inner = device.executor.stages

        def stages(*args: Any, inner: Any = inner, **options: Any) -> Any:
            together.wait()
            yield from inner(*args, **options)

        monkeypatch.setattr(device.executor, "stages", stages)
    model.run(2)
    assert not together.broken


def test_row_25_p10322_shared_memory_with_recurrent_nets_and_many_threads() -> None:
    def net(model: ax.ModelHelper, loss_scale: float) -> Any:
        steps = ax.sym.transpose(model.blob("data"), axes=(1, 0, 2))
        h = ax.sym.transpose(model.lstm(steps, "lstm", 3, 8, num_layers=2), axes=(1, 0, 2))
        _, loss = model.softmax_with_loss(model.fc(model.flatten(h, "flat"), "fc", 32, 4), "label")
        return [model.scale(loss, "scaled", loss_scale)]

    rng = np.random.default_rng(1)
    given = [(rng.normal(size=(16, 4, 3)).astype(np.float32), rng.integers(0, 4, 16)) for _ in range(10)]
    held = []
    for options in ({}, {"optimize_gradient_memory": True}, {"dynamic_memory_management": True}, {"net_type": "simple"}):
        ax.random.seed(2)
        model = made(net, devices=range(8), **options).init()
        for data, label in given:
            model.feed("data", data)
            model.feed("label", label)
            model.run()
        held.append({name: value.tobytes() for name, value in model.master.params.items()})
    assert all(one == held[0] for one in held)


def test_row_27_c371_a_model_on_several_contexts() -> None:
    def net(model: ax.ModelHelper, loss_scale: float) -> Any:
        with model.device_scope(ax.cpu(7)):
            h = model.tanh(model.fc("data", "fc1", 12, 16), "tanh1")
        _, loss = model.softmax_with_loss(model.fc(h, "fc2", 16, 4), "label")
        return [model.scale(loss, "scaled", loss_scale)]

    model = fed(made(net).init()).run()
    assert [str(context) for context in model.master.executor.contexts] == ["cpu(0)", "cpu(7)"]
    text = (DOCS / "distributed.md").read_text()
    assert "device_scope" in text
    assert "optimize_gradient_memory" in text


@pytest.mark.parametrize(
    "question",
    [
        "How do I test on one machine?", "Is the data the same on each device?", "When are gradients summed?",
        "What is a communicator, a common world, a rendezvous?", "Is a batch that of a device, or of all?",
    ],
)  # fmt: skip
def test_row_29_c646_c408_c1071_c1026_c1492_the_manual_answers(question: str) -> None:
    assert f"**{question}**" in (DOCS / "distributed.md").read_text()


def test_row_30_p9568_ranks_meet_apart_from_parameters() -> None:
    model = made(rendezvous=ax.comm.init("local"))
    model.synchronize(5)  # before any parameter is there
    assert not model.is_started
    model.synchronize(6)  # with another deadline


def test_row_31_c725_readers_have_no_scope() -> None:
    source = [(np.full((4, 12), i, np.float32), np.zeros(4)) for i in range(4)]

    def read(model: ax.ModelHelper) -> None:
        with model.name_scope("input"):
            model.read(source, ["data", "label"])

    model = ax.parallelize_cpu(ax.ModelHelper("m"), read, mlp, optimizer_builder_fun=sgd, devices=[0, 1]).init().run()
    assert [model.blob("data", i)[0, 0] for i in (0, 1)] == [0, 1]


# --- B: found by running it ------------------------------------------------------------------------------------------


def test_row_b1_normalisations_side_by_side_have_statistics_of_their_own() -> None:
    model = build("combined", [0, 1])
    data, label = batches("combined")[0]
    model.feed("data", data)
    model.feed("label", label)
    model.run()
    for name, source in (("bn_left", "conv1"), ("bn_right", "conv2")):
        rows = np.concatenate([model.blob(source, i) for i in (0, 1)])
        np.testing.assert_allclose(model.blob(f"{name}_rm"), 0.1 * rows.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("devices", [[0, 1], [3, 1], [7, 2, 5, 0]])
def test_row_b2_uneven_batches_count_by_value(devices: list[int]) -> None:
    found, _ = train("combined, uneven", devices)
    alike(found, train("combined, uneven", [0])[0], devices)


def test_rows_b5_d16_the_length_of_a_gradient_counts_a_parameter_once() -> None:
    alike(train("clipped", [0, 1, 2])[0], train("clipped", [0])[0], "clipped")


def test_row_b6_checkpoints_of_shared_models_have_the_weights() -> None:
    held = build("shared", [1, 0]).checkpoint_params()
    assert {"cpu_1/fc1_w", "cpu_1/fc1_w_first_moment", "optimizer_iteration"} <= held.keys()


def test_row_b7_names_of_learning_rates_whatever_builds_the_update() -> None:
    model = fed(build("by hand", [0, 1])).run()
    assert model.learning_rate_blobs() == ["learning_rate_0.1_inv"]
    np.testing.assert_allclose(model.blob("learning_rate_0.1_inv"), [0.1 / 1.1], rtol=1e-6)
    model = fed(made().init()).run()
    assert [model.blob(name) for name in model.learning_rate_blobs()] == [np.float32(0.1)]


def test_row_b10_forward_only_models_run() -> None:
    model = fed(made(optimizer_builder_fun=None).init()).run(2)
    assert model.blob("softmax", 1).shape == (6, 4)


def test_row_b13_batches_that_do_not_divide_evenly() -> None:
    wanted = train("uneven", [0])[0]
    alike(train("uneven", range(4))[0], wanted, "by samples")
    with pytest.raises(AssertionError):
        alike(train("uneven", range(4), loss_weighting="devices")[0], wanted, "as Caffe2")


def test_row_b15_faults_are_named_when_the_model_is_built() -> None:
    def twice(model: ax.ModelHelper, _: float) -> Any:
        model.fc("data", "fc", 12, 4)
        return [model.fc("data", "fc", 12, 4)]

    def other(model: ax.ModelHelper, _: float) -> Any:
        return [model.fc("data", f"fc{model.device}", 12, 4)]

    with pytest.raises(ax.DeviceError, match="each device must be named once, but 0 is there 2 times"):
        made(devices=[0, 0])
    with pytest.raises(ax.ParallelizeError, match="the parameter 'cpu_0/fc_w' is made twice"):
        made(twice)
    with pytest.raises(ax.ParallelizeError, match="all devices must build the same parameters"):
        made(other)
    model = ax.ModelHelper("m")
    with model.name_scope("block"), pytest.raises(ax.ParallelizeError, match="outside of name scopes, but 'block' is open"):
        ax.parallelize_cpu(model, None, mlp, optimizer_builder_fun=sgd)


def test_row_b16_freed_blobs_say_so() -> None:
    model = fed(made(dynamic_memory_management=True, blobs_to_keep=["tanh1"]).init()).run()
    assert model.blob("tanh1").shape == (6, 16)
    with pytest.raises(ax.BlobFreedError, match="blobs_to_keep"):
        model.blob("fc1")


def test_row_b17_ideep_trains() -> None:
    model = ax.parallelize_ideep(ax.ModelHelper("m"), None, mlp, optimizer_builder_fun=sgd, devices=[0, 1]).init()
    first = fed(model).run().loss()
    assert model.run(50).loss() < first
    assert model.blob("ideep_1/fc1_w") is not None


def test_row_b18_sparse_gradients_on_processors() -> None:
    def net(model: ax.ModelHelper, loss_scale: float) -> Any:
        _, loss = model.softmax_with_loss(model.fc(model.gather("idx", "emb", 9, 5), "fc", 5, 4), "label")
        return [model.scale(loss, "scaled", loss_scale)]

    held = []
    for devices in ([0], [0, 1], [4, 2, 0]):
        ax.random.seed(1)
        model, rng = made(net, devices=devices).init(), np.random.default_rng(2)
        for _ in range(3):
            rows = rng.integers(0, 9, 12)
            model.feed("idx", rows)
            model.feed("label", rng.integers(0, 4, 12))
            model.run()
            np.testing.assert_array_equal(np.concatenate([model.blob("idx", i) for i in devices]), rows)  # as it was
        held.append({name: np.array(value) for name, value in model.master.params.items()})
    for found in held[1:]:
        alike(found, held[0], "table")


def test_row_b19_options_that_cannot_act_say_so() -> None:
    for options in ({"combine_spatial_bn": True}, {"use_nccl": True}):
        with pytest.raises(ax.ParallelizeError):
            made(optimizer_builder_fun=None, **options)
    with pytest.warns(UserWarning, match="blobs_to_keep means nothing here"):
        made(blobs_to_keep=["fc1"])
    with pytest.warns(UserWarning, match="there is no blob 'fc9'"):
        fed(made(dynamic_memory_management=True, blobs_to_keep=["fc9"]).init()).run()


def test_row_b20_adam_counts_from_one() -> None:
    for compat, step in ((False, 1), (True, 2)):
        ax.random.seed(1)
        model = made(convolutional, devices=[0], **built("adam", base_learning_rate=0.1, caffe2_compat=compat)).init()
        before, (data, label) = np.array(model.blob("fc_w")), batches("combined")[0]
        model.feed("data", data)
        model.feed("label", label)
        model.run()
        g = model.blob("fc_w_grad")
        rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        wanted = before - rate * 0.1 * g / (np.sqrt(0.001 * g * g) + 1e-8)
        np.testing.assert_allclose(model.blob("fc_w"), wanted, rtol=1e-5, atol=1e-6)
