"""Trainings recorded from Caffe2, replayed through `parallelize`: every parameter after every step, losses, blobs.

Not replayed elsewhere: ``hooks_order.txt`` and ``error_table.txt`` are the lists of tests/parallel/test_parallelize.py and
tests/errors/test_parallelize_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.parallel.parallel_model import ParallelModel

RECORDED = Path(__file__).parent / "caffe2"
RTOL = 2e-5
Trace = Mapping[str, np.ndarray[Any, Any]]


def load(name: str) -> Trace:
    with np.load(RECORDED / f"{name}.npz") as archive:
        return dict(archive)


def mlp(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    """12 → 16 → 16 → 4."""
    h: Any = "data"
    for number, (inputs, outputs) in enumerate([(12, 16), (16, 16), (16, 4)], 1):
        h = model.fc(h, f"fc{number}", inputs, outputs)
        h = model.relu(h, f"relu{number}") if number < 3 else h
    _, loss = model.softmax_with_loss(h, "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


def conv(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    """Convolution, batch normalisation, pooling, a layer of 5 classes."""
    h = model.conv("data", "conv1", 3, 6, 3, pad=1)
    h = model.spatial_bn(h, "bn1", 6, epsilon=1e-3, momentum=0.9)
    h = model.max_pool(model.relu(h, "relu1"), "pool1", 2, 2)
    _, loss = model.softmax_with_loss(model.fc(h, "fc", 96, 5), "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


def momentum(rate: float) -> Callable[[ax.ModelHelper], Any]:
    return lambda model: model.build_sgd(rate, momentum=0.9, nesterov=False)


def clipped(model: ax.ModelHelper) -> Any:
    return model.build_sgd(0.5, policy="step", stepsize=3, gamma=0.5, max_gradient_norm=0.5)


def decayed_by_hand(model: ax.ModelHelper) -> None:
    """Weight decay on weights, then a step of SGD."""
    rate = model.learning_rate(-0.2, "step", stepsize=4, gamma=0.5)
    for param in model.get_params():
        gradient = model.param_to_grad[param.name]
        if param.name.endswith("_w"):
            gradient = model.weighted_sum(gradient, 1, param, 1e-2)
        model.assign(param, model.weighted_sum(param, 1, gradient, rate))


def decayed(model: ax.ModelHelper) -> Any:
    model.add_weight_decay(1e-2)
    return model.build_sgd(0.2, policy="step", stepsize=4, gamma=0.5)


PLAIN = {"optimizer_builder_fun": lambda model: model.build_sgd(0.1)}
MOMENTUM = {"optimizer_builder_fun": momentum(0.1)}
BN = {"optimizer_builder_fun": momentum(0.05)}
BY_HAND = {"param_update_builder_fun": decayed_by_hand}
CLIPPED = {"optimizer_builder_fun": clipped}
ADAM = {"optimizer_builder_fun": lambda model: model.build_adam(0.01, caffe2_compat=True)}

CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    **{f"plain, {n} devices": (f"a_mlp_plain_dev{n}", mlp, {**PLAIN, "devices": range(n)}) for n in (1, 2, 4)},
    **{f"momentum, {n} devices": (f"a_mlp_mom_dev{n}", mlp, {**MOMENTUM, "devices": range(n)}) for n in (1, 2, 4)},
    "Adam from t = 2": ("a_mlp_adam_dev1", mlp, {**ADAM, "devices": [0]}),
    **{f"clipped on {ids}": ("a_mlp_clip_step_dev1", mlp, {**CLIPPED, "devices": ids}) for ids in ([0], [4, 1], [0, 2, 3, 1])},
    "bn": ("b_bn_dev1", conv, {**BN, "devices": [0]}),
    "bn, combined with itself": ("b_bn_dev1_combine1", conv, {**BN, "devices": [0], "combine_spatial_bn": True}),
    **{
        f"bn, combined {c}, broadcast {b}, devices {ids}": (
            f"b_bn_dev2_combine{int(c)}_bcast{int(b)}", conv,
            {**BN, "devices": ids, "combine_spatial_bn": c, "broadcast_computed_params": b},
        )
        for c in (False, True) for b in (False, True) for ids in ([0, 1], [7, 3])
    },
    "shared": ("c_shared_dev2", mlp, {**MOMENTUM, "devices": [0, 1], "shared_model": True}),
    **{
        f"shared bn, combined {c}": (
            f"c_shared_bn_dev2_combine{int(c)}", conv,
            {**BN, "devices": [0, 1], "shared_model": True, "combine_spatial_bn": c},
        )
        for c in (False, True)
    },
    **{f"by hand, {n} devices": (f"d_wd_param_update_dev{n}", mlp, {**BY_HAND, "devices": range(n)}) for n in (1, 2)},
    "weight decay of build_sgd": ("d_wd_param_update_dev2", mlp, {"optimizer_builder_fun": decayed, "devices": [0, 1]}),
    "uneven on one device": ("e_uneven_dev1", mlp, {**PLAIN, "devices": [0]}),
    "uneven by samples": ("e_uneven_dev1", mlp, {**PLAIN, "devices": range(4), "loss_weighting": "samples"}),
    "memonger": (
        "m_mlp_memonger_dev2", mlp, {**MOMENTUM, "devices": [0, 1], "optimize_gradient_memory": True}
    ),
    "dynamic memory": (
        "m_mlp_dynamic_dev2", mlp,
        {**MOMENTUM, "devices": [0, 1], "dynamic_memory_management": True, "blobs_to_keep": ["loss"]},
    ),
    "one shard as two devices": ("h_gloo_2shards_x1dev", mlp, {**MOMENTUM, "devices": [0, 1]}),
    "two shards as four devices": ("h_gloo_2shards_x2dev", mlp, {**MOMENTUM, "devices": range(4)}),
}  # fmt: skip

# Caffe2's momentum overwrites the gradient.
SAME = {"bn1_s_grad": "bn1_s_momentum", "bn1_b_grad": "bn1_b_momentum"}


def start(trace: Trace, builder: Any, **options: Any) -> Any:
    model = ax.parallelize_cpu(ax.ModelHelper("recorded"), None, builder, **options).init()
    model.set_params({key[5:]: value for key, value in trace.items() if key.startswith("init_")})
    return model


def steps(trace: Trace, model: Any) -> Iterator[int]:
    for number, (data, label) in enumerate(zip(trace["in_data"], trace["in_label"], strict=True)):
        model.feed("data", data)
        model.feed("label", label)
        model.run()
        yield number


def near(found: Any, wanted: Any, what: object) -> None:
    """Within 2e-5 of the largest value."""
    worst = np.abs(np.asarray(found, np.float64) - wanted).max()
    assert worst <= RTOL * max(np.abs(wanted).max(), 1e-2), (what, worst)


@pytest.mark.parametrize("net_type", ["dag", "simple"])
@pytest.mark.parametrize("case", CASES)
def test_training(case: str, net_type: str) -> None:
    name, builder, options = CASES[case]
    trace = load(name)
    model = start(trace, builder, net_type=net_type, **options)
    devices = [int(prefix.rpartition("_")[2]) for prefix in model.options.prefixes]
    combined = options.get("combine_spatial_bn") and len(devices) > 1
    seen = 0
    for number in steps(trace, model):
        for key, wanted in trace.items():
            kind, _, blob = key.partition("_")
            if kind == "traj":
                for device in devices:
                    near(model.blob(blob, device), wanted[number], (key, number, device))
            elif kind == "iter":
                blob, _, place = blob.rpartition("_dev")
                if not (combined and blob == "bn1_sm"):  # its mean is in the moments
                    near(model.blob(SAME.get(blob, blob), devices[int(place)]), wanted[number], (key, number))
            else:
                continue
            seen += 1
        if "losses_per_device" in trace and len(devices) == trace["losses_per_device"].shape[1]:
            found = [float(model.blob("loss", device)[0]) for device in devices]
            near(found, trace["losses_per_device"][number], ("losses", number))
    assert seen >= 40
    for key, wanted in trace.items():
        if key.startswith(("final_", "end_cpu_0/")) and not key.endswith("grad"):
            near(model.blob(key.partition("_" if key.startswith("final_") else "/")[2]), wanted, key)


def test_every_trace_is_replayed() -> None:
    """All but the differences that Caffe2 itself had."""
    replayed = {name for name, _, _ in CASES.values()} | {f"f_bmuf_{name}" for name in BLOCKS}
    assert {path.stem for path in RECORDED.glob("*.npz")} - replayed - {f"s_sparse_{name}_dev1" for name in SPARSE} == {"e_equality"}


BLOCKS: dict[str, dict[str, Any]] = {
    "plain": PLAIN, "nesterov": {**PLAIN, "nesterov": True}, "reset_mom": {**MOMENTUM, "reset_momentum_sgd": True},
}  # fmt: skip


@pytest.mark.parametrize("master", [None, 4])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str, master: int | None) -> None:
    trace, options = load(f"f_bmuf_{name}"), BLOCKS[name]
    ids = [0, 1] if master is None else [4, 7]
    model = ax.parallelize_bmuf(ax.ModelHelper("recorded"), None, mlp, devices=sorted(ids, reverse=True) if master else ids, master_device=master, cpu_device=True, **options).init()
    model.set_params({key[5:]: value for key, value in trace.items() if key.startswith("init_")})
    model._take_block()
    params = [key[7:] for key in trace if key.startswith("global_")]
    for block in range(4):
        for step in range(3):
            number = 3 * block + step
            model.feed("data", trace["in_data"][number])
            model.feed("label", trace["in_label"][number])
            ParallelModel.run(model)
            near([float(model.blob("loss", i)[0]) for i in ids], trace["losses"][number], (name, number))
        for param in params:
            for place, device in enumerate(ids):
                near(model.blob(param, device), trace[f"local_{param}"][block, place], (name, block, param))
        model._block_step()
        for param in params:
            near(model.blob(f"{param}_v"), trace[f"vel_{param}"][block], (name, block, param))
            for device in ids:
                near(model.blob(param, device), trace[f"global_{param}"][block], (name, block, param))


ROWS = {"base_learning_rate": 0.3, "momentum": 0.9, "nesterov": False}
SPARSE: dict[str, dict[str, Any]] = {
    "sgd": {"base_learning_rate": 0.3}, "sgd_dedup": {**ROWS, "sparse_dedup_aggregator": "sum"},
    "momentum_nodedup": ROWS,
}  # fmt: skip


def embedding(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    """Rows of a table, a layer of 4 classes."""
    rows = model.gather("idx", "emb", 20, 6)
    _, loss = model.softmax_with_loss(model.fc(rows, "fc1", 6, 4), "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients(name: str, devices: int) -> None:
    trace = load(f"s_sparse_{name}_dev1")
    model = ax.parallelize_cpu(
        ax.ModelHelper("recorded"), None, embedding, devices=range(devices),
        optimizer_builder_fun=lambda model: model.build_sgd(**SPARSE[name]),
    ).init()  # fmt: skip
    model.set_params({{"emb": "emb_w"}.get(key[5:], key[5:]): value for key, value in trace.items() if key.startswith("init_")})
    for number, (idx, label) in enumerate(zip(trace["in_idx"], trace["in_label"], strict=True)):
        model.feed("idx", idx)
        model.feed("label", label)
        model.run()
        for device in range(devices):
            near(model.blob("emb_w", device), trace["traj_emb"][number], (name, number))
            near(model.blob("fc1_w", device), trace["traj_fc1_w"][number], (name, number))
    if "end_cpu_0/emb_momentum" in trace:
        near(model.blob("emb_w_momentum"), trace["end_cpu_0/emb_momentum"], name)


def test_memory_options_change_no_bit() -> None:
    trace = load("m_mlp_dynamic_dev2")
    found: list[dict[str, Any]] = []
    for option in ({}, {"optimize_gradient_memory": True}, {"dynamic_memory_management": True}):
        model = start(trace, mlp, **MOMENTUM, devices=[0, 1], **option)
        for _ in steps(trace, model):
            pass
        found.append({key[5:]: np.array(model.blob(key[5:])) for key in trace if key.startswith("traj_")})
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
