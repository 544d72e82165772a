"""The products of attention against einsum on the projections taken apart, and gradients by numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.testing import NaiveRun
from tests.ops.runs import Result, close, graph_of, run, shapes_of, uniform

Array = Any
T, U, N, H, D = 4, 3, 2, 3, 5


def parts(array: Array, count: int) -> list[Array]:
    """Projections (t, n, heads · parts · d) as arrays (t, n, heads, d)."""
    split = array.reshape(*array.shape[:2], H, count, D)
    return [split[:, :, :, part] for part in range(count)]


def scores(q: Array, k: Array) -> Array:
    return np.einsum("inhd,jnhd->nhij", q, k).reshape(N * H, len(q), len(k)) / np.sqrt(D)


def values(attention: Array, v: Array) -> Array:
    found = np.einsum("nhij,jnhd->inhd", attention.reshape(N, H, *attention.shape[1:]), v)
    return found.reshape(*found.shape[:2], H * D)


SELF, CROSS = "_contrib_interleaved_matmul_selfatt_", "_contrib_interleaved_matmul_encdec_"
QKV, QUERIES, KV = uniform((T, N, H * 3 * D)), uniform((T, N, H * D), 1), uniform((U, N, H * 2 * D), 2)
SQUARE, WIDE = uniform((N * H, T, T), 3), uniform((N * H, T, U), 4)
CASES: dict[str, tuple[dict[str, Array], Any]] = {
    SELF + "qk": ({"queries_keys_values": QKV}, lambda qkv: scores(*parts(qkv, 3)[:2])),
    SELF + "valatt": (
        {"queries_keys_values": QKV, "attention": SQUARE}, lambda qkv, att: values(att, parts(qkv, 3)[2]),
    ),
    CROSS + "qk": ({"queries": QUERIES, "keys_values": KV}, lambda q, kv: scores(parts(q, 1)[0], parts(kv, 2)[0])),
    CROSS + "valatt": ({"keys_values": KV, "attention": WIDE}, lambda kv, att: values(att, parts(kv, 2)[1])),
}  # fmt: skip


def attend(operator: str, arrays: dict[str, Array], head: Array) -> Result:
    naive = NaiveRun(graph_of(operator, heads=H), arrays, None, True)
    outputs = naive.forward()
    return Result(outputs, naive.backward(head), naive.aux)


@pytest.mark.parametrize("operator", CASES)
def test_products(operator: str) -> None:
    arrays, rule = CASES[operator]
    want = rule(*arrays.values())
    head = uniform(want.shape, 9)
    found = attend(operator, arrays, head)
    close(found.out, want)
    for name, array in arrays.items():  # of second degree at most, so that a central difference of any size is exact
        way = uniform(array.shape, 10)
        up, down = (rule(*{**arrays, name: array + sign * way}.values()) for sign in (1, -1))
        close(np.sum(found.gradients[name] * way), np.sum(head * (up - down)) / 2, 11)


@pytest.mark.parametrize("operator", CASES)
def test_sixteen_bit_products_are_summed_in_thirty_two(operator: str) -> None:
    arrays, rule = CASES[operator]
    narrow = {name: array.astype(np.float16) for name, array in arrays.items()}
    want = rule(*(array.astype(np.float64) for array in narrow.values()))
    found = attend(operator, narrow, np.ones(want.shape, np.float16))
    assert found.out.dtype == np.float16
    np.testing.assert_allclose(found.out, want, rtol=2.0**-10, atol=1e-6)
    assert {gradient.dtype.name for gradient in found.gradients.values()} == {"float16"}


def test_shapes_follow_both_ways() -> None:
    found = shapes_of(SELF + "valatt", {"attention": (6, 4, 4), "queries_keys_values": (UNKNOWN, UNKNOWN, 45)}, heads=3)
    assert (found["queries_keys_values"], found["node_output"]) == ((4, 2, 45), (4, 2, 15))
    found = shapes_of(CROSS + "qk", {"queries": (4, 2, 15), "keys_values": (3, UNKNOWN, UNKNOWN)}, heads=3)
    assert (found["keys_values"], found["node_output"]) == ((3, 2, 30), (6, 4, 3))
    found = shapes_of(CROSS + "valatt", {"attention": (6, 4, 3), "keys_values": (UNKNOWN, UNKNOWN, 30)}, heads=3)
    assert (found["keys_values"], found["node_output"]) == ((3, 2, 30), (4, 2, 15))
    found = shapes_of(SELF + "qk", {"queries_keys_values": (1 << 16, 64, 192)}, heads=64)
    assert found["node_output"] == (1 << 12, 1 << 16, 1 << 16)


def test_div_sqrt_dim_and_empty_batches() -> None:
    data, head = uniform((2, 3, 7)), uniform((2, 3, 7), 1)
    found = run("_contrib_div_sqrt_dim", {"data": data}, head)
    close(found.out, data / np.sqrt(7))
    close(found.gradients["data"], head / np.sqrt(7))
    empty = attend(SELF + "qk", {"queries_keys_values": np.zeros((4, 0, 45))}, np.zeros((0, 4, 4)))
    assert (empty.out.shape, empty.gradients["queries_keys_values"].shape) == ((0, 4, 4), (4, 0, 45))
