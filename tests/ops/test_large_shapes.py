"""Shape arithmetic beyond 2**31 values, which never overflows: by inference alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.runs import shapes_of

N = 2**31 + 5


@pytest.mark.parametrize(
    ("operator", "given", "attributes", "wanted"),
    [
        ("Reshape", {"data": (N, 4, 2)}, {"shape": (-3, 0)}, (4 * N, 2)),
        ("Reshape", {"data": (N, 4)}, {"shape": (-1,)}, (4 * N,)),
        ("Reshape", {"data": (4 * N,)}, {"shape": (-4, -1, 4)}, (N, 4)),
        ("Flatten", {"data": (2, N, 4)}, {}, (2, 4 * N)),
        ("Concat", {"arg0": (N, 2), "arg1": (N, 2)}, {"num_args": 2, "dim": 0}, (2 * N, 2)),
        ("slice", {"data": (N, 3)}, {"begin": (5,), "end": (None,), "step": (3,)}, (-((5 - N) // 3), 3)),
        ("slice_axis", {"data": (N, 3)}, {"axis": 0, "begin": -N, "end": None}, (N, 3)),
        ("one_hot", {"indices": (N,)}, {"depth": N}, (N, N)),
        ("take", {"a": (N, N), "indices": (N,)}, {}, (N, N)),
        ("Embedding", {"data": (N, 2)}, {"input_dim": N, "output_dim": N}, (N, 2, N)),
        ("pick", {"data": (N, N)}, {}, (N,)),
        ("sum", {"data": (N, N, 2)}, {"axis": 1}, (N, 2)),
        ("argmax", {"data": (N, N)}, {"axis": 0}, (N,)),
        ("_arange", {}, {"start": 0, "stop": float(N), "repeat": 2}, (2 * N,)),
        ("repeat", {"data": (N, N)}, {"repeats": N}, (N**3,)),
        ("broadcast_to", {"data": (1, 3)}, {"shape": (N, 0)}, (N, 3)),
        ("expand_dims", {"data": (N,)}, {"axis": 0}, (1, N)),
        ("SwapAxis", {"data": (N, 2)}, {"dim1": 0, "dim2": 1}, (2, N)),
    ],
)
def test_no_overflow(operator: str, given: Any, attributes: Any, wanted: tuple[int, ...]) -> None:
    assert shapes_of(operator, given, **attributes)["node_output"] == wanted


def test_no_overflow_in_pieces() -> None:
    assert shapes_of("SliceChannel", {"data": (2 * N, 3)}, num_outputs=2, axis=0)["node_output1"] == (N, 3)
    assert shapes_of("_split_v2", {"data": (3, N)}, indices=(0, 2**31))["node_output1"] == (3, 5)
