"""What `parallelize` and its models refuse: whole texts. The rows of Caffe2's error_table.txt stand in ``TABLE``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.comm.local import LocalCommunicator
from arrayexec.parallel.predictor import convert_net_for_device, extract_predictor_net
from arrayexec.train.model_optimizer import ModelOptimizer, Sgd, policy
from tests.errors.recorder import PACKAGE, Recorder, checks_of

MODULES = (
    "parallel/bmuf.py", "parallel/data_parallel_model.py", "parallel/device_net.py", "parallel/feeding.py",
    "parallel/model_checks.py", "parallel/model_state.py", "parallel/parallel_model.py", "parallel/predictor.py",
    "train/model_helper.py", "train/model_optimizer.py",
)  # fmt: skip
recorder = Recorder(
    Path(__file__).with_name("texts_parallelize.txt"),
    [PACKAGE / name for name in MODULES],
    elsewhere={
        "parallel/model_checks.py": {
            "call it outside of GPU scopes": "tests/errors/test_parallelize_errors.py::test_gpu_scopes_and_numbers",
            "is none of the ranks": "tests/parallel/test_rank_groups.py::test_models_of_some_of_the_ranks",
            "the GPUs are 0 to": "tests/errors/test_parallelize_errors.py::test_gpu_scopes_and_numbers",
        },
        "parallel/parallel_model.py": {
            "raise error": "tests/parallel/test_parallelize.py::test_an_exception_on_a_device_says_which",
            "raise StopIteration": "tests/parallel/test_parallelize_ranks.py::test_readers_that_end_at_different_times",
        },
    },
)
case = recorder.case


def net(model: ax.ModelHelper, loss_scale: float) -> Any:
    _, loss = model.softmax_with_loss(model.fc("data", "fc", 3, 2), "label")
    return [model.scale(loss, "scaled", loss_scale)]


def other_parameters(model: ax.ModelHelper, loss_scale: float) -> Any:
    """On one device a layer has two weights of which the loss needs one, on the other its twin."""
    weights = [model.create_param(name, (2, 3)) for name in ("one", "two")]
    h = model.make("FullyConnected", "fc", "data", weight=weights[model.device or 0], num_hidden=2, no_bias=True)
    return [model.scale(model.softmax_with_loss(h, "label")[1], "scaled", loss_scale)]


def other_statistics(model: ax.ModelHelper, loss_scale: float) -> Any:
    """Two normalisations, one after the other in another order on each device."""
    h = model.fc("data", "fc", 3, 2)
    for name in ("one", "two") if model.device else ("two", "one"):
        h = model.spatial_bn(h, name, 2)
    return [model.scale(model.softmax_with_loss(h, "label")[1], "scaled", loss_scale)]


def sgd(model: ax.ModelHelper) -> Any:
    return model.build_sgd(0.1)


def nothing(model: ax.ModelHelper) -> None:
    return None


def make(forward: Any = net, model: Any = None, **options: Any) -> Any:
    given = {"optimizer_builder_fun": sgd, "cpu_device": True, "devices": [0, 1], **options}
    return ax.parallelize(model or ax.ModelHelper("m"), None, forward, **given)


def started(**options: Any) -> Any:
    model = make(**options).init()
    model.feed("data", np.ones((4, 3), np.float32))
    model.feed("label", np.zeros(4))
    return model


def no_gpu(**options: Any) -> Any:
    return ax.parallelize(ax.ModelHelper("m"), None, net, optimizer_builder_fun=sgd, **options)


# Rows of error_table.txt. What Caffe2 does without an error, and what this project allows, stands in ALLOWED.
TABLE: dict[str, Any] = {
    "both param_update and optimizer": lambda: make(param_update_builder_fun=nothing),
    "losses not a list (single blob)": lambda: make(lambda model, scale: net(model, scale)[0]),
    "losses list of str": lambda: make(lambda model, scale: [net(model, scale)[0].name]),
    "losses None": lambda: make(lambda model, scale: (net(model, scale), None)[1]),
    "empty losses list": lambda: make(lambda model, scale: (net(model, scale), [])[1]),
    "devices empty": lambda: make(devices=[]),
    "devices duplicate [0,0]": lambda: make(devices=[0, 0]),
    "shared_model on GPU": lambda: no_gpu(shared_model=True),
    "GPU requested, none present: build": lambda: no_gpu(),
    "opt_grad_mem + dynamic": lambda: make(optimize_gradient_memory=True, dynamic_memory_management=True),
    "combine_bn without update": lambda: make(optimizer_builder_fun=None, combine_spatial_bn=True),
    "not a ModelHelper": lambda: make(model=object()),
    "called inside a name scope": lambda: in_scope(),
    "twice on the same model": lambda: twice(),
    "duplicate params": lambda: make(lambda model, scale: (net(model, scale), net(model, scale))[1]),
    "devices build different params": lambda: make(different),
    "AddBlobSync with prefixed name": lambda: started().add_blob_sync(["cpu_0/fc_w"]),
    "RunWarmup without warmup": lambda: blocks().init().warmup(),
    "RunNet before init": lambda: make().run(),
    "BMUF no update fun (None)": lambda: ax.parallelize_bmuf(ax.ModelHelper("m"), None, net, None, cpu_device=True),
    "ConvertNetForDevice outside device scope": lambda: convert_net_for_device("net"),  # type: ignore[arg-type]
    "dynamic memory, keep=None": lambda: started(dynamic_memory_management=True).run().blob("fc"),
    "net_type unknown": lambda: make(net_type="daq"),
    "rendezvous missing num_shards": lambda: make(rendezvous={"engine": "mpi", "shard_id": 0}),
    "rendezvous unknown engine": lambda: make(rendezvous={"engine": "GLOW", "num_shards": 1, "shard_id": 0}),
    "max_concurrent=0 with 2 shards": lambda: make(max_concurrent_distributed_ops=0),
    "GetLearningRateBlobNames, optimizer fn returned None": lambda: make(optimizer_builder_fun=nothing),
}
recorder.cases(**{name.replace(":", ""): call for name, call in TABLE.items()})

ALLOWED = {
    "no update, init_params=True (warn only)", "losses tuple", "devices [2,5]", "devices None on cpu",
    "GPU requested, none present: RunInitNet",  # refused at the build
    "shared_model + rendezvous", "combine_bn devices [1,2]", "combine_bn uneven graph per device",
    "called inside CUDA device scope",  # test_gpu_scopes_and_numbers
    "called inside CPU device scope", "param without device namescope", "param not created by init net",
    "param existing before Parallelize, without gradient", "sparse gradient, 1 CPU device", "sparse gradient, 2 CPU devices",
    "AddBlobSync with name that begins with 'cpu'", "AddBlobSync []", "GetLearningRateBlobNames, optimizer",
    "GetLearningRateBlobNames, param_update path", "Synchronize single host", "BMUF devices None on CPU",
    "Parallelize_CPU returns", "ConvertNetForDevice RecurrentNetwork", "ConvertNetForDevice ok",
    "FinalizeAfterCheckpoint cpu_mode=True", "FinalizeAfterCheckpoint cpu_mode=False on CPU model",
    "dynamic memory, keep=[loss, relu1]", "blobs_to_keep unknown blob", "blobs_to_keep without dynamic memory",
    "max_concurrent_distributed_ops=0 single host",  # refused, as with 2 shards
    "num_threads_per_device=1, 1 device -> num_workers", "uneven per-device batch runs", "1 device x 1 thread with 2 shards",
}  # fmt: skip


def in_scope() -> None:
    model = ax.ModelHelper("m")
    with model.name_scope("block"):
        make(model=model)


def twice() -> None:
    model = ax.ModelHelper("m")
    make(model=model)
    make(model=model)


def different(model: ax.ModelHelper, loss_scale: float) -> Any:
    if model.device == 1:
        model.create_param("extra_w", (2,))
    return net(model, loss_scale)


def blocks(**options: Any) -> Any:
    given = {"optimizer_builder_fun": sgd, "cpu_device": True, "devices": [0, 1], **options}
    return ax.parallelize_bmuf(ax.ModelHelper("m"), None, net, **given)


recorder.cases(
    losses_of_another_kind=lambda: make(lambda model, scale: 3),
    nothing_was_built=lambda: make(lambda model, scale: None, optimizer_builder_fun=None),
    forward_builder_is_none=lambda: make(None),
    input_builder_is_a_list=lambda: ax.parallelize(ax.ModelHelper("m"), [], net, cpu_device=True),  # type: ignore[arg-type]
    device_of_another_kind=lambda: make(devices=[0, "1"]),
    devices_are_a_text=lambda: make(devices="01"),
    device_below_zero=lambda: make(devices=[0, -1]),
    rendezvous_of_another_kind=lambda: make(rendezvous=4),
    rendezvous_key_nobody_knows=lambda: make(rendezvous={"engine": "mpi", "num_shards": 1, "shard_ids": 0}),
    rendezvous_of_another_size=lambda: make(rendezvous={"engine": "mpi", "num_shards": 2, "shard_id": 0, "comm": LocalCommunicator()}),
    rendezvous_of_another_rank=lambda: make(rendezvous={"engine": "MPI", "num_shards": 1, "shard_id": 1}),
    broadcast_of_another_kind=lambda: make(broadcast_computed_params="mean"),
    combine_of_another_kind=lambda: make(combine_spatial_bn="hosts"),
    nccl_on_processors=lambda: make(use_nccl=True),
    weighting_of_another_kind=lambda: make(loss_weighting="rows"),
    adding_without_sums=lambda: blocks().no_sync().__enter__(),
    uneven_of_another_kind=lambda: make(uneven="skip"),
    transport_of_another_kind=lambda: make(transport="float8"),
    sharded_of_another_kind=lambda: make(sharded_update="zero"),
    sharded_with_a_length=lambda: make(sharded_update=True, optimizer_builder_fun=lambda model: model.build_sgd(0.1, max_gradient_norm=1.0)),
    threads_of_another_kind=lambda: make(num_threads_per_device=0),
    timeout_of_another_kind=lambda: make(barrier_net_timeout_sec=0),
    keep_is_a_text=lambda: make(dynamic_memory_management=True, blobs_to_keep="loss"),
    transformer_for_a_device_nobody_has=lambda: make(net_transformer_fun=lambda model, *_: {"cpu_2": model.nets["cpu_0"].graph}),
    transformer_gives_no_graphs=lambda: make(net_transformer_fun=lambda *_: {"cpu_0": "graph"}),
    option_that_is_no_switch=lambda: make(shared_model="yes"),
    net_type_of_another_kind=lambda: make(net_type=["dag"]),
    devices_that_train_other_parameters=lambda: make(other_parameters),
    devices_that_combine_other_statistics=lambda: make(other_statistics, combine_spatial_bn=True),
    second_start=lambda: started().init(),
    run_of_no_number=lambda: started().run(1.5),
    memory_of_a_stranger=lambda: started().run().optimize_gradient_memory(excluded_blobs=["fd"]),
    feed_of_no_input=lambda: started().feed("date", np.ones((4, 3))),
    feed_of_a_number=lambda: started().feed("data", 3.0),
    feed_of_too_few_rows=lambda: started().feed("data", np.ones((1, 3))),
    run_without_values=lambda: make().init().run(),
    blob_nobody_has=lambda: started().run().blob("fc_v"),
    blob_of_a_device_nobody_has=lambda: started().run().blob("fc", 2),
    blob_before_init=lambda: make().blob("fc_w"),
    blob_before_a_step=lambda: started().blob("fc"),
    plan_before_a_step=lambda: started().plan,
    set_params_of_a_stranger=lambda: started().set_params({"fw_w": 3}),
    sync_in_an_unknown_way=lambda: started().add_blob_sync(["fc_w"], "max"),
    sync_of_a_stranger=lambda: started().add_blob_sync(["cpu_temp"]),
    shapes_for_memory=lambda: make().init().optimize_gradient_memory(),
    predictor_of_a_stranger=lambda: extract_predictor_net(started(), ["data"], ["fd"]),
    predictor_with_too_few_inputs=lambda: extract_predictor_net(started(), ["data"], ["loss"]),
    warmup_of_a_model_without_blocks=lambda: started().warmup(),
    block_momentum_is_a_text=lambda: blocks(block_momentum="0.5"),
    master_is_no_device=lambda: blocks(master_device=4),
    policy_nobody_knows=lambda: policy(0.1, "steps"),
    policy_rate_text=lambda: policy("0.1"),  # type: ignore[arg-type]
    policy_without_an_option=lambda: policy(0.1, "step"),
    policy_with_an_option_of_another=lambda: policy(0.1, "step", stepsize=2, power=3),
    aggregator_nobody_knows=lambda: Sgd(rate=policy(0.1), sparse_dedup_aggregator="mean"),
    blob_of_another_kind=lambda: ax.ModelHelper("m").relu(3, "relu"),
    param_nobody_made=lambda: ax.ModelHelper("m").param("fc_w"),
)  # fmt: skip


@case
def rule_that_is_missing() -> None:
    optimizer = ModelOptimizer(policy(0.1))
    optimizer.apply(ax.cpu(), 1, np.ones(3), np.ones(3), {}, 0.1)


@case
def assigned_from_a_stranger() -> None:
    def update(model: ax.ModelHelper) -> None:
        model.assign(model.param("fc_w"), ax.sym.Variable("fc_x"))

    started(optimizer_builder_fun=None, param_update_builder_fun=update).run()


@case
def shares_with_a_model_that_has_nothing_yet() -> None:
    other = ax.ModelHelper("trained")
    make(model=ax.ModelHelper("m", shares=other), optimizer_builder_fun=None).init()


@case
def shares_what_is_not_there() -> None:
    other = ax.ModelHelper("trained")
    make(model=other).init()
    make(lambda model, scale: (model.fc("data", "fd", 3, 2), None)[1], ax.ModelHelper("m", shares=other), optimizer_builder_fun=None).init()


@case
def shares_what_has_another_shape() -> None:
    other = ax.ModelHelper("trained")
    make(model=other).init()
    make(lambda model, scale: (model.fc("data", "fc", 3, 4), None)[1], ax.ModelHelper("m", shares=other), optimizer_builder_fun=None).init()


@case
def replicas_that_differ() -> None:
    model = started().run()
    for device, values in ((0, 0.5), (1, 0.25)):
        model.blob("fc_w", device)[...] = values
    model.check_consistency()


@case
def checkpoint_without_a_parameter() -> None:
    ax.nd.save("some.npz", {"cpu_0/fc_b": np.ones(2), "optimizer_iteration": np.ones(1)})
    started().load("some.npz")


@case
def checkpoint_of_another_shape() -> None:
    ax.nd.save("some.npz", {"cpu_0/fc_b": np.ones(3), "cpu_0/fc_w": np.ones((2, 3)), "optimizer_iteration": np.ones(1)})
    started().load("some.npz")


def run() -> dict[str, BaseException]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return recorder.run()


found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached, test_what_is_held_elsewhere_is_there = checks_of(recorder, run)


def test_the_whole_table_is_here() -> None:
    rows = (Path(__file__).parents[1] / "conformance" / "caffe2" / "error_table.txt").read_text().splitlines()
    names = {row.split(" | ")[0].strip() for row in rows if " | " in row}
    assert names == TABLE.keys() | ALLOWED


def test_gpu_scopes_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with ax.gpu(0), pytest.raises(ax.ParallelizeError) as error:
        make()
    assert str(error.value) == "parallelize: call it outside of GPU scopes, but gpu(0) is open: every net has its own device"
    from arrayexec.parallel import model_checks

    monkeypatch.setattr(model_checks, "num_gpus", lambda: 2)
    with pytest.raises(ax.DeviceError) as other:
        no_gpu(devices=[1, 2])
    assert str(other.value) == "parallelize: device 2 is not there: the GPUs are 0 to 1"


def test_words_that_mean_nothing_are_warned_of() -> None:
    given = {"engine": "GLOO", "num_shards": 1, "shard_id": 0, "kv_handler": None}
    with pytest.warns(UserWarning, match="'kv_handler' means nothing here: ranks meet over MPI"):
        assert make(rendezvous=given).comm is None


def test_nothing_is_built_before_all_arguments_are_checked() -> None:
    def forward(model: ax.ModelHelper, loss_scale: float) -> Any:
        raise AssertionError

    for options in ({"devices": [0, 0]}, {"net_type": "x"}, {"rendezvous": 3}, {"loss_weighting": 1}, {"blobs_to_keep": 3}):
        with pytest.raises(ax.ParallelizeError):
            make(forward, **options)


def test_what_caffe2_refuses_and_this_allows() -> None:
    assert started(devices=[2, 5]).run().options.prefixes == ("cpu_2", "cpu_5")
    assert started(forward=lambda model, scale: tuple(net(model, scale))).run().iteration == 1
    assert len(make(devices=None).devices) >= 1
    with ax.cpu(3):
        started().run()
    model = ax.ModelHelper("m")
    model.create_param("global_w", (2,), ax.init.Constant(2.0))
    assert started(model=model).run().blob("global_w").tolist() == [2, 2]
    assert started(rendezvous=LocalCommunicator(), shared_model=True).run().iteration == 1
    assert len(blocks(devices=None).devices) >= 1
    by_hand = make(optimizer_builder_fun=None, param_update_builder_fun=nothing)
    assert by_hand.learning_rate_blobs() == []
