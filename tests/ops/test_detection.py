"""Operators of detection against one box after the other: suppression, matching, pooled regions, sampled images."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from arrayexec.ops.box_overlap import CHUNK, Suppression, match, overlap_temps
from tests.ops.runs import run, shapes_of

Array = Any


def ratio(a: Array, b: Array, extra: float = 0.0) -> float:
    """Intersection over union of two boxes of positive sides, else 0, also where there is a NaN."""
    if np.isnan(a[:4]).any() or np.isnan(b[:4]).any():
        return 0.0
    sides = [np.float32(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + np.float32(extra)) for i in (0, 1)]
    both = np.float32(max(sides[0], 0) * max(sides[1], 0))
    return float(both / np.float32(a[4] + b[4] - both)) if both > 0 else 0.0


def one_by_one(boxes: Array, alive: Array, threshold: float, grouped: bool) -> Array:
    """Greedy suppression, one box after the other."""
    left: list[int] = []
    for i in np.flatnonzero(alive):
        rivals = [j for j in left if not grouped or boxes[5, i] == boxes[5, j]]
        if not any(ratio(boxes[:, j], boxes[:, i]) > threshold for j in rivals):
            left.append(int(i))
    return np.isin(np.arange(len(alive)), left)


@pytest.mark.parametrize("seed", range(12))
def test_suppression_is_greedy(seed: int) -> None:
    """Chains, ties, degenerate and NaN boxes, more boxes than a block, groups."""
    random = np.random.default_rng(seed)
    count = int(random.choice([1, 2, 63, 64, 65, 300, 2 * CHUNK + 3 if seed == 0 else 150]))
    low = random.uniform(0, 4 if seed % 2 else 1, (2, count))
    side = random.uniform(-0.05, 0.6, (2, count))
    if seed % 3 == 0:
        low, side = np.round(low * 4) / 4, np.round(side * 2) / 2  # equal boxes and empty ones
    boxes = np.empty((6, count), np.float32)
    boxes[:2], boxes[2:4] = low, low + side
    boxes[4] = np.where((side < 0).any(0), 0, (boxes[2] - boxes[0]) * (boxes[3] - boxes[1]))
    boxes[5] = random.integers(0, 3, count)
    alive = random.random(count) < 0.9
    if count > 100:
        boxes[0, 5] = np.nan
        alive[5] = True
    temps = {name: np.empty(*spec) for name, spec in overlap_temps(np.dtype("float32")).items()}
    threshold, grouped = float(random.choice([0.0, 0.1, 0.5, 0.9])), bool(seed % 2)
    found = alive.copy()
    with np.errstate(all="ignore"):
        Suppression(np, np.greater, threshold, grouped)(boxes, found, temps["pairs"], temps["over"])
    np.testing.assert_array_equal(found, one_by_one(boxes, alive, threshold, grouped))
    if count > 100:
        assert found[5], "a box with a NaN is struck by nobody"


def test_chain_of_overlaps() -> None:
    """Of boxes of which each overlaps its neighbours only, every second is left: the longest chain of a block."""
    count = 200
    boxes = np.zeros((6, count), np.float32)
    boxes[0], boxes[2], boxes[3], boxes[4] = np.arange(count), np.arange(count) + 1.5, 1, 1.5
    temps = {name: np.empty(*spec) for name, spec in overlap_temps(np.dtype("float32")).items()}
    alive = np.ones(count, bool)
    Suppression(np, np.greater, 0.1, False)(boxes, alive, temps["pairs"], temps["over"])
    np.testing.assert_array_equal(alive, np.arange(count) % 2 == 0)


@pytest.mark.parametrize("seed", range(10))
def test_matching_is_greedy(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = random.integers(1, 12, 2)
    values = np.round(random.uniform(0, 1, (rows, columns)), 1 if seed % 2 else 8)
    work = np.full((rows + 1, columns + 1), -math.inf)
    work[:-1, :-1] = np.where(values > 0.2, values, -math.inf)
    want, taken = np.full(rows, -1), set()
    for flat in np.argsort(-values.reshape(-1), kind="stable"):
        row, column = divmod(int(flat), int(columns))
        if values[row, column] > 0.2 and want[row] < 0 and column not in taken:
            want[row] = column
            taken.add(column)
    np.testing.assert_array_equal(match(np, work), want)


def test_no_object_is_all_ignored() -> None:
    anchor = np.array([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]], np.float32)
    label, prediction = np.full((1, 2, 5), -1, np.float32), np.zeros((1, 2, 2), np.float32)
    offsets, mask, classes = run(
        "_contrib_MultiBoxTarget", {"anchor": anchor, "label": label, "cls_pred": prediction}, ignore_label=-7.0
    ).outputs
    assert not offsets.any() and not mask.any() and (classes == -7).all()


def test_least_number_of_negatives() -> None:
    anchor = np.array([[[i / 10, 0, (i + 1) / 10, 1] for i in range(10)]], np.float32)
    label = np.array([[[2, 0, 0, 0.1, 1]]], np.float32)
    prediction = np.zeros((1, 2, 10), np.float32)
    prediction[0, 0] = np.arange(10)  # the last ones are surely background
    classes = run(
        "_contrib_MultiBoxTarget", {"anchor": anchor, "label": label, "cls_pred": prediction},
        negative_mining_ratio=1.0, minimum_negative_samples=3,
    ).outputs[2]  # fmt: skip
    np.testing.assert_array_equal(classes, [[3, 0, 0, 0, -1, -1, -1, -1, -1, -1]])


def test_scores_that_are_nan_are_no_detection() -> None:
    anchor = np.array([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]], np.float32)
    chance = np.array([[[0.1, 0.2], [np.nan, 0.8]]], np.float32)
    out = run(
        "_contrib_MultiBoxDetection", {"cls_prob": chance, "loc_pred": np.zeros((1, 8), np.float32), "anchor": anchor}
    ).out
    np.testing.assert_allclose(out, [[[0, 0.8, 0.5, 0.5, 1, 1], [-1] * 6]], rtol=1e-6)


def test_a_nan_makes_its_bins_nan_and_takes_no_gradient() -> None:
    data = np.arange(16, dtype=np.float64).reshape(1, 1, 4, 4)
    data[0, 0, 0, 0] = np.nan
    result = run(
        "ROIPooling", {"data": data, "rois": np.array([[0.0, 0, 0, 3, 3], [5, 0, 0, 3, 3]])}, np.ones((2, 1, 2, 2)),
        pooled_size=(2, 2), spatial_scale=1.0,
    )  # fmt: skip
    np.testing.assert_array_equal(result.out[0, 0], [[np.nan, 7], [13, 15]])
    assert not result.out[1].any(), "no such image"
    want = np.zeros((4, 4))
    want[1, 3] = want[3, 1] = want[3, 3] = 1
    np.testing.assert_array_equal(result.gradients["data"][0, 0], want)


def pooled(data: Array, rois: Array, head: Array, scale: float) -> tuple[Array, Array]:
    """Output and gradient of ROIPooling, one bin after the other."""
    out, back = np.zeros_like(head), np.zeros_like(data)
    height, width = data.shape[2:]
    for r, c, p, q in np.ndindex(*head.shape):
        x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(v * scale) + 0.5), v)) for v in rois[r, 1:])
        spans = []
        for low, high, place, bins, size in ((y1, y2, p, head.shape[2], height), (x1, x2, q, head.shape[3], width)):
            step = max(high - low + 1, 1) / bins
            begin, end = math.floor(place * step) + low, math.ceil((place + 1) * step) + low
            spans.append(range(min(max(begin, 0), size), min(max(end, 0), size)))
        cells = [(int(rois[r, 0]), c, y, x) for y, x in product(*spans)]
        if cells:
            best = max(cells, key=lambda cell: data[cell])
            out[r, c, p, q] = data[best]
            back[best] += head[r, c, p, q]
    return out, back


@pytest.mark.parametrize("ties", [False, True])
def test_roi_pooling(ties: bool) -> None:
    random = np.random.default_rng(3)
    data = random.uniform(-1, 1, (2, 3, 9, 11))
    if ties:
        data = np.round(data)
    rois = np.concatenate([random.integers(0, 2, (7, 1)), np.sort(random.uniform(-4, 14, (7, 2, 2)), 1).reshape(7, 4)], 1)
    head = random.uniform(-1, 1, (7, 3, 3, 2))
    result = run("ROIPooling", {"data": data, "rois": rois}, head, pooled_size=(3, 2), spatial_scale=0.9)
    out, back = pooled(data, rois, head, 0.9)
    np.testing.assert_array_equal(result.out, out)
    np.testing.assert_allclose(result.gradients["data"], back, rtol=1e-13, atol=1e-13)


def test_places_outside_are_zero() -> None:
    data = np.ones((1, 1, 2, 2))
    grid = np.array([[[[-1, 1, 1.01, 2, 3, np.nan, np.inf]], [[0, 0, 0, 0, 0, 0, 0]]]], np.float64)
    result = run("BilinearSampler", {"data": data, "grid": grid}, np.ones((1, 1, 1, 7)))
    np.testing.assert_allclose(result.out[0, 0, 0], [1, 1, 0.995, 0.5, 0, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(result.gradients["grid"][0, 0, 0, 2:], [-0.5, -0.5, 0, 0, 0], rtol=1e-12)


def test_shapes_follow_from_what_is_known() -> None:
    found = shapes_of("_contrib_MultiBoxDetection", {"loc_pred": (4, 40)})
    assert str(found["anchor"]) == "(1, 10, 4)" and str(found["cls_prob"]) == "(4, ?, 10)"
    found = shapes_of("_contrib_MultiProposal", {"im_info": (2, 3)}, scales=(1, 2), ratios=(1,))
    assert str(found["cls_prob"]) == "(2, 4, ?, ?)" and str(found["bbox_pred"]) == "(2, 8, ?, ?)"
    found = shapes_of("_contrib_box_iou", {"lhs": (1 << 20, 4), "rhs": (1 << 20, 4)})
    assert (1 << 20, 1 << 20) in found.values()
