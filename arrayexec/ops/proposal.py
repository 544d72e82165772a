"""Region proposals: anchors moved by what a network predicts, the best of them that do not overlap."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from ..dims import UNKNOWN
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .box_overlap import Suppression, overlap_temps
from .checks import check_floating, check_least
from .precision import wide

Array = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Proposals(Op):
    """What both operators are: attributes, rules and body."""

    rpn_pre_nms_top_n: int = 6000
    rpn_post_nms_top_n: int = 300
    threshold: float = 0.7
    rpn_min_size: int = 16
    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    feature_stride: int = 16
    output_score: bool = False
    iou_loss: bool = False
    images: ClassVar[Any] = UNKNOWN

    def __post_init__(self) -> None:
        for name in ("scales", "ratios"):
            if not getattr(self, name) or not all(0 < value < math.inf for value in getattr(self, name)):
                raise AttributeValueError(
                    f"{self.form.name}: attribute '{name}' must hold positive numbers, but it is {getattr(self, name)}"
                )
        check_least(self, "feature_stride", "rpn_post_nms_top_n")

    def outputs(self) -> tuple[str, ...]:
        return ("out", "score") if self.output_score else ("out",)

    def hidden(self) -> tuple[str, ...]:
        return () if self.output_score else ("score",)

    def infer(self, s: Any) -> None:
        anchors, count = len(self.scales) * len(self.ratios), self.rpn_post_nms_top_n
        s.cls_prob = (self.images, 2 * anchors, UNKNOWN, UNKNOWN)
        s.bbox_pred = (s.cls_prob[0], 4 * anchors, *s.cls_prob[2:])
        s.cls_prob = (s.bbox_pred[0], 2 * anchors, *s.bbox_pred[2:])
        s.im_info = (s.cls_prob[0], 3)
        s.cls_prob = (s.im_info[0], 2 * anchors, UNKNOWN, UNKNOWN)
        s.bbox_pred = s.cls_prob[:1] + s.bbox_pred[1:]
        s.out, s.score = (s.cls_prob[0] * count, 5), (s.cls_prob[0] * count, 1)
        if any(dim is not UNKNOWN and dim == 0 for dim in s.cls_prob[2:]):
            s.fail("cls_prob", f"must have places, but it is {format_shape(s.cls_prob)}")
        rows = s.out[0]
        if rows is not UNKNOWN and rows % count == 0:
            s.im_info = (rows // count, 3)

    def types(self, t: Any) -> None:
        t.same()
        t.score = t.cls_prob
        check_floating(t, "cls_prob")

    def temps(self, s: Any) -> dict[str, Any]:
        total = len(self.scales) * len(self.ratios) * math.prod(s.cls_prob[2:])
        kind = wide(s.dtype("cls_prob"))
        flat = {"moved": (4, total), "boxes": (6, self._most(total)), "chance": (total,)}
        return {**{name: (shape, kind) for name, shape in flat.items()}, **overlap_temps(s.dtype("cls_prob"))}

    def _most(self, total: int) -> int:
        before = self.rpn_pre_nms_top_n
        return min(before, total) if before > 0 else total

    def _anchors(self) -> list[list[float]]:
        """Left, top, right and bottom ends of the anchors of the first place."""
        middle, found = (self.feature_stride - 1) / 2, []
        for ratio in self.ratios:
            for scale in self.scales:
                width = math.floor(math.sqrt(math.floor(self.feature_stride**2 / ratio)) + 0.5)
                height = math.floor(width * ratio + 0.5)
                across, along = (width * scale - 1) / 2, (height * scale - 1) / 2
                found.append([middle - across, middle - along, middle + across, middle + along])
        return [list(ends) for ends in zip(*found, strict=True)]

    def forward(
        self, xp: Any, cls_prob: Array, bbox_pred: Array, im_info: Array, out: Array, score: Array,
        moved: Temp, boxes: Temp, chance: Temp, pairs: Temp, over: Temp,
    ) -> None:  # fmt: skip
        count, (height, width) = self.rpn_post_nms_top_n, cls_prob.shape[2:]
        suppress = Suppression(xp, xp.greater, self.threshold, False, 1.0)
        ends, kind = self._anchors(), moved.dtype
        anchors = len(ends[0])
        for i in range(cls_prob.shape[0]):
            info = im_info[i].astype(kind)
            table = moved.reshape(4, height, width, anchors)
            self._move(xp, bbox_pred[i].reshape(anchors, 4, height, width).transpose(1, 2, 3, 0), ends, info, table)
            xp.copyto(chance.reshape(height, width, anchors), cls_prob[i, anchors:].transpose(1, 2, 0))
            self._filter(xp, info, table, chance.reshape(height, width, anchors))
            xp.copyto(chance, -math.inf, where=chance != chance)
            order = xp.argsort(-chance, kind="stable")[: boxes.shape[1]]
            for side in range(4):
                xp.take(moved[side], order, out=boxes[side])
            xp.multiply(boxes[2] - boxes[0] + 1, boxes[3] - boxes[1] + 1, out=boxes[4])
            alive = xp.ones(order.shape, bool)
            most = min(count, order.shape[0])
            suppress(boxes, alive, pairs, over, most)
            front = xp.argsort(~alive, kind="stable")
            left = xp.minimum(xp.sum(alive, keepdims=True), most)  # what is missing begins again with the first
            chosen = front[xp.arange(count) % xp.maximum(left, 1)]
            rows = out[i * count : (i + 1) * count]
            rows[:, 0] = i
            rows[:, 1:] = boxes[:4, chosen].T
            score[i * count : (i + 1) * count, 0] = chance[order[chosen]]

    def _move(self, xp: Any, deltas: Array, ends: list[list[float]], info: Array, moved: Array) -> None:
        """``moved`` (4, h, w, a) = corners of the anchors moved by ``deltas`` (4, h, w, a), cut to the image."""
        kind = moved.dtype
        for axis in (0, 1):
            size = moved.shape[2 - axis]
            shift = (xp.arange(size) * self.feature_stride).astype(kind)
            shift = shift[:, None] if axis == 0 else shift[:, None, None]
            low, high = (xp.asarray(ends[axis + side]).astype(kind) + shift for side in (0, 2))
            first, second = moved[axis], moved[axis + 2]
            if self.iou_loss:
                xp.add(low, deltas[axis], out=first)
                xp.add(high, deltas[axis + 2], out=second)
            else:
                length = high - low + 1
                xp.multiply(deltas[axis], length, out=first)
                xp.add(first, low + (length - 1) * 0.5, out=first)
                xp.copyto(second, deltas[axis + 2])
                xp.exp(second, out=second)
                xp.multiply(second, length, out=second)
                xp.subtract(second, 1, out=second)
                xp.multiply(second, 0.5, out=second)
                xp.subtract(first, second, out=first)
                xp.multiply(second, 2, out=second)
                xp.add(first, second, out=second)
            last = info[1 - axis, None] - 1
            for end in (first, second):
                xp.minimum(end, last, out=end)
                xp.maximum(end, 0, out=end)

    def _filter(self, xp: Any, info: Array, moved: Array, chance: Array) -> None:
        """Places beyond the image and boxes that are too small get the chance -1; the latter grow by the least size."""
        for axis, size in ((1, chance.shape[0]), (0, chance.shape[1])):
            real = xp.trunc(info[1 - axis, None] / self.feature_stride)
            beyond = xp.arange(size) >= real
            xp.copyto(chance, -1, where=beyond[:, None, None] if axis else beyond[:, None])
        least = info[2, None] * self.rpn_min_size
        small = xp.logical_or(moved[2] - moved[0] + 1 < least, moved[3] - moved[1] + 1 < least)
        for side, change in ((0, xp.subtract), (1, xp.subtract), (2, xp.add), (3, xp.add)):
            change(moved[side], xp.where(small, least * 0.5, 0), out=moved[side])
        xp.copyto(chance, -1, where=small)


def _examples(images: int) -> tuple[dict[str, Any], ...]:
    return (
        {"cls_prob": Sample((images, 8, 4, 5), 0, 1), "bbox_pred": (images, 16, 4, 5),
         "im_info": Sample((images, 3), 0.5, 40),
         "rpn_pre_nms_top_n": 40, "rpn_post_nms_top_n": 12, "threshold": 0.3, "rpn_min_size": 1, "scales": (1, 2),
         "ratios": (0.5, 1), "feature_stride": 8, "output_score": True},
        {"cls_prob": Sample((images, 4, 4, 5), 0, 1), "bbox_pred": (images, 8, 4, 5),
         "im_info": Sample((images, 3), 30, 40),
         "rpn_post_nms_top_n": 9, "rpn_min_size": 0, "scales": (1, 2), "ratios": (1,), "feature_stride": 8,
         "iou_loss": True},
    )  # fmt: skip


@register_op(name="_contrib_Proposal", aliases=("Proposal",))
class Proposal(_Proposals):
    """``out`` (k, 5) = rows (0, x1, y1, x2, y2) of what lies in an image; ``score`` (k, 1), with ``output_score`` seen.

    From cls_prob (1, 2a, h, w), whose second half is the chance of an object, bbox_pred (1, 4a, h, w) and im_info
    (1, 3): height, width, scale. ``a = len(ratios) · len(scales)`` anchors lie at every place, ``feature_stride``
    apart; pixels at the corners belong to a box. They move by (Δx / w, Δy / h, log w, log h), or their corners do with
    ``iou_loss``, and are cut to the image. Boxes smaller than ``rpn_min_size`` times scale and places beyond the image
    get the score -1. Of the ``rpn_pre_nms_top_n`` best (all if not positive; equal ones by place, a NaN last) a box
    falls that a better one left overlaps by more than ``threshold``; the k = ``rpn_post_nms_top_n`` best stay, and if
    there are less, they are repeated. There is no gradient.
    """

    images = 1
    examples = _examples(1)


@register_op(name="_contrib_MultiProposal", aliases=("MultiProposal",))
class MultiProposal(_Proposals):
    """As Proposal, for images: cls_prob (n, 2a, h, w), bbox_pred (n, 4a, h, w), im_info (n, 3), ``out`` (n·k, 5).

    The first value of a row is the number of its image.
    """

    examples = _examples(2)
