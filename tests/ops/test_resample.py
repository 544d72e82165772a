"""Up-sampling and exchanging channels with places: one value after the other; what their shapes say."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from arrayexec.registry import make_op
from tests.ops.runs import close, run, shapes_of, uniform

Array = Any


@pytest.mark.parametrize("mode", ["concat", "sum"])
def test_nearest_repeats_every_value(mode: str) -> None:
    shapes = [(2, 3, 2, 1), (2, 3, 6, 3), (2, 3, 1, 3)]
    arrays = [uniform(shape, seed) for seed, shape in enumerate(shapes)]
    out = np.zeros((2, 9 if mode == "concat" else 3, 6, 3))
    head = uniform(out.shape, 9)
    gradients = [np.zeros(shape) for shape in shapes]
    for k, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        for n, c, y, x in product(range(2), range(3), range(6), range(3)):
            source = (n, c, y * array.shape[2] // 6, x * array.shape[3] // 3)
            place = (n, c + (3 * k if mode == "concat" else 0), y, x)
            out[place] += array[source]
            gradient[source] += head[place]
    got = run("UpSampling", {f"arg{i}": array for i, array in enumerate(arrays)}, head, scale=3, sample_type="nearest",
              num_args=3, multi_input_mode=mode)  # fmt: skip
    close(got.out, out)
    for i, gradient in enumerate(gradients):
        close(got.gradients[f"arg{i}"], gradient)


def test_nearest_of_sixteen_bits_sums_in_thirty_two() -> None:
    x, head = uniform((1, 2, 3, 3), 0, np.float16), uniform((1, 2, 24, 24), 1, np.float16)
    got = run("UpSampling", {"arg0": x}, head, scale=8, sample_type="nearest", num_args=1).gradients["arg0"]
    exact = head.astype(np.float64).reshape(1, 2, 3, 8, 3, 8).sum(axis=(3, 5))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, exact, rtol=2.0**-11 * 1.01, atol=2e-6)


@pytest.mark.parametrize("scale", [1, 2, 3, 4])
def test_bilinear_is_the_deconvolution_of_each_channel(scale: int) -> None:
    kernel, pad = 2 * scale - scale % 2, -(-(scale - 1) // 2)
    arrays = {"data": uniform((2, 3, 4, 3)), "weight": uniform((3, 1, kernel, kernel), 1)}
    head = uniform((2, 3, 4 * scale, 3 * scale), 2)
    got = run("UpSampling", arrays, head, scale=scale, sample_type="bilinear", num_args=2, num_filter=3)
    wanted = run("Deconvolution", arrays, head, kernel=(kernel,) * 2, stride=(scale,) * 2, pad=(pad,) * 2, num_filter=3,
                 num_group=3)  # fmt: skip
    assert got.out.tobytes() == wanted.out.tobytes()
    for name in ("data", "weight"):
        assert got.gradients[name].tobytes() == wanted.gradients[name].tobytes()


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_bilinear_starts_as_interpolation(scale: int) -> None:
    net = ax.sym.UpSampling(ax.sym.Variable("data"), scale=scale, sample_type="bilinear", num_filter=1, name="up")
    assert net.list_arguments() == ["data", "up_weight"]
    assert net.attr_dict()["up_weight"]["__init__"] == '["bilinear", {}]'
    kernel = 2 * scale - scale % 2
    weight = np.zeros((1, 1, kernel, kernel), np.float32)
    ax.init.Xavier()(ax.init.InitDesc("up_weight", net.attr_dict()["up_weight"]), weight)
    ramp = np.arange(6.0)[:, None] * 2 + np.arange(5.0)
    got = run("UpSampling", {"data": ramp[None, None].astype(np.float32), "weight": weight}, scale=scale,
              sample_type="bilinear", num_args=2).out[0, 0]  # fmt: skip
    places = (np.arange(6 * scale) + 0.5) / scale - 0.5, (np.arange(5 * scale) + 0.5) / scale - 0.5
    exact = places[0][:, None] * 2 + places[1]
    np.testing.assert_allclose(got[scale:-scale, scale:-scale], exact[scale:-scale, scale:-scale], rtol=1e-5)


def test_upsampling_infers_what_follows() -> None:
    options = {"scale": 2, "sample_type": "nearest", "num_args": 2}
    found = shapes_of("UpSampling", {"arg0": (UNKNOWN, 3, 4, UNKNOWN), "arg1": (5, 2, 8, 10)}, **options)
    assert str(found["node_output"]) == "(5, 5, 8, ?)"
    found = shapes_of("UpSampling", {"arg0": (2, 3, 4, 4)}, multi_input_mode="sum", **options)
    assert (found["node_output"], str(found["arg1"])) == ((2, 3, 8, 8), "(2, 3, ?, ?)")
    found = shapes_of("UpSampling", {"data": (2, 3, 4, UNKNOWN)}, scale=3, sample_type="bilinear", num_args=1)
    assert (str(found["node_output"]), found["weight"]) == ("(2, 3, 12, ?)", (3, 1, 5, 5))
    found = shapes_of("UpSampling", {}, scale=3, sample_type="bilinear", num_args=1, num_filter=7)
    assert (str(found["data"]), found["weight"]) == ("(?, 7, ?, ?)", (7, 1, 5, 5))


def test_upsampling_infers_inputs_from_the_output() -> None:
    def backwards(sample_type: str, *inputs: str, **known: Any) -> Any:
        variables = [ax.sym.Variable(name) for name in inputs]
        net = ax.sym.UpSampling(*variables, scale=2, sample_type=sample_type, num_args=len(inputs), name="up")
        net = net + ax.sym.Variable("other")
        return dict(zip(net.list_arguments(), net.infer_shape_partial(other=(2, 5, 8, 6), **known)[0], strict=True))

    assert backwards("nearest", "a")["a"] == (2, 5, 4, 3)
    assert backwards("nearest", "a", "b", b=(2, 2, 8, 6))["a"] == (2, 3, 4, 3)
    found = backwards("bilinear", "a")
    assert (found["a"], found["up_weight"]) == ((2, 5, 4, 3), (5, 1, 4, 4))


def test_upsampling_without_images() -> None:
    empty = np.zeros((0, 2, 3, 3))
    assert run("UpSampling", {"arg0": empty}, np.zeros((0, 2, 6, 6)), scale=2, sample_type="nearest",
               num_args=1).gradients["arg0"].shape == (0, 2, 3, 3)  # fmt: skip
    got = run("UpSampling", {"data": empty, "weight": uniform((2, 1, 4, 4))}, np.zeros((0, 2, 6, 6)), scale=2,
              sample_type="bilinear", num_args=2)  # fmt: skip
    assert not got.gradients["weight"].any()


@pytest.mark.parametrize("block", [1, 2, 3])
def test_depth_and_space_are_exchanged_value_by_value(block: int) -> None:
    channels, height, width = 2, 2, 3
    deep = uniform((2, channels * block**2, height, width))
    large = np.zeros((2, channels, height * block, width * block))
    for n, c, y, x in product(*(range(size) for size in large.shape)):
        part = (y % block * block + x % block) * channels + c
        large[n, c, y, x] = deep[n, part, y // block, x // block]
    there = run("depth_to_space", {"data": deep}, large * 2, block_size=block)
    np.testing.assert_array_equal(there.out, large)
    np.testing.assert_array_equal(there.gradients["data"], deep * 2)
    back = run("space_to_depth", {"data": large}, deep * 2, block_size=block)
    np.testing.assert_array_equal(back.out, deep)
    np.testing.assert_array_equal(back.gradients["data"], large * 2)


def test_exchange_infers_both_ways() -> None:
    found = shapes_of("depth_to_space", {"data": (UNKNOWN, 8, 3, UNKNOWN)}, block_size=2)
    assert str(found["node_output"]) == "(?, 2, 6, ?)"
    found = shapes_of("space_to_depth", {"data": (1, 1 << 20, 1 << 20, 1 << 20)}, block_size=2)
    assert found["node_output"] == (1, 1 << 22, 1 << 19, 1 << 19)
    net = ax.sym.depth_to_space(ax.sym.Variable("data"), block_size=2) + ax.sym.Variable("other")
    assert net.infer_shape_partial(other=(2, 3, 4, 6))[0][0] == (2, 12, 2, 3)
    net = ax.sym.space_to_depth(ax.sym.Variable("data"), block_size=2) + ax.sym.Variable("other")
    assert net.infer_shape_partial(other=(2, 12, 2, 3))[0][0] == (2, 3, 4, 6)


@pytest.mark.parametrize(
    ("operator", "known", "attributes", "text"),
    [
        ("depth_to_space", {"data": (1, 6, 2, 2)}, {"block_size": 2}, "must have channels that block_size² = 4 divides, but it has 6"),
        ("space_to_depth", {"data": (1, 6, 2, 3)}, {"block_size": 2}, "must have a dim 3 that block_size=2 divides, but it is 3"),
        ("UpSampling", {"arg0": (1, 6, 2, 3), "arg1": (1, 6, 3, 3)}, {"scale": 2, "sample_type": "nearest", "num_args": 2},
         "'arg1' must have a dim 2 that divides 4, but it is 3"),
        ("UpSampling", {"data": (1, 6, 2, 3)}, {"scale": 2, "sample_type": "bilinear", "num_args": 2, "num_filter": 3},
         r"must be \(\?, 3, \?, \?\), but it is \(1, 6, 2, 3\)"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(operator: str, known: dict, attributes: dict, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        shapes_of(operator, known, **attributes)


@pytest.mark.parametrize("name", ["scale", "num_args"])
def test_upsampling_refuses_counts_below_one(name: str) -> None:
    with pytest.raises(AttributeValueError, match=f"attribute '{name}' must be at least 1, but it is 0"):
        make_op("UpSampling", {"scale": 2, "sample_type": "nearest", "num_args": 1, name: 0})
