"""The contract on settings that nobody chose: attributes and shapes drawn at random, a few in every run, many in the long tier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from arrayexec.registry import Sample
from arrayexec.testing import check_op

Draw = Callable[[random.Random], dict[str, Any]]
VARIANTS: dict[str, Draw] = {}


def variant(*names: str) -> Callable[[Draw], Draw]:
    """Register a function that draws an example for these operators."""

    def register(draw: Draw) -> Draw:
        VARIANTS.update(dict.fromkeys(names, draw))
        return draw

    return register


def shape(r: random.Random, least: int, most: int, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(r.randint(low, high) for _ in range(r.randint(least, most)))


def axis_of(r: random.Random, rank: int) -> int:
    return r.randrange(-rank, rank)


@variant("Convolution")
def convolution(r: random.Random) -> dict[str, Any]:
    dims, groups = r.randint(1, 3), r.choice([1, 1, 2, 3])
    kernel, dilate = shape(r, dims, dims, 1, 3), shape(r, dims, dims, 1, 2)
    pad = shape(r, dims, dims, 0, 2)
    least = [d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilate, pad, strict=True)]
    places = tuple(max(r.randint(3, 6), size) for size in least)
    return {
        "data": (r.randint(1, 3), groups * r.randint(1, 2), *places), "num_filter": groups * r.randint(1, 2),
        "kernel": kernel, "dilate": dilate, "pad": pad, "stride": shape(r, dims, dims, 1, 3), "num_group": groups,
        "no_bias": r.random() < 0.5,
    }  # fmt: skip


@variant("Pooling")
def pooling(r: random.Random) -> dict[str, Any]:
    dims = r.randint(1, 3)
    kernel = shape(r, dims, dims, 1, 3)
    example = {
        "data": Sample((*shape(r, 2, 2, 1, 2), *shape(r, dims, dims, 3, 6)), 0.1, 2.0), "kernel": kernel,
        "pad": tuple(r.randrange(k) for k in kernel), "stride": shape(r, dims, dims, 1, 3),
        "pool_type": r.choice(["max", "avg", "sum", "lp"]),
    }  # fmt: skip
    if example["pool_type"] == "lp":
        example["p_value"] = r.randint(1, 3)
    if example["pool_type"] == "avg":
        example["count_include_pad"] = r.random() < 0.5
        example["pooling_convention"] = r.choice(["valid", "full"])
    return example


@variant("BatchNorm")
def batch_norm(r: random.Random) -> dict[str, Any]:
    data = shape(r, 2, 4, 2, 4)
    axis = r.randint(1, len(data) - 1)
    flags = {name: r.random() < 0.5 for name in ("fix_gamma", "use_global_stats", "output_mean_var")}
    return {"data": data, "axis": r.choice([axis, axis - len(data)]), "eps": 1e-3, "momentum": 0.7, **flags}


@variant("sum", "mean", "prod", "max", "min", "nansum", "nanprod")
def reduction(r: random.Random) -> dict[str, Any]:
    data = shape(r, 1, 4)
    axes = r.sample(range(len(data)), r.randint(1, len(data)))
    exclude = r.random() < 0.5 and len(axes) < len(data)
    signed = tuple(axis - r.choice([0, len(data)]) for axis in axes)
    return {"data": Sample(data, 0.3, 2.0), "axis": signed, "keepdims": r.random() < 0.5, "exclude": exclude}


@variant("broadcast_add", "broadcast_mul", "broadcast_div", "broadcast_power", "broadcast_maximum", "broadcast_hypot")
def broadcast(r: random.Random) -> dict[str, Any]:
    full = shape(r, 1, 4, 1, 3)
    left, right = (tuple(r.choice([1, dim, dim]) for dim in full) for _ in range(2))
    return {"lhs": Sample(left, 0.5, 2.0), "rhs": Sample(right, 0.5, 2.0)}


@variant("SoftmaxOutput")
def softmax_output(r: random.Random) -> dict[str, Any]:
    rows, classes = r.randint(1, 4), r.randint(2, 4)
    where, data, label = r.choice(
        [
            ({}, (rows, classes), (rows,)),
            ({"multi_output": True}, (rows, classes, 2, 3), (rows, 6)),
            ({"preserve_shape": True}, (rows, 3, classes), (rows, 3)),
        ]
    )
    return {
        **where, "data": data, "label": Sample(label, -1, classes, True), "grad_scale": 2.0,
        "normalization": r.choice(["null", "batch", "valid"]), "use_ignore": r.random() < 0.5,
        "ignore_label": float(r.randint(-1, 1)), "smooth_alpha": r.choice([0.0, 0.1]),
    }  # fmt: skip


@variant("FullyConnected")
def fully_connected(r: random.Random) -> dict[str, Any]:
    flags = {name: r.random() < 0.5 for name in ("no_bias", "flatten")}
    return {"data": shape(r, 2, 4), "num_hidden": r.randint(1, 4), **flags}


@variant("Embedding")
def embedding(r: random.Random) -> dict[str, Any]:
    return {"data": Sample(shape(r, 1, 3), -2, 7, True), "input_dim": r.randint(1, 5), "output_dim": r.randint(1, 3)}


@variant("transpose")
def transpose(r: random.Random) -> dict[str, Any]:
    data = shape(r, 1, 4)
    return {"data": data, "axes": tuple(r.sample(range(len(data)), len(data)))}


@variant("slice_axis")
def slice_axis(r: random.Random) -> dict[str, Any]:
    data = shape(r, 1, 3, 2, 5)
    axis = axis_of(r, len(data))
    begin = r.randrange(data[axis])
    end = r.randint(begin + 1, data[axis])
    ends = [end, None] if end == data[axis] else [end, end - data[axis]]
    return {"data": data, "axis": axis, "begin": r.choice([begin, begin - data[axis]]), "end": r.choice(ends)}


@variant("dot")
def dot(r: random.Random) -> dict[str, Any]:
    inner = r.randint(1, 4)
    return {"lhs": (*shape(r, 0, 2, 1, 3), inner), "rhs": (inner, *shape(r, 0, 2, 1, 3))}


@variant("Concat")
def concat(r: random.Random) -> dict[str, Any]:
    whole = list(shape(r, 1, 3, 1, 3))
    count, axis = r.randint(1, 4), axis_of(r, len(whole))
    parts = {}
    for number in range(count):
        whole[axis] = r.randint(1, 3)
        parts[f"arg{number}"] = tuple(whole)
    return {"num_args": count, "dim": axis, **parts}


@variant("softmax", "log_softmax", "softmin")
def softmax(r: random.Random) -> dict[str, Any]:
    data = shape(r, 1, 4)
    return {"data": data, "axis": axis_of(r, len(data)), "temperature": r.choice([0.5, 2.0])}


@variant("Dropout")
def dropout(r: random.Random) -> dict[str, Any]:
    data = shape(r, 1, 3, 1, 5)
    axes = tuple(sorted(r.sample(range(len(data)), r.randint(0, len(data)))))
    return {"data": data, "p": r.choice([0.2, 0.7]), "axes": axes}


@variant("LeakyReLU")
def leaky_relu(r: random.Random) -> dict[str, Any]:
    return {"data": shape(r, 2, 4), "act_type": r.choice(["leaky", "elu", "prelu", "gelu", "rrelu"])}


@variant("pick")
def pick(r: random.Random) -> dict[str, Any]:
    data, keepdims = shape(r, 2, 3, 2, 4), r.random() < 0.5
    axis = r.randrange(len(data))
    index = data[:axis] + ((1,) if keepdims else ()) + data[axis + 1 :]
    options = {"axis": r.choice([axis, axis - len(data)]), "keepdims": keepdims, "mode": r.choice(["clip", "wrap"])}
    return {"data": data, "index": Sample(index, -2, 5, True), **options}


def check(name: str, rounds: range) -> None:
    for number in rounds:
        example = VARIANTS[name](random.Random(f"{name} {number}"))
        check_op(name, example, derivative=name != "SoftmaxOutput")


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str) -> None:
    check(name, range(1))


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_many_variants(name: str) -> None:
    check(name, range(1, 40))
