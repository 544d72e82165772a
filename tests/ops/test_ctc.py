"""CTCLoss against a sum over every alignment; paddings, lengths, labels that cannot be; and against PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from arrayexec.dims import UNKNOWN
from arrayexec.registry import make_op, signature_of
from tests.ops.runs import close, run, shapes_of, types_of, uniform

Array = Any


def loss(data: Array, label: list[int], blank: int) -> tuple[float, Array]:
    """Loss and gradient of one row, data (t, k): every sequence of classes that collapses to the label is counted."""
    steps, classes = data.shape
    p = np.exp(data - data.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    total, visits = 0.0, np.zeros((steps, classes))
    for path in itertools.product(range(classes), repeat=steps):
        if [c for c, _ in itertools.groupby(path) if c != blank] == label:
            chance = np.prod([p[t, c] for t, c in enumerate(path)])
            total += chance
            for t, c in enumerate(path):
                visits[t, c] += chance
    if not total:
        return np.inf, np.zeros_like(p)
    return -np.log(total), p - visits / total


def losses(data: Array, labels: list[list[int]], blank: int, times: Any = None) -> tuple[Array, Array]:
    out, gradient = np.zeros(len(labels)), np.zeros_like(data)
    for row, label in enumerate(labels):
        end = len(data) if times is None else times[row]
        out[row], gradient[:end, row] = loss(data[:end, row], label, blank)
    return out, gradient


ROWS = [[1, 2], [1, 1], [2], [], [2, 1, 2], [1, 2, 1]]


@pytest.mark.parametrize("kind", [np.float64, np.int32])
@pytest.mark.parametrize("blank_label", ["first", "last"])
def test_every_alignment_counts(blank_label: str, kind: Any) -> None:
    data, head = 3 * uniform((5, 6, 4)), uniform((6,), 1)
    shift, blank, pad = (0, 0, 0) if blank_label == "first" else (-1, 3, -1)
    rows = [[x + shift for x in row] for row in ROWS]
    label = np.array([(row + [pad] * 3)[:3] for row in rows], kind)
    out, gradient = losses(data, rows, blank)
    found = run("CTCLoss", {"data": data, "label": label}, head, blank_label=blank_label)
    close(found.out, out)
    close(found.gradients["data"], gradient * head[:, None])
    assert not found.gradients.get("label", np.zeros(1)).any()


@pytest.mark.parametrize("blank_label", ["first", "last"])
def test_lengths_of_data_and_labels(blank_label: str) -> None:
    data, head = 3 * uniform((5, 6, 4)), np.ones(6)
    blank, shift = (0, 0) if blank_label == "first" else (3, -1)
    label = np.array([[1, 2, 3]] * 6) + shift
    counts, times = np.array([2, 3, 1, 0, 0, 3.0]), np.array([5, 4, 3, 2, 0, 99])
    out, gradient = losses(data, [list(label[i, : int(counts[i])]) for i in range(6)], blank, np.minimum(times, 5))
    arrays = {"data": data, "label": label, "data_lengths": times, "label_lengths": counts}
    found = run("CTCLoss", arrays, head, use_data_lengths=True, use_label_lengths=True, blank_label=blank_label)
    close(found.out, out)
    close(found.gradients["data"], gradient)
    assert found.out[4] == 0


def test_what_no_alignment_gives_costs_infinity_and_has_no_gradient() -> None:
    data = uniform((3, 6, 4))
    label = np.array([[1, 2, 3], [1, 1, 2], [1, 0, 2], [1, 4, 0], [-1, 2, 0], [1, 2, 3]])
    arrays = {"data": data, "label": label, "label_lengths": np.array([3, 3, 3, 2, 2, 3])}
    found = run("CTCLoss", arrays, np.ones(6), use_label_lengths=True)
    # 0: just fits; 1: a repetition needs a blank between; 2: the blank as a label; 3, 4: no class
    assert np.isinf(found.out).tolist() == [False, True, True, True, True, False]
    assert found.gradients["data"][:, [1, 2, 3, 4]].any() == np.False_
    close(found.out[[0, 5]], [loss(data[:, i], [1, 2, 3], 0)[0] for i in (0, 5)])
    padded = run("CTCLoss", {"data": data[:2], "label": np.array([[1, 2, 3]] * 6)}, np.ones(6))
    assert np.isinf(padded.out).all()
    assert not padded.gradients["data"].any()


def test_nan_stays_in_its_row_and_no_rows_or_steps_are_no_trouble() -> None:
    data = uniform((4, 3, 3))
    data[1, 1, 0] = np.nan
    found = run("CTCLoss", {"data": data, "label": np.array([[1, 2]] * 3)}, np.ones(3))
    assert np.isnan(found.out).tolist() == [False, True, False]
    assert np.isnan(found.gradients["data"]).any(axis=(0, 2)).tolist() == [False, True, False]
    assert run("CTCLoss", {"data": np.zeros((4, 0, 3)), "label": np.zeros((0, 2))}, np.ones(0)).out.shape == (0,)
    none = run("CTCLoss", {"data": np.zeros((0, 2, 3)), "label": np.array([[1], [0]])}, np.ones(2))
    assert none.out.tolist() == [np.inf, 0]
    blanks = run("CTCLoss", {"data": uniform((4, 2, 3)), "label": np.zeros((2, 0))}, np.ones(2))
    close(blanks.out, [loss(uniform((4, 2, 3))[:, i], [], 0)[0] for i in (0, 1)])


def test_a_class_of_no_chance_and_long_sequences() -> None:
    data = uniform((4, 1, 4))
    data[:, :, 3] = -np.inf
    found = run("CTCLoss", {"data": data, "label": np.array([[1, 2]])}, np.ones(1))
    out, gradient = loss(data[:, 0, :3], [1, 2], 0)
    close(found.out, [out])
    close(found.gradients["data"][:, 0, :3], gradient)
    assert run("CTCLoss", {"data": data, "label": np.array([[1, 3]])}).out.tolist() == [np.inf]
    sharp = 200 * uniform((600, 2, 5))  # chances far below what a float64 can hold
    found = run("CTCLoss", {"data": sharp, "label": np.array([[1, 2, 2, 4], [4, 3, 2, 1]])}, np.ones(2))
    assert (found.out > 1000).all()
    assert np.isfinite(found.gradients["data"]).all()
    close(found.gradients["data"].sum(axis=2), np.zeros((600, 2)), 9)


def test_narrow_types() -> None:
    data, label = 3 * uniform((50, 4, 9)), np.array([[1, 2, 3, 3, 8]] * 4)
    right = run("CTCLoss", {"data": data, "label": label}, np.ones(4))
    for kind, digits in ((np.float32, 1e-5), (np.float16, 2e-3)):
        arrays = {"data": data.astype(kind), "label": label.astype(np.float32)}
        found = run("CTCLoss", arrays, np.ones(4, kind))
        assert found.out.dtype == found.gradients["data"].dtype == kind
        np.testing.assert_allclose(found.out, right.out, rtol=digits)
        np.testing.assert_allclose(found.gradients["data"], right.gradients["data"], atol=3 * digits)


def test_bfloat16() -> None:
    narrow = pytest.importorskip("ml_dtypes").bfloat16
    data, label = (3 * uniform((50, 4, 9))).astype(narrow), np.array([[1, 2, 3, 3, 8]] * 4)
    right = run("CTCLoss", {"data": data.astype(np.float64), "label": label}, np.ones(4))
    found = run("CTCLoss", {"data": data, "label": label}, np.ones(4, narrow))
    assert found.out.dtype == found.gradients["data"].dtype == narrow
    np.testing.assert_allclose(found.out.astype(np.float64), right.out, rtol=2.0**-8)
    np.testing.assert_allclose(found.gradients["data"].astype(np.float64), right.gradients["data"], atol=2.0**-8)


def test_shapes_and_names() -> None:
    found = shapes_of("CTCLoss", {"data": (7, UNKNOWN, 5), "label": (3, 2)})
    assert (found["data"], found["node_output0"]) == ((7, 3, 5), (3,))
    found = shapes_of("CTCLoss", {"data_lengths": (3,), "data": (7, UNKNOWN, 5)}, use_data_lengths=True)
    assert (str(found["label"]), found["node_output0"]) == ("(3, ?)", (3,))
    assert types_of("CTCLoss", {"data": np.float16, "label": np.int32})["node_output0"] == np.float16
    op = make_op("_contrib_ctc_loss", {"use_label_lengths": "True"})
    assert op.form.name == "CTCLoss"
    assert op.total_outputs() == 2
    assert signature_of(op).inputs == ("data", "label", "label_lengths")
    huge = shapes_of("CTCLoss", {"data": (1 << 16, 1 << 12, 1 << 10), "label": (1 << 12, 100)})
    assert huge["node_output0"] == (1 << 12,)


def test_as_pytorch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    data, times, counts = 2 * rng.normal(size=(40, 8, 12)), rng.integers(20, 41, 8), rng.integers(0, 9, 8)
    label, head = rng.integers(1, 12, (8, 8)), rng.normal(size=8)
    leaf = torch.tensor(data, requires_grad=True)
    want = torch.nn.functional.ctc_loss(
        leaf.log_softmax(2), torch.tensor(label), torch.tensor(times), torch.tensor(counts), reduction="none"
    )
    want.backward(torch.tensor(head))
    arrays = {"data": data, "label": label, "data_lengths": times, "label_lengths": counts}
    found = run("CTCLoss", arrays, head, use_data_lengths=True, use_label_lengths=True)
    close(found.out, want.detach().numpy(), 11)
    close(found.gradients["data"], leaf.grad.numpy(), 11)
