"""Measures of classification: Accuracy, TopKAccuracy, F1, MCC, PCC; and of scores that sums give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy

from ..context import Array
from ..errors import AttributeValueError
from .metric_base import EvalMetric, Host, register
from .options import one_of


@register("acc")
class Accuracy(EvalMetric):
    """The share of right predictions: scores along ``axis``, or classes where the shapes are equal."""

    default_name = "accuracy"

    def __init__(self, axis: int = 1, name: str | None = None, **names: Any) -> None:
        super().__init__(name, **names, axis=axis)
        self.axis = axis

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for label, pred in self._pairs(labels, preds):
            if pred.shape == label.shape:
                predicted = numpy.trunc(pred)
            else:
                self._must_agree(label, pred, -pred.ndim <= self.axis < pred.ndim)
                predicted = pred.argmax(self.axis)
            self._must_agree(label, pred, predicted.size == label.size)
            self.sum_metric += float((predicted.reshape(-1) == numpy.trunc(label).reshape(-1)).sum())
            self.num_inst += label.size


@register("top_k_accuracy", "top_k_acc")
class TopKAccuracy(EvalMetric):
    """The share of labels among the ``top_k`` highest scores; raises AttributeValueError for top_k < 2."""

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", **names: Any) -> None:
        if top_k < 2:
            raise AttributeValueError(f"TopKAccuracy: top_k must be at least 2 (Accuracy is 1), but it is {top_k}")
        super().__init__(f"{name}_{top_k}", **names, top_k=top_k)
        self.top_k = top_k

    def get_config(self) -> dict[str, Any]:
        """What `create` needs to make such a metric."""
        return super().get_config() | {"name": self.name.removesuffix(f"_{self.top_k}")}

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: predictions (n, classes)."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, pred.ndim == 2 and len(pred) == label.size)
            count = min(self.top_k, pred.shape[1])
            best = numpy.argpartition(pred, pred.shape[1] - count, axis=1)[:, -count:]
            self.sum_metric += float((best == numpy.trunc(label).reshape(-1, 1)).sum())
            self.num_inst += label.size


class Averaged(EvalMetric):
    """A score of sums that add up: its mean over updates (``macro``), or that of all sums."""

    averages: ClassVar[tuple[str, ...]] = ("macro", "micro")
    width: int

    def __init__(
        self, name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None, average: str = "macro", **config: Any,
    ) -> None:  # fmt: skip
        self.average = one_of(type(self).__name__, "average", average, self.averages)
        super().__init__(name, output_names, label_names, average=average, **config)

    def score(self, sums: Host) -> float:
        """The value of ``width`` sums."""
        raise AttributeValueError(f"metric {type(self).__name__}: the class must define score()")

    @property
    def over_updates(self) -> bool:
        """Whether every update has a score of its own."""
        return self.average == "macro"

    def add(self, sums: Host) -> None:
        """Add the sums of an update."""
        if self.over_updates:
            self.sum_metric += self.score(sums)
            self.num_inst += 1
        else:
            self._sums += sums

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._sums = numpy.zeros(self.width)

    def state(self) -> Host:
        """The sums as a float64 vector."""
        return super().state() if self.over_updates else self._sums.copy()

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums by the total of ``states``."""
        if self.over_updates:
            super().merge(states)
        else:
            self._sums = numpy.sum([*states] or [numpy.zeros(self.width)], axis=0)

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of sums."""
        if self.over_updates:
            return float(super().evaluate(state))
        return self.score(state) if state.any() else math.nan


class _Binary(Averaged):
    """From the counts of true and false positives, false and true negatives of class 1."""

    width = 4

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: predictions (n, 2), labels 0 or 1.

        Raises AttributeValueError for other labels.
        """
        counts = numpy.zeros(4)
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, pred.shape[-1:] == (2,) and pred.size == 2 * label.size)
            truth = self._classes(label, 2) == 1
            positive = pred.reshape(-1, 2).argmax(1) == 1
            counts += [(a & b).sum() for a in (positive, ~positive) for b in (truth, ~truth)]
        if counts.any():
            self.add(counts)


@register()
class F1(_Binary):
    """Harmonic mean of precision and recall; 0 where there are no true positives.

    ``class_type='binary'``: of class 1 among two, mean over updates (``average='macro'``) or of all samples
    (``micro``). ``'multiclass'``: of any number of classes, which lie on axis 1 of the predictions (so pixels can be
    classified, too), over all samples: the mean over classes that were labels or predictions (``macro``), weighted by
    their labels (``weighted``), or of all counts (``micro``). ``num_classes``: as in `PCC`.
    """

    default_name = "f1"
    averages = ("macro", "micro", "weighted")

    def __init__(
        self, name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None, average: str = "macro", class_type: str = "binary",
        num_classes: int = 32,
    ) -> None:  # fmt: skip
        self.class_type = one_of("F1", "class_type", class_type, ("binary", "multiclass"))
        if class_type == "binary" and average == "weighted":
            raise AttributeValueError("F1: average='weighted' is for class_type='multiclass', but it is 'binary'")
        self.width = 4 if class_type == "binary" else 3 * num_classes
        super().__init__(name, output_names, label_names, average, class_type=class_type, num_classes=num_classes)

    @property
    def over_updates(self) -> bool:
        """Whether every update has a score of its own."""
        return self.class_type == "binary" and super().over_updates

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        if self.class_type == "binary":
            super().update(labels, preds)
            return
        for label, pred in self._pairs(labels, preds):
            truth, predicted, count = _class_pairs(self, label, pred)
            if 3 * count > self._sums.size:
                self._sums = numpy.pad(self._sums.reshape(3, -1), ((0, 0), (0, count - self._sums.size // 3))).ravel()
            size = self._sums.size // 3
            for row, found in enumerate((truth[truth == predicted], predicted, truth)):
                self._sums[row * size : (row + 1) * size] += numpy.bincount(found, minlength=size)

    def score(self, sums: Host) -> float:
        """``2·tp / (predicted + labels)`` of counts, by class where there are many."""
        if self.class_type == "binary":
            tp, fp, fn, _ = sums.tolist()
            return 2 * tp / (2 * tp + fp + fn) if tp else 0.0
        right, predicted, labels = sums.reshape(3, -1)
        if self.average == "micro":
            return float(2 * right.sum() / (predicted.sum() + labels.sum()))
        seen = predicted + labels > 0
        scores = 2 * right[seen] / (predicted + labels)[seen]
        return float(numpy.average(scores, weights=labels[seen] if self.average == "weighted" else None))


@register()
class MCC(_Binary):
    """Matthews' correlation coefficient of two classes; 0 where a class is missing on either side."""

    default_name = "mcc"

    def score(self, sums: Host) -> float:
        """The correlation of prediction and truth."""
        tp, fp, fn, tn = sums.tolist()
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0


@register()
class PCC(EvalMetric):
    """Pearson's correlation of predicted and true classes, any number: Matthews' coefficient for more than two.

    Over all samples; NaN where all are of one class on either side. ``num_classes``: the room that `state` has; more
    classes than that make it larger, and then all ranks must have seen as many.
    """

    default_name = "pcc"

    def __init__(
        self, name: str | None = None, output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None, num_classes: int = 32,
    ) -> None:  # fmt: skip
        self._room = num_classes
        super().__init__(name, output_names, label_names, num_classes=num_classes)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._counts = numpy.zeros((self._room, self._room))

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: classes, or their scores on axis 1."""
        for label, pred in self._pairs(labels, preds):
            truth, predicted, count = _class_pairs(self, label, pred)
            more = max(0, count - len(self._counts))
            self._counts = numpy.pad(self._counts, ((0, more), (0, more)))
            size = len(self._counts)
            self._counts += numpy.bincount(predicted * size + truth, minlength=size * size).reshape(size, size)

    def state(self) -> Host:
        """The counts of every pair of classes as a float64 vector."""
        return self._counts.ravel().copy()

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the counts by the total of ``states``."""
        total = numpy.sum([*states] or [numpy.zeros(self._room**2)], axis=0)
        self._counts = total.reshape(math.isqrt(total.size), -1)

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of counts."""
        counts = state.reshape(math.isqrt(state.size), -1)
        total, rows, columns = counts.sum(), counts.sum(1), counts.sum(0)
        spread = float((rows * (total - rows)).sum() * (columns * (total - columns)).sum())
        together = float((counts.diagonal() * total - rows * columns).sum())
        return together / math.sqrt(spread) if spread > 0 else math.nan


def _class_pairs(metric: EvalMetric, label: Host, pred: Host) -> tuple[Any, Any, int]:
    """True and predicted classes as vectors, and how many classes there may be."""
    if pred.size != label.size:
        metric._must_agree(label, pred, pred.ndim > 1 and pred.size == pred.shape[1] * label.size)
        count = pred.shape[1]
        return metric._classes(label, count), pred.argmax(1).reshape(-1), count
    count = 1 + int(max(label.max(initial=1), pred.max(initial=1)))
    return metric._classes(label, count), metric._classes(pred, count), count
