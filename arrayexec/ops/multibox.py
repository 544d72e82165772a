"""Operators of single-shot detectors: prior boxes, training targets, detections.

Boxes are corners (x1, y1, x2, y2) in fractions of the image. Class 0 is the background, labels count without it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .box_overlap import BLOCK, CHUNK, Suppression, match, overlap, overlap_temps
from .boxes import decode, encode, fill_boxes
from .checks import check_floating
from .precision import wide

Array = Any
VARIANCES = (0.1, 0.1, 0.2, 0.2)


def _check_count(operator: str, name: str, values: tuple[float, ...], count: int | None = None) -> None:
    if len(values) != count if count else not values:
        text = f"{count} numbers" if count else "at least one number"
        raise AttributeValueError(f"{operator}: attribute '{name}' must hold {text}, but it is {values}")


@register_op(name="_contrib_MultiBoxPrior", aliases=("MultiBoxPrior", "_npx_multibox_prior"))
class MultiBoxPrior(Op):
    """``out`` (1, h·w·a, 4) = prior boxes around the cells of data (n, c, h, w), of which only h and w are read.

    Around every cell lie ``a = len(sizes) + len(ratios) - 1`` boxes: one a size with the first ratio, then the first
    size with every further ratio: height ``size / √ratio``, width ``size · √ratio · h / w``. The center of cell
    (i, j) is ``((i + offsets[0]) · steps[0], (j + offsets[1]) · steps[1])``; steps that are not positive are
    (1 / h, 1 / w). ``clip`` cuts to [0, 1]. There is no gradient.
    """

    sizes: tuple[float, ...] = (1.0,)
    ratios: tuple[float, ...] = (1.0,)
    clip: bool = False
    steps: tuple[float, ...] = (-1.0, -1.0)
    offsets: tuple[float, ...] = (0.5, 0.5)
    examples = (
        {"data": (2, 3, 2, 3), "sizes": (0.5, 0.25), "ratios": (1, 2, 0.5)},
        {"data": (1, 1, 3, 2), "sizes": (0.9,), "ratios": (3,), "clip": True, "steps": (0.3, 0.4),
         "offsets": (0.25, 0.75)},
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in ("sizes", "ratios"):
            _check_count("_contrib_MultiBoxPrior", name, getattr(self, name))
        for name in ("steps", "offsets"):
            _check_count("_contrib_MultiBoxPrior", name, getattr(self, name), 2)
        if not all(ratio > 0 for ratio in self.ratios):
            raise AttributeValueError(
                f"_contrib_MultiBoxPrior: attribute 'ratios' must hold positive numbers, but it is {self.ratios}"
            )
        if not all(0 <= offset <= 1 for offset in self.offsets):
            raise AttributeValueError(
                f"_contrib_MultiBoxPrior: attribute 'offsets' must hold numbers in [0, 1], but it is {self.offsets}"
            )
        if (self.steps[0] < 0) != (self.steps[1] < 0):
            raise AttributeValueError(
                f"_contrib_MultiBoxPrior: attribute 'steps' must hold two lengths or two negative numbers, but it is "
                f"{self.steps}"
            )

    def infer(self, s: Any) -> None:
        s.data = (UNKNOWN,) * 4
        height, width = s.data[2:]
        s.out = (1, height * width * (len(self.sizes) + len(self.ratios) - 1), 4)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def forward(self, xp: Any, data: Array, out: Array) -> None:
        height, width = data.shape[2:]
        if not out.size:
            return
        step_y, step_x = self.steps if min(self.steps) > 0 else (1 / height, 1 / width)
        roots = [math.sqrt(ratio) for ratio in (*self.ratios[:1] * len(self.sizes), *self.ratios[1:])]
        sizes = (*self.sizes, *self.sizes[:1] * (len(self.ratios) - 1))
        half_y = xp.asarray([size / root / 2 for size, root in zip(sizes, roots, strict=True)])
        half_x = xp.asarray([size * height / width * root / 2 for size, root in zip(sizes, roots, strict=True)])
        y = ((xp.arange(height) + self.offsets[0]) * step_y)[:, None, None]
        x = ((xp.arange(width) + self.offsets[1]) * step_x)[:, None]
        boxes = out.reshape(height, width, len(roots), 4)
        for i, change in ((0, xp.subtract), (2, xp.add)):
            boxes[..., i], boxes[..., i + 1] = change(x, half_x), change(y, half_y)
        if self.clip:
            xp.clip(out, 0, 1, out=out)


@register_op(name="_contrib_MultiBoxTarget", aliases=("MultiBoxTarget", "_npx_multibox_target"))
class MultiBoxTarget(Op):
    """Offsets ``loc_target`` (b, 4n), their mask ``loc_mask`` (b, 4n) and classes ``cls_target`` (b, n) to train for.

    anchor (1, n, 4) is matched with label (b, m, 5 or more): class and corners of an object a row, up to the first row
    of class -1. First the pair of largest overlap (above 1e-6; equal ones: the first anchor, then the first object) is
    matched, and so on until no object is left; then every free anchor that overlaps its best object by more than
    ``overlap_threshold`` (if that is positive). A match gives class + 1, mask 1 and the offsets of its object over
    ``variances``; all else has mask and offsets 0. An anchor without a match is background, 0; with
    ``negative_mining_ratio`` > 0 only so many times the matches are, ``minimum_negative_samples`` at least: those of
    least background probability by cls_pred (b, classes, n) (a NaN first) among the ones that overlap no object by
    ``negative_mining_thresh``. What remains, and images without an object, is ``ignore_label``. There is no gradient.
    """

    overlap_threshold: float = 0.5
    ignore_label: float = -1.0
    negative_mining_ratio: float = -1.0
    negative_mining_thresh: float = 0.5
    minimum_negative_samples: int = 0
    variances: tuple[float, ...] = VARIANCES
    outputs = ("loc_target", "loc_mask", "cls_target")
    rows = "parallel"
    examples = (
        {"anchor": Sample((1, 24, 4), 0, 1), "label": Sample((2, 2, 5), 0, 1), "cls_pred": (2, 3, 24),
         "overlap_threshold": 0.01, "variances": (1, 1, 1, 1)},
        {"anchor": Sample((1, 9, 4), 0, 1), "label": Sample((2, 1, 6), 0, 1), "cls_pred": (2, 3, 9),
         "negative_mining_ratio": 2.0, "negative_mining_thresh": 0.05, "ignore_label": -2.0},
        {"anchor": Sample((1, 9, 4), 0, 1), "label": Sample((2, 1, 6), 0, 1), "cls_pred": (2, 3, 9),
         "negative_mining_ratio": 1.0, "minimum_negative_samples": 3},
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_count("_contrib_MultiBoxTarget", "variances", self.variances, 4)
        if self.negative_mining_ratio > 0 and not self.negative_mining_thresh > 0:
            raise AttributeValueError(
                f"_contrib_MultiBoxTarget: attribute 'negative_mining_thresh' must be positive with "
                f"negative_mining_ratio, but it is {self.negative_mining_thresh}"
            )

    def infer(self, s: Any) -> None:
        s.cls_pred = s.label = (UNKNOWN,) * 3
        s.loc_target = s.loc_mask = s.cls_target = (UNKNOWN,) * 2
        s.anchor = (1, s.cls_pred[2], 4)
        s.anchor = (1, s.cls_target[1], 4)
        s.cls_target = (s.label[0], s.anchor[1])
        s.cls_target = (s.cls_pred[0], s.anchor[1])
        s.loc_target = s.loc_mask = (s.cls_target[0], s.anchor[1] * 4)
        s.cls_target = (s.loc_target[0], UNKNOWN)
        s.cls_target = (s.loc_mask[0], UNKNOWN)
        s.label = (s.cls_target[0], UNKNOWN, UNKNOWN)
        s.cls_pred = (s.cls_target[0], UNKNOWN, s.anchor[1])
        if s.label[2] is not UNKNOWN and s.label[2] < 5:
            s.fail("label", f"must have rows of at least 5 values, but it is {format_shape(s.label)}")
        if s.label[1] is not UNKNOWN and s.label[1] == 0:
            s.fail("label", f"must have room for an object, but it is {format_shape(s.label)}")
        if s.cls_pred[1] is not UNKNOWN and s.cls_pred[1] == 0:
            s.fail("cls_pred", f"must have a class in axis 1, but it is {format_shape(s.cls_pred)}")
        if s.anchor[1] is not UNKNOWN and s.anchor[1] == 0:
            s.fail("anchor", f"must hold a box, but it is {format_shape(s.anchor)}")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "anchor")

    def temps(self, s: Any) -> dict[str, Any]:
        kind, (objects, anchors) = wide(s.dtype("anchor")), (s.label[1], s.anchor[1])
        mined = s.cls_pred[1:] if self.negative_mining_ratio > 0 else (0,)
        return {
            "boxes": ((6, anchors), kind), "work": ((objects + 1, anchors + 1), kind), "powers": (mined, kind),
            "pairs": overlap_temps(s.dtype("anchor"))["pairs"],
        }  # fmt: skip

    def forward(
        self, xp: Any, anchor: Array, label: Array, cls_pred: Array, loc_target: Array, loc_mask: Array,
        cls_target: Array, boxes: Temp, work: Temp, powers: Temp, pairs: Temp,
    ) -> None:  # fmt: skip
        fill_boxes(xp, boxes, anchor[0], "corner")
        count = anchor.shape[1]
        for i in range(label.shape[0]):
            given = label[i, :, :5].astype(work.dtype)
            valid = xp.cumsum(given[:, 0] == -1) == 0
            index, most = self._overlaps(xp, given, valid, boxes, work, pairs)
            positive = xp.zeros((count + 1,), bool)  # the last place is for objects that find no anchor
            if self.overlap_threshold > 0:
                positive[:count] = most > self.overlap_threshold
            column = match(xp, work)
            place = xp.where(column >= 0, column, count)
            index[place], positive[place] = xp.arange(place.shape[0]), True
            index, positive = index[:count], positive[:count]
            negative = xp.logical_and(~positive, valid[:1])
            if self.negative_mining_ratio > 0:
                negative = self._mine(xp, cls_pred[i], positive, negative, most, powers)
            target, classes = loc_target[i].reshape(count, 4), cls_target[i]
            encode(xp, anchor[0], given[index, 1:], target)
            for side, variance in enumerate(self.variances):
                xp.divide(target[:, side], variance, out=target[:, side])
            xp.copyto(target, 0, where=~positive[:, None])
            loc_mask[i].reshape(count, 4)[...] = positive[:, None]
            classes.fill(self.ignore_label)
            xp.copyto(classes, 0, where=negative)
            xp.copyto(classes, given[index, 0] + 1, where=positive, casting="same_kind")

    def _overlaps(
        self, xp: Any, given: Array, valid: Array, boxes: Array, work: Array, pairs: Array
    ) -> tuple[Array, Array]:  # fmt: skip
        """The object that overlaps each anchor most, and how much, -1 for none; ``work`` is made ready for matching."""
        objects, count = given.shape[0], boxes.shape[1]
        index, most = xp.zeros((count + 1,), "int64"), xp.empty((count,), work.dtype)
        rows = xp.empty((6, objects), work.dtype)
        fill_boxes(xp, rows, given[:, 1:], "corner")
        work.fill(-math.inf)
        for start in range(0, count, CHUNK):
            part = slice(start, min(start + CHUNK, count))
            table = work[:objects, part]
            for row in range(0, objects, BLOCK):
                table[row : row + BLOCK] = overlap(xp, rows[:, row : row + BLOCK], boxes[:, part], pairs)
            meets = xp.logical_and(valid[:, None], table == table)  # a NaN meets nothing
            xp.copyto(table, -1, where=~meets)
            xp.argmax(table, axis=0, out=index[part])
            xp.max(table, axis=0, out=most[part])
            xp.copyto(table, -math.inf, where=table <= 1e-6)
        return index, most

    def _mine(
        self, xp: Any, cls_pred: Array, positive: Array, free: Array, most: Array, powers: Array
    ) -> Array:  # fmt: skip
        """Which anchors are background, the hardest ones."""
        xp.subtract(cls_pred, xp.max(cls_pred, axis=0), out=powers)
        xp.exp(powers, out=powers)
        background = powers[0] / xp.sum(powers, axis=0)
        able = xp.logical_and(free, most < self.negative_mining_thresh)
        background = xp.where(background == background, background, -1)
        order = xp.argsort(xp.where(able, background, math.inf), kind="stable")
        matches = xp.sum(positive, keepdims=True)
        number = (matches.astype("float32") * self.negative_mining_ratio).astype("int64")
        number = xp.minimum(xp.maximum(number, self.minimum_negative_samples), positive.shape[0] - matches)
        negative = xp.zeros(positive.shape, bool)
        negative[order] = xp.arange(positive.shape[0]) < number
        return xp.logical_and(negative, able)


@register_op(name="_contrib_MultiBoxDetection", aliases=("MultiBoxDetection", "_npx_multibox_detection"))
class MultiBoxDetection(Op):
    """``out`` (b, n, 6) = class (from 0, without the background), score and corners of what is detected.

    From cls_prob (b, classes, n), offsets loc_pred (b, 4n) and anchor (1, n, 4): an anchor is of its most probable
    class (the first of equal ones) if that has a score of ``threshold`` at least; a NaN score is none. Its box lies off
    the anchor by the offsets times ``variances``, ``clip`` cuts it to [0, 1]. The rows come by score, equal ones in the
    order of the anchors; a row that an earlier one of its class (any class with ``force_suppress``) overlaps by
    ``nms_threshold`` or more keeps score and box, but its class becomes -1, also beyond the ``nms_topk`` best, where
    the rows that would stand there unsorted do. A ``nms_threshold`` outside (0, 1] leaves the rows in the order of
    the anchors. The rest is -1. The background is class 0, whatever ``background_id`` says, as in MXNet. There is no
    gradient.
    """

    clip: bool = True
    threshold: float = 0.01
    background_id: int = 0
    nms_threshold: float = 0.5
    force_suppress: bool = False
    variances: tuple[float, ...] = VARIANCES
    nms_topk: int = -1
    rows = "parallel"
    hints = ("background_id",)
    examples = (
        {"cls_prob": Sample((2, 3, 80), 0, 1), "loc_pred": (2, 320), "anchor": Sample((1, 80, 4), -0.5, 1.5),
         "nms_threshold": 0.02, "threshold": 0.7},
        {"cls_prob": Sample((2, 3, 80), 0, 1), "loc_pred": (2, 320), "anchor": Sample((1, 80, 4), -0.5, 1.5),
         "nms_threshold": 0.02, "force_suppress": True, "clip": False, "nms_topk": 60, "variances": (1, 1, 0.1, 0.1)},
    )  # fmt: skip

    def __post_init__(self) -> None:
        _check_count("_contrib_MultiBoxDetection", "variances", self.variances, 4)

    def infer(self, s: Any) -> None:
        s.cls_prob, s.loc_pred, s.out = (UNKNOWN,) * 3, (UNKNOWN,) * 2, (UNKNOWN, UNKNOWN, 6)
        s.cls_prob = (s.out[0], UNKNOWN, s.out[1])
        s.anchor = (1, s.cls_prob[2], 4)
        s.loc_pred = (s.cls_prob[0], s.anchor[1] * 4)
        s.out = (s.loc_pred[0], s.anchor[1], 6)
        s.cls_prob = (s.out[0], UNKNOWN, s.out[1])
        if s.loc_pred[1] is not UNKNOWN:
            if s.loc_pred[1] % 4:
                s.fail("loc_pred", f"must have four values an anchor, but it is {format_shape(s.loc_pred)}")
            s.anchor = (1, s.loc_pred[1] // 4, 4)
            s.out = (s.loc_pred[0], s.anchor[1], 6)
            s.cls_prob = (s.out[0], UNKNOWN, s.out[1])
        if s.anchor[1] is not UNKNOWN and s.anchor[1] == 0:
            s.fail("anchor", f"must hold a box, but it is {format_shape(s.anchor)}")
        if s.cls_prob[1] is not UNKNOWN and s.cls_prob[1] < 2:
            s.fail("cls_prob", f"must have the background and a class in axis 1, but it is {format_shape(s.cls_prob)}")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "cls_prob")

    def temps(self, s: Any) -> dict[str, Any]:
        kind = wide(s.dtype("cls_prob"))
        return {
            "boxes": ((6, s.out[1]), kind), "corners": ((s.out[1], 4), kind), **overlap_temps(s.dtype("cls_prob")),
        }  # fmt: skip

    def forward(
        self, xp: Any, cls_prob: Array, loc_pred: Array, anchor: Array, out: Array,
        boxes: Temp, corners: Temp, pairs: Temp, over: Temp,
    ) -> None:  # fmt: skip
        size = anchor[0, :, 2:].astype(corners.dtype) - anchor[0, :, :2]
        place = (anchor[0, :, :2].astype(corners.dtype) + anchor[0, :, 2:]) * 0.5
        count, sorts = anchor.shape[1], 0 < self.nms_threshold <= 1
        suppress = Suppression(xp, xp.greater_equal, self.nms_threshold, not self.force_suppress)
        for i in range(cls_prob.shape[0]):
            score, label = xp.empty((count,), cls_prob.dtype), xp.empty((count,), "int64")
            for start in range(0, count, CHUNK):
                part = slice(start, min(start + CHUNK, count))
                xp.argmax(cls_prob[i, 1:, part], axis=0, out=label[part])
                xp.max(cls_prob[i, 1:, part], axis=0, out=score[part])
            valid = xp.logical_and(score >= self.threshold, score > -1)
            shown = int(np.count_nonzero(valid)) if xp is np else count  # a device goes over all
            source = xp.argsort(~valid, kind="stable")[:shown]
            if sorts:
                order = xp.argsort(xp.where(valid, -score, math.inf), kind="stable")[:shown]
                most = min(self.nms_topk, shown) if self.nms_topk > 0 else shown
                source = xp.concatenate([order[:most], source[most:]])
            there, rows, kind = valid[source], out[i, :shown], label[source]
            best = corners[:shown]
            decode(xp, loc_pred[i].reshape(count, 4)[source], place[source], size[source], self.variances, best)
            if self.clip:
                xp.clip(best, 0, 1, out=best)
            rows[:, 0], rows[:, 1], rows[:, 2:] = kind, score[source], best
            if sorts:
                alive, part = xp.zeros((shown,), bool), boxes[:, :most]
                alive[:most] = there[:most]
                fill_boxes(xp, part, best[:most], "corner")
                part[5] = kind[:most]
                suppress(part, alive[:most], pairs, over)
                xp.copyto(rows[:, 0], -1, where=~alive)
            xp.copyto(rows, -1, where=~there[:, None])
            out[i, shown:] = -1
