"""Casts of mixed precision, and whether all is finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.registry import make_op, signature_of
from tests.ops.runs import run, types_of, uniform

Array = Any


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_cast_leaves_whole_numbers_and_float64_alone(dtype: str) -> None:
    data, head = uniform((2, 3), 0, np.float32), uniform((2, 3), 1).astype(dtype)
    found = run("amp_cast", {"data": data}, head, dtype=dtype)
    np.testing.assert_array_equal(found.out, data.astype(dtype), strict=True)
    np.testing.assert_array_equal(found.gradients["data"], head.astype(np.float32), strict=True)
    for others in (np.int32, np.float64):
        as_it_is = np.arange(3, dtype=others)
        np.testing.assert_array_equal(run("amp_cast", {"data": as_it_is}, dtype=dtype).out, as_it_is, strict=True)
    assert types_of("amp_cast", {}, dtype=dtype)["node_output"] is None  # follows from what data is


def test_casts_between_float16_and_float32_are_numpys_to_the_bit() -> None:
    """Every float16; numbers of all sizes, ties and what is too large, in more than one piece."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    random = np.random.default_rng(0)
    wide = (random.normal(size=50000) * np.exp(random.uniform(-25, 11, 50000))).astype(np.float32)
    ties = ((halves.astype(np.float64) + np.nextafter(halves, np.float16(0)).astype(np.float64)) / 2).astype(np.float32)
    with np.errstate(all="ignore"):
        for data, kind in ((halves, "float32"), (wide, "float16"), (ties, "float16"), (ties[ties < 65504], "float16")):
            found = run("Cast", {"data": data}, dtype=kind).out
            np.testing.assert_array_equal(found.view(np.uint8), data.astype(kind).view(np.uint8))


@pytest.mark.parametrize(("narrow", "kind"), [(False, np.float32), (True, np.float16)])
def test_several_get_one_type(narrow: bool, kind: Any) -> None:
    kinds = (np.float16, np.float64, np.float32, np.int32)
    arrays = {f"data_{i}": (9 * uniform((2, i + 1), i)).astype(k) for i, k in enumerate(kinds)}
    kept = (np.int32, np.float64)
    heads = [uniform((2, i + 1), 5).astype(k if k in kept else kind) for i, k in enumerate(kinds)]
    found = run("amp_multicast", arrays, heads, num_outputs=4, cast_narrow=narrow)
    for out, array in zip(found.outputs, arrays.values(), strict=True):
        want = array if array.dtype in kept else array.astype(kind)
        np.testing.assert_array_equal(out, want, strict=True)
    for name, head in zip(list(arrays)[:3], heads, strict=False):
        np.testing.assert_array_equal(found.gradients[name], head.astype(arrays[name].dtype), strict=True)
    op = make_op("amp_multicast", {"num_outputs": 2})
    assert signature_of(op).inputs == ("data_0", "data_1")
    assert signature_of(op).output_suffixes == ("output0", "output1")
    assert types_of("amp_multicast", {"data_0": np.float16}, num_outputs=2)["node_output0"] is None


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_all_finite(kind: Any) -> None:
    good = uniform((3, 4), 0, kind)
    assert run("all_finite", {"data": good}).out.tolist() == [1]
    assert run("multi_all_finite", {"array_0": good, "array_1": good[0]}, num_arrays=2).out.tolist() == [1]
    for value in (np.nan, np.inf, -np.inf):
        bad = good.copy()
        bad[2, 1] = value
        found = run("all_finite", {"data": bad}, init_output=False).out
        np.testing.assert_array_equal(found, np.zeros(1, np.float32), strict=True)
        for arrays in ((bad, good), (good, bad)):
            given = dict(zip(("array_0", "array_1"), arrays, strict=True))
            assert run("multi_all_finite", given, num_arrays=2).out.tolist() == [0]
    assert run("all_finite", {"data": np.zeros((0, 3), kind)}).out.tolist() == [1]
    assert run("all_finite", {"data": np.zeros(3, np.int32)}).out.tolist() == [1]
    assert signature_of(make_op("multi_all_finite", {"num_arrays": 2})).inputs == ("array_0", "array_1")
