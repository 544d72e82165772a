"""Measures of how good predictions are, kept as sums that add up over batches, devices and ranks.

``metric.update(labels, preds)`` takes lists of arrays of any device. `EvalMetric.state` gives the sums as one
vector; the vectors of all ranks added and given to `EvalMetric.merge` make it the metric of all of them.
MAE, MSE, RMSE and the ``macro`` averages are means over updates (every update weighs the same), the others
are over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError
from .metric_base import CompositeEvalMetric, CustomMetric, EvalMetric, Host, create, np, register
from .options import one_of

__all__ = [
    "create",
    "register",
    "EvalMetric",
    "CompositeEvalMetric",
    "CustomMetric",
    "np",
    "Accuracy",
    "TopKAccuracy",
    "F1",
    "MCC",
    "Perplexity",
    "MAE",
    "MSE",
    "RMSE",
    "CrossEntropy",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Loss",
]


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


class _Averaged(EvalMetric):
    """A score of sums that add up: its mean over updates (``macro``) or that of all sums (``micro``)."""

    width: ClassVar[int]

    def __init__(self, name: str | None = None, average: str = "macro", **names: Any) -> None:
        self.average = one_of(type(self).__name__, "average", average, ("macro", "micro"))
        super().__init__(name, **names, average=average)

    def score(self, *sums: float) -> float:
        """The value of ``width`` sums."""
        raise AttributeValueError(f"metric {type(self).__name__}: the class must define score()")

    def _add(self, sums: Host) -> None:
        if self.average == "micro":
            self._sums += sums
        else:
            self.sum_metric += self.score(*sums.tolist())
            self.num_inst += 1

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._sums = numpy.zeros(self.width)

    def state(self) -> Host:
        """The sums as a float64 vector."""
        return super().state() if self.average == "macro" else self._sums.copy()

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums by the total of ``states``."""
        if self.average == "macro":
            super().merge(states)
        else:
            self._sums = sum(states, start=numpy.zeros(self.width))

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of sums."""
        if self.average == "macro":
            return float(super().evaluate(state))
        return self.score(*state.tolist()) if state.any() else math.nan


class _Binary(_Averaged):
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
        self._add(counts)


@register()
class F1(_Binary):
    """Harmonic mean of precision and recall of class 1; 0 where there are no true positives."""

    default_name = "f1"

    def score(self, *sums: float) -> float:
        """``2·tp / (2·tp + fp + fn)``."""
        tp, fp, fn, _ = sums
        return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


@register()
class MCC(_Binary):
    """Matthews' correlation coefficient of two classes; 0 where a class is missing on either side."""

    default_name = "mcc"

    def score(self, *sums: float) -> float:
        """The correlation of prediction and truth."""
        tp, fp, fn, tn = sums
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0


@register()
class Perplexity(EvalMetric):
    """``exp`` of the mean of −log p(label) over all labels but ``ignore_label``; classes lie on ``axis``."""

    default_name = "perplexity"

    def __init__(self, ignore_label: int | None = None, axis: int = -1, name: str | None = None, **names: Any) -> None:
        super().__init__(name, **names, ignore_label=ignore_label, axis=axis)
        self.ignore_label = ignore_label
        self.axis = axis

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: as many labels as predictions without their class axis."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, -pred.ndim <= self.axis < pred.ndim)
            self._must_agree(label, pred, label.size * pred.shape[self.axis] == pred.size)
            rows = numpy.moveaxis(pred, self.axis, -1).reshape(label.size, -1)
            label = label.reshape(-1)
            if self.ignore_label is not None:
                counted = label != self.ignore_label
                rows, label = rows[counted], label[counted]
            probabilities = numpy.maximum(self._probabilities(label, rows), 1e-10)
            self.sum_metric -= float(numpy.log(probabilities).sum())
            self.num_inst += label.size

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of sums."""
        return math.exp(super().evaluate(state))


class _UpdateMean(EvalMetric):
    """The mean over updates of a distance of predictions and labels of one shape; (n,) counts as (n, 1)."""

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        raise AttributeValueError(f"metric {type(self).__name__}: the class must define distance()")

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for label, pred in self._pairs(labels, preds):
            label, pred = (array[:, None] if array.ndim == 1 else array for array in (label, pred))
            self._must_agree(label, pred, label.shape == pred.shape)
            self.sum_metric += self.distance(numpy.subtract(label, pred, dtype=numpy.float64))
            self.num_inst += 1


@register()
class MAE(_UpdateMean):
    """Mean absolute error."""

    default_name = "mae"

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return float(numpy.abs(difference).mean())


@register()
class MSE(_UpdateMean):
    """Mean squared error."""

    default_name = "mse"

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return float(numpy.square(difference).mean())


@register()
class RMSE(_UpdateMean):
    """Root of the mean squared error of every update, averaged."""

    default_name = "rmse"

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return math.sqrt(numpy.square(difference).mean())


@register("ce", "cross-entropy")
class CrossEntropy(EvalMetric):
    """The mean of −log(p(label) + eps); predictions (…, classes)."""

    default_name = "cross-entropy"

    def __init__(self, eps: float = 1e-12, name: str | None = None, **names: Any) -> None:
        super().__init__(name, **names, eps=eps)
        self.eps = eps

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, pred.ndim > 0 and label.size * pred.shape[-1] == pred.size)
            probabilities = self._probabilities(label, pred.reshape(label.size, -1))
            self.sum_metric -= float(numpy.log(probabilities + self.eps).sum())
            self.num_inst += label.size


@register("nll_loss", "nll-loss")
class NegativeLogLikelihood(CrossEntropy):
    """`CrossEntropy` under another name."""

    default_name = "nll-loss"


@register("pearsonr")
class PearsonCorrelation(_Averaged):
    """Pearson's correlation; NaN where labels or predictions do not vary."""

    default_name = "pearsonr"
    width = 6

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: labels and predictions of one size."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, label.size == pred.size)
            x, y = (array.reshape(-1).astype(numpy.float64) for array in (label, pred))
            if self.average == "macro":  # whose sums need not add up
                x, y = x - x.mean(), y - y.mean()
            self._add(numpy.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y]))

    def score(self, *sums: float) -> float:
        """From count, Σx, Σy, Σx², Σy², Σxy."""
        n, x, y, xx, yy, xy = sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return (n * xy - x * y) / math.sqrt(spread) if spread > 0 else math.nan


@register()
class Loss(EvalMetric):
    """The mean of all predicted values; labels do not matter."""

    default_name = "loss"

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for one in [preds] if hasattr(preds, "shape") else preds:
            pred = asnumpy(one)
            self.sum_metric += float(pred.sum(dtype=numpy.float64))
            self.num_inst += pred.size
