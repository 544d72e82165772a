"""Embedding against a loop over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.errors import AttributeValueError, ShapeError
from tests.ops.runs import close, graph_of, run, shapes_of, types_of, uniform


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.int64, np.uint8])
def test_rows_and_their_gradients(kind: Any) -> None:
    data = np.random.default_rng(0).integers(0, 5, (7, 3)).astype(kind)
    weight = uniform((5, 4))
    head = uniform((7, 3, 4), 1)
    wanted, back = np.empty_like(head), np.zeros_like(weight)
    for i in np.ndindex(data.shape):
        wanted[i] = weight[int(data[i])]
        back[int(data[i])] += head[i]
    found = run("Embedding", {"data": data, "weight": weight}, [head], input_dim=5, output_dim=4)
    np.testing.assert_array_equal(found.out, wanted)
    close(found.gradients["weight"], back)
    assert not found.gradients["data"].any()


def test_indices_are_truncated_and_clipped() -> None:
    weight = uniform((3, 2))
    data = np.array([1.9, -0.5, -3, 3, 99, 2])
    rows = [1, 0, 0, 2, 2, 2]
    found = run("Embedding", {"data": data, "weight": weight}, [np.ones((6, 2))], input_dim=3, output_dim=2)
    np.testing.assert_array_equal(found.out, weight[rows])
    np.testing.assert_array_equal(found.gradients["weight"], np.bincount(rows)[:, None] * np.ones((1, 2)))


def test_half_precision_sums_in_single() -> None:
    """2,049 ones: sixteen bits alone stop at 2,048."""
    data, weight = np.zeros(2050, np.int32), uniform((2, 1), 0, np.float16)
    found = run(
        "Embedding", {"data": data, "weight": weight}, [np.ones((2050, 1), np.float16)], input_dim=2, output_dim=1
    )
    assert found.gradients["weight"].tolist() == [[2050], [0]]
    assert found.gradients["weight"].dtype == np.float16


def test_a_table_in_any_memory_order() -> None:
    weight = np.asfortranarray(uniform((4, 3)))
    found = run("Embedding", {"data": np.array([3, 0]), "weight": weight}, input_dim=4, output_dim=3)
    np.testing.assert_array_equal(found.out, weight[[3, 0]])


def test_inference() -> None:
    found = shapes_of("Embedding", {"data": (UNKNOWN, 3)}, input_dim=5, output_dim=2)
    assert (found["weight"], found["node_output"][1:]) == ((5, 2), (3, 2))
    kinds = types_of("Embedding", {"data": np.int32}, input_dim=5, output_dim=2)
    assert (kinds["weight"], kinds["node_output"]) == (np.float32, np.float32)
    kinds = types_of("Embedding", {"data": np.int32}, input_dim=5, output_dim=2, dtype="float64")
    assert kinds["node_output"] == np.float64
    kinds = types_of("Embedding", {"data": np.int32, "weight": np.float16}, input_dim=5, output_dim=2)
    assert kinds["node_output"] == np.float16
    with pytest.raises(ShapeError, match=r"Embedding 'node': weight 'weight' must be \(5, 2\), but it is \(5, 3\)"):
        shapes_of("Embedding", {"data": (4,), "weight": (5, 3)}, input_dim=5, output_dim=2)
    with pytest.raises(AttributeValueError, match="must be at least 1, but it is 0"):
        graph_of("Embedding", input_dim=0, output_dim=2)


def test_former_name() -> None:
    data, weight, head = np.array([2, 0, 2]), uniform((3, 2)), uniform((3, 2), 1)
    given = {"data": data, "weight": weight}
    found = run("_contrib_SparseEmbedding", given, [head], input_dim=3, output_dim=2, deterministic=True)
    wanted = run("Embedding", given, [head], input_dim=3, output_dim=2)
    np.testing.assert_array_equal(found.out, wanted.out)
    np.testing.assert_array_equal(found.gradients["weight"], wanted.gradients["weight"])
