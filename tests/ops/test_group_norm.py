"""LayerNorm, InstanceNorm, GroupNorm, L2Normalization, LRN against their formulas in float64, and gradients by chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import ShapeError
from arrayexec.ops import group_norm, local_norm
from arrayexec.registry import make_op, signature_of
from tests.ops.runs import close, run, shapes_of, types_of, uniform

Array = Any


@pytest.fixture(params=[1 << 16, 7], ids=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (group_norm, local_norm):
        monkeypatch.setattr(module, "BLOCK", request.param)


def normalised(x: Array, head: Array, gain: Array, shift: Array, axes: Any, eps: float) -> tuple[Array, ...]:
    """Output, gradient of x, and of gain and shift before they are summed; gain and shift broadcast with x."""
    n = np.prod([x.shape[axis] for axis in axes])
    mean = x.mean(axis=axes, keepdims=True)
    std = np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + eps)
    dnormal = head * gain
    dvar = (dnormal * (x - mean)).sum(axis=axes, keepdims=True) * -0.5 / std**3
    dmean = -(dnormal / std).sum(axis=axes, keepdims=True)
    dx = dnormal / std + dvar * 2 * (x - mean) / n + dmean / n
    return (x - mean) / std * gain + shift, dx, head * (x - mean) / std, mean, std


def arrays_of(shape: tuple[int, ...], count: int, dtype: Any = np.float64) -> tuple[dict[str, Array], Array]:
    given = {"data": uniform(shape, 0, dtype), "gamma": uniform((count,), 1) + 2, "beta": uniform((count,), 2)}
    return given, uniform(shape, 5, dtype)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("shape", "axis"), [((6, 5), -1), ((6, 5), 1), ((4, 3, 5), 1), ((4, 3, 2, 5), -2), ((3, 2, 4), 0), ((5,), 0)]
)
def test_layer_norm(shape: tuple, axis: int) -> None:
    arrays, head = arrays_of(shape, shape[axis])
    along = [1] * len(shape)
    along[axis] = -1
    gain, shift = arrays["gamma"].reshape(along), arrays["beta"].reshape(along)
    out, dx, slope, mean, std = normalised(arrays["data"], head, gain, shift, (axis,), 0.01)
    others = tuple(i for i in range(len(shape)) if i != axis % len(shape))
    ignored = [head, uniform(mean.shape, 8), uniform(mean.shape, 9)]
    found = run("LayerNorm", arrays, ignored, axis=axis, eps=0.01, output_mean_var=True)
    for got, wanted in zip(found.outputs, (out, mean, std), strict=True):
        close(got, wanted, 12)
    close(found.gradients["data"], dx, 12)
    close(found.gradients["gamma"], slope.sum(axis=others), 12)
    close(found.gradients["beta"], head.sum(axis=others), 12)
    np.testing.assert_array_equal(run("LayerNorm", arrays, head, axis=axis, eps=0.01).out, found.out)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 2), (2, 4, 2, 1, 3)])
def test_instance_norm(shape: tuple) -> None:
    arrays, head = arrays_of(shape, 4)
    axes, channel = tuple(range(2, len(shape))), (-1, *(1,) * (len(shape) - 2))
    gain, shift = arrays["gamma"].reshape(channel), arrays["beta"].reshape(channel)
    out, dx, slope, _, _ = normalised(arrays["data"], head, gain, shift, axes, 0.01)
    found = run("InstanceNorm", arrays, head, eps=0.01)
    close(found.out, out, 12)
    close(found.gradients["data"], dx, 12)
    close(found.gradients["gamma"], slope.sum(axis=(0, *axes)), 12)
    close(found.gradients["beta"], head.sum(axis=(0, *axes)), 12)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(3, 6, 5), (2, 6, 3, 2)])
def test_group_norm_has_one_gain_a_group(shape: tuple, groups: int) -> None:
    arrays, head = arrays_of(shape, groups)
    x, g = (array.reshape(shape[0], groups, -1) for array in (arrays["data"], head))
    gain, shift = arrays["gamma"][:, None], arrays["beta"][:, None]
    out, dx, slope, mean, std = normalised(x, g, gain, shift, (2,), 0.01)
    ignored = [head, uniform(mean.shape[:2], 8), uniform(mean.shape[:2], 9)]
    found = run("GroupNorm", arrays, ignored, num_groups=groups, eps=0.01, output_mean_var=True)
    for got, wanted in zip(found.outputs, (out.reshape(shape), mean[..., 0], std[..., 0]), strict=True):
        close(got, wanted, 12)
    close(found.gradients["data"], dx.reshape(shape), 12)
    close(found.gradients["gamma"], slope.sum(axis=(0, 2)), 12)
    close(found.gradients["beta"], g.sum(axis=(0, 2)), 12)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("mode", "axes", "shape"),
    [("instance", (1,), (4, 3)), ("instance", (1, 2, 3), (4, 3, 2, 2)), ("channel", (1,), (4, 3, 2, 2)),
     ("spatial", (2, 3), (4, 3, 2, 2)), ("instance", (), (4,))],
)  # fmt: skip
def test_l2_normalization(mode: str, axes: tuple, shape: tuple) -> None:
    x, head = uniform(shape), uniform(shape, 1)
    length = np.sqrt((x * x).sum(axis=axes, keepdims=True) + 0.1)
    found = run("L2Normalization", {"data": x}, head, mode=mode, eps=0.1)
    close(found.out, x / length)
    close(found.gradients["data"], head / length - x * (x * head).sum(axis=axes, keepdims=True) / length**3)


def test_zeros_have_no_direction_and_stay_zeros() -> None:
    found = run("L2Normalization", {"data": np.zeros((2, 3))}, np.ones((2, 3)))
    assert not found.out.any()
    close(found.gradients["data"], np.full((2, 3), 1e5))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("beta", [0.75, 0.6])
@pytest.mark.parametrize(("shape", "nsize"), [((3, 7, 2, 3), 5), ((2, 3, 4), 3), ((2, 3), 9), ((2, 5, 2, 2), 1)])
def test_lrn(shape: tuple, nsize: int, beta: float) -> None:
    x, head = uniform(shape), uniform(shape, 1)
    channels = range(shape[1])
    near = np.array([[abs(i - j) <= nsize // 2 for j in channels] for i in channels], float)
    total = 1.5 + 0.8 / nsize * np.einsum("ij,nj...->ni...", near, x * x)
    found = run("LRN", {"data": x}, head, nsize=nsize, alpha=0.8, beta=beta, knorm=1.5)
    close(found.out, x * total**-beta)
    through = np.einsum("ij,nj...->ni...", near, head * x * total ** (-beta - 1))
    close(found.gradients["data"], head * total**-beta - 2 * 0.8 * beta / nsize * x * through)


NORMS: dict[str, dict[str, Any]] = {
    "LayerNorm": {}, "InstanceNorm": {}, "GroupNorm": {"num_groups": 4}, "L2Normalization": {}, "LRN": {"nsize": 3},
}  # fmt: skip


@pytest.mark.parametrize("operator", NORMS)
def test_sixteen_bit_data_are_summed_in_thirty_two(operator: str) -> None:
    given, (x, head) = NORMS[operator], (16 * uniform((3, 4, 4096), seed, np.float16) for seed in (0, 1))
    arrays = {"data": x}
    if operator in ("LayerNorm", "InstanceNorm", "GroupNorm"):
        count = 4096 if operator == "LayerNorm" else 4
        arrays |= {"gamma": uniform((count,), 1, np.float32) + 2, "beta": uniform((count,), 2, np.float32)}
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    found, right = run(operator, arrays, head, **given), run(operator, wide, head.astype(np.float64), **given)
    assert found.out.dtype == found.gradients["data"].dtype == np.float16
    np.testing.assert_allclose(found.out, right.out, rtol=2.0**-10, atol=2.0**-10)
    for name, gradient in found.gradients.items():
        assert gradient.dtype == arrays[name].dtype
        np.testing.assert_allclose(gradient, right.gradients[name], rtol=2e-3, atol=2e-3 * abs(gradient).max())
    narrow = {name: array.astype(np.float16) for name, array in arrays.items()}
    assert {array.dtype.name for array in run(operator, narrow, head, **given).gradients.values()} == {"float16"}


@pytest.mark.parametrize("operator", NORMS)
def test_nan_stays_in_its_row_and_no_rows_are_no_trouble(operator: str) -> None:
    arrays, _ = arrays_of((2, 4, 3), 3 if operator == "LayerNorm" else 4)
    if operator in ("L2Normalization", "LRN"):
        arrays = {"data": arrays["data"]}
    arrays["data"][0, 1, 1] = np.nan
    out = run(operator, arrays, **NORMS[operator]).out
    assert np.isnan(out[0, 1, 1])
    assert not np.isnan(out[1]).any()
    empty = run(operator, {**arrays, "data": np.zeros((0, 4, 3))}, np.zeros((0, 4, 3)), **NORMS[operator])
    assert empty.out.shape == (0, 4, 3)
    for name, gradient in empty.gradients.items():
        assert not gradient.any(), name


def test_a_large_mean_does_not_drown_the_variance() -> None:
    x = (uniform((4, 2, 1000)) + 1e4).astype(np.float32)
    arrays = {"data": x, "gamma": np.ones(2, np.float32), "beta": np.zeros(2, np.float32)}
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    np.testing.assert_allclose(run("InstanceNorm", arrays).out, run("InstanceNorm", wide).out, atol=3e-3)


def test_shapes_follow_both_ways_and_types_too() -> None:
    found = shapes_of("LayerNorm", {"data": (UNKNOWN, UNKNOWN, 4), "beta": (3,)}, axis=1, output_mean_var=True)
    assert [str(found[name]) for name in ("data", "gamma", "node_mean")] == ["(?, 3, 4)", "(3,)", "(?, 1, 4)"]
    assert shapes_of("InstanceNorm", {"data": (2, UNKNOWN, 4), "gamma": (3,)})["node_output"] == (2, 3, 4)
    found = shapes_of("GroupNorm", {"data": (2, 6, 4)}, num_groups=3, output_mean_var=True)
    assert (found["gamma"], found["node_std"]) == ((3,), (2, 3))
    assert shapes_of("GroupNorm", {}, num_groups=3)["beta"] == (3,)
    for operator, given in NORMS.items():
        assert shapes_of(operator, {"data": (2, 8, 5)}, **given)["node_output"] == (2, 8, 5)
        kinds = types_of(operator, {"data": np.float16}, **given)
        assert kinds["node_output"] == np.float16
        assert kinds.get("gamma", np.float32) == np.float32
    for operator in ("LayerNorm", "InstanceNorm", "GroupNorm"):
        assert set(types_of(operator, {"data": np.float64}).values()) == {np.dtype(np.float64)}
    assert types_of("LayerNorm", {"gamma": np.float64})["data"] == np.float64
    with pytest.raises(ShapeError, match=r"gamma 'gamma' must be \(3,\), but it is \(4,\)"):
        shapes_of("LayerNorm", {"data": (2, 3), "gamma": (4,)})


def test_names_and_counts_of_outputs() -> None:
    for operator in ("LayerNorm", "GroupNorm"):
        assert signature_of(make_op(operator, {"output_mean_var": True})).output_suffixes == ("output", "mean", "std")
    counts = {operator: make_op(operator, given).total_outputs() for operator, given in NORMS.items()}
    assert counts == {"LayerNorm": 3, "InstanceNorm": 3, "GroupNorm": 3, "L2Normalization": 2, "LRN": 2}


def test_shape_arithmetic_beyond_two_to_the_31() -> None:
    huge = (1 << 20, 64, 512)
    for operator, given in NORMS.items():
        assert shapes_of(operator, {"data": huge}, **given)["node_output"] == huge


@pytest.mark.parametrize("operator", NORMS)
def test_bfloat16_data_are_summed_in_thirty_two_bits(operator: str) -> None:
    narrow = pytest.importorskip("ml_dtypes").bfloat16
    arrays, head = arrays_of((3, 4, 64), 64 if operator == "LayerNorm" else 4, narrow)
    if operator in ("L2Normalization", "LRN"):
        arrays = {"data": arrays["data"]}
    arrays |= {name: arrays[name].astype(np.float32) for name in arrays if name != "data"}
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    given = NORMS[operator]
    found, right = run(operator, arrays, head, **given), run(operator, wide, head.astype(np.float64), **given)
    assert found.out.dtype == found.gradients["data"].dtype == narrow
    for got, want in ((found.out, right.out), *((found.gradients[n], right.gradients[n]) for n in arrays)):
        np.testing.assert_allclose(got.astype(np.float64), want, atol=2.0**-7 * abs(want).max())
