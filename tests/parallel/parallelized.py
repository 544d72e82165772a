"""Models that `parallelize` trains on any devices and ranks with the same global batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

import arrayexec as ax

Arrays = dict[str, np.ndarray[Any, Any]]
STEPS = 6


def mlp(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    h = model.tanh(model.fc("data", "fc1", 12, 16), "tanh1")
    h = model.dropout(h, "drop1", 0.25)
    h = model.tanh(model.fc(h, "fc2", 16, 16), "tanh2")
    _, loss = model.softmax_with_loss(model.fc(h, "fc3", 16, 4), "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


def convolutional(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    """Two batch normalisations side by side (the branches of a residual block), then one behind another."""
    h = model.conv("data", "conv1", 1, 4, 3, pad=1, no_bias=True)
    left = model.spatial_bn(h, "bn_left", 4)
    right = model.spatial_bn(model.conv(h, "conv2", 4, 4, 1, no_bias=True), "bn_right", 4)
    h = model.relu(model.add([left, right], "joined"), "relu")
    h = model.spatial_bn(model.average_pool(h, "pool", 2, 2), "bn_last", 4)
    _, loss = model.softmax_with_loss(model.fc(h, "fc", 16, 4), "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


def by_hand(model: ax.ModelHelper) -> None:
    """Momentum SGD from Symbols."""
    rate = model.learning_rate(0.1, "inv", gamma=0.1)
    for param in model.get_params():
        moment = model.state(f"{param.name}_moment", param)
        moved = model.weighted_sum(moment, 0.9, model.param_to_grad[param.name], rate)
        model.assign(moment, moved)
        model.assign(param, model.weighted_sum(param, 1, moved, -1))


def built(kind: str, **options: Any) -> dict[str, Any]:
    return {"optimizer_builder_fun": lambda model: getattr(model, f"build_{kind}")(**options)}


# name: (net, rows of a global batch, options)
MODELS: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "sgd": (mlp, 24, built("sgd", base_learning_rate=0.2)),
    "momentum": (mlp, 24, built("sgd", base_learning_rate=0.1, momentum=0.9, nesterov=False, weight_decay=1e-2)),
    "nesterov": (mlp, 24, built("sgd", base_learning_rate=0.1, momentum=0.9, policy="poly", max_iter=8, power=2.0)),
    "clipped": (mlp, 24, built("sgd", base_learning_rate=0.5, momentum=0.5, max_gradient_norm=0.1)),
    "adam": (mlp, 24, built("adam", base_learning_rate=0.01, policy="multistep", boundaries=[2, 4], linear_warmup_num_iter=3, start_warmup_multiplier=0.1)),
    "adagrad": (mlp, 24, built("adagrad", base_learning_rate=0.05, weight_decay=1e-2)),
    "rms_prop": (mlp, 24, built("rms_prop", base_learning_rate=0.01, momentum=0.5)),
    "by hand": (mlp, 24, {"param_update_builder_fun": by_hand}),
    "uneven": (mlp, 27, {**built("sgd", base_learning_rate=0.2, momentum=0.9), "loss_weighting": "samples"}),
    "shared": (mlp, 24, {**built("adam", base_learning_rate=0.01), "shared_model": True}),
    "few in flight": (mlp, 24, {**built("sgd", base_learning_rate=0.2), "max_concurrent_distributed_ops": 1}),
    "combined": (convolutional, 24, {**built("sgd", base_learning_rate=0.1, momentum=0.9), "combine_spatial_bn": True}),
    "combined, uneven": (convolutional, 27, {**built("adam", base_learning_rate=0.01), "combine_spatial_bn": True, "loss_weighting": "samples"}),
    "gradient memory": (convolutional, 24, {**built("sgd", base_learning_rate=0.1), "combine_spatial_bn": True, "optimize_gradient_memory": True}),
    "dynamic memory": (convolutional, 24, {**built("sgd", base_learning_rate=0.1), "combine_spatial_bn": True, "dynamic_memory_management": True}),
}  # fmt: skip


def build(name: str, devices: Any, comm: Any = None, **more: Any) -> Any:
    """The model, started; ranks begin with different values, of which those of rank 0 count."""
    ax.random.seed(7)
    net, _, options = MODELS[name]
    model = ax.parallelize_cpu(ax.ModelHelper(name), None, net, devices=devices, rendezvous=comm, **{**options, **more})
    return model.init()


def batches(name: str) -> list[tuple[Any, Any]]:
    net, rows, _ = MODELS[name]
    rng = np.random.default_rng(5)
    shape = (12,) if net is mlp else (1, 4, 4)
    pairs = [(rng.normal(size=(rows, *shape)).astype(np.float32), rng.integers(0, 4, rows)) for _ in range(STEPS)]
    for data, _ in pairs:
        data[rows // 2 :] = data[rows // 2 :] * 2 + 1  # the parts are unlike each other
    return pairs


def train(name: str, devices: Any, comm: Any = None, **more: Any) -> tuple[Arrays, Any]:
    """Parameters, running statistics and the last loss after all steps; and the model."""
    model = build(name, devices, comm, **more)
    for data, label in batches(name):
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    held = {**model.master.params, **model.master.computed}
    return {key: np.array(value) for key, value in held.items()}, model


def train_in_parts(name: str, devices: Any, comm: Any = None, **more: Any) -> tuple[Arrays, Any]:
    """As `train`, each batch in three pieces whose gradients add up."""
    ax.random.seed(7)
    net, rows, options = MODELS[name]
    options = {**options, **more, "devices": devices, "rendezvous": comm}
    model = ax.parallelize_cpu(ax.ModelHelper(name), None, lambda m, scale: net(m, scale / 3), **options).init()
    for data, label in batches(name):
        for part in range(3):
            piece = slice(part * rows // 3, (part + 1) * rows // 3)
            model.feed("data", data[piece])
            model.feed("label", label[piece])
            with model.no_sync() if part < 2 else contextlib.nullcontext():
                model.run()
    return {key: np.array(value) for key, value in model.master.params.items()}, model


def alike(found: Arrays, wanted: Arrays, what: object, tolerance: float = 1e-5) -> None:
    """max |a - b| ≤ tolerance · max |b| of every array."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        worst = np.abs(found[name] - value).max()
        assert worst <= tolerance * np.abs(value).max(), (what, name, worst / np.abs(value).max())


def normalised(model: ax.ModelHelper, loss_scale: float) -> list[Any]:
    """A layer, a batch normalisation, a layer of 4 classes."""
    h = model.spatial_bn(model.fc("data", "fc1", 12, 8), "bn", 8)
    _, loss = model.softmax_with_loss(model.fc(h, "fc2", 8, 4), "label")
    return [model.scale(loss, "loss_scaled", loss_scale)]


def normalised_by_parts(start: Arrays, batches: Any, ranks: int, devices: int, rate: float) -> Arrays:
    """Plain NumPy: SGD on `normalised`, each part of a batch with its own statistics, parts weighing alike."""

    def cut(array: Any) -> list[Any]:
        return [part for own in np.array_split(array, ranks) for part in np.array_split(own, devices)]

    p = {name: value.astype(np.float64) for name, value in start.items()}
    for data, label in batches:
        total = {name: np.zeros_like(value) for name, value in p.items()}
        for x, y in zip(cut(data.astype(np.float64)), cut(label), strict=True):
            h = x @ p["fc1_w"].T + p["fc1_b"]
            deviation = np.sqrt(h.var(axis=0) + 1e-5)
            n = (h - h.mean(axis=0)) / deviation
            out = n * p["bn_s"] + p["bn_b"]
            score = out @ p["fc2_w"].T + p["fc2_b"]
            chance = np.exp(score - score.max(axis=1, keepdims=True))
            dscore = (chance / chance.sum(axis=1, keepdims=True) - np.eye(4)[y]) / len(x) / (ranks * devices)
            dout = dscore @ p["fc2_w"]
            dn = dout * p["bn_s"]
            dh = (dn - dn.mean(axis=0) - n * (dn * n).mean(axis=0)) / deviation
            for name, gradient in {
                "fc2_w": dscore.T @ out, "fc2_b": dscore.sum(axis=0), "bn_s": (dout * n).sum(axis=0),
                "bn_b": dout.sum(axis=0), "fc1_w": dh.T @ x, "fc1_b": dh.sum(axis=0),
            }.items():  # fmt: skip
                total[name] += gradient
        for name in p:
            p[name] -= rate * total[name]
    return p


def check_parts(devices: int, comm: Any = None) -> None:
    """Train `normalised` without combining, on uneven batches, and compare with plain NumPy."""
    rng = np.random.default_rng(8)
    given = [(rng.normal(size=(22, 12)).astype(np.float32), rng.integers(0, 4, 22)) for _ in range(STEPS)]
    options = built("sgd", base_learning_rate=0.3)
    model = ax.parallelize_cpu(ax.ModelHelper("parts"), None, normalised, devices=range(devices), rendezvous=comm, **options).init()
    start = {name: np.array(value) for name, value in model.master.params.items()}
    for data, label in given:
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    wanted = normalised_by_parts(start, given, comm.size if comm is not None else 1, devices, 0.3)
    for name, value in wanted.items():
        if name != "fc1_b":  # the normalisation takes it out: its gradient is rounding
            worst = np.abs(model.blob(name) - value).max()
            assert worst <= 2e-5 * np.abs(value).max(), (name, worst)
