"""Running sums against sums of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import ShapeError
from tests.ops.runs import close, run, shapes_of, types_of, uniform


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_cumsum(axis: int | None) -> None:
    a = uniform((3, 4, 2))
    flat = a.reshape(-1) if axis is None else a
    along = 0 if axis is None else axis
    head = uniform(flat.shape, 1)
    wanted, back = np.empty_like(flat), np.empty_like(flat)
    for i in range(flat.shape[along]):
        at = [slice(None)] * flat.ndim
        at[along] = i  # type: ignore[call-overload]
        wanted[tuple(at)] = np.take(flat, range(i + 1), along).sum(along)
        back[tuple(at)] = np.take(head, range(i, flat.shape[along]), along).sum(along)
    found = run("_np_cumsum", {"a": a}, [head], axis=axis)
    close(found.out, wanted)
    close(found.gradients["a"], back.reshape(a.shape))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["float64", "float32", "int32"])
def test_wide_steps_give_the_same_sums(axis: int, kind: str) -> None:
    shape = [40, 40, 40]
    shape[axis] = 7
    a, head = ((uniform(tuple(shape), seed) * 9).astype(kind) for seed in (1, 2))
    found = run("cumsum", {"a": a}, [head], axis=axis)
    np.testing.assert_array_equal(found.out, np.cumsum(a, axis, dtype=kind))
    if kind != "int32":
        np.testing.assert_array_equal(found.gradients["a"], np.flip(np.cumsum(np.flip(head, axis), axis), axis))


def test_sums_of_16_bits_run_in_32() -> None:
    found = run("cumsum", {"a": np.ones(4096, np.float16)}, [np.ones(4096, np.float16)])
    assert found.out[-1] == found.gradients["a"][0] == 4096


@pytest.mark.parametrize(("kind", "dtype"), [("float32", "float64"), ("float16", "float32"), ("int32", "int64")])
def test_another_type(kind: str, dtype: Any) -> None:
    a = (uniform((3, 5)) * 100).astype(kind)
    found = run("cumsum", {"a": a}, axis=1, dtype=dtype).out
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.cumsum(a.astype(dtype), 1), rtol=1e-6)
    assert types_of("cumsum", {"a": kind}, dtype=dtype)["node_output"] == dtype


def test_shapes() -> None:
    assert shapes_of("cumsum", {"a": (2**20, 2**20)})["node_output"] == (2**40,)
    assert shapes_of("cumsum", {"a": (UNKNOWN, 3)}, axis=1)["node_output"][1] == 3
    assert run("cumsum", {"a": np.zeros((0, 3))}, axis=0).out.shape == (0, 3)
    with pytest.raises(ShapeError, match="must have an axis 2"):
        shapes_of("cumsum", {"a": (2, 3)}, axis=2)
