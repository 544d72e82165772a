"""Measures of how good predictions are, kept as sums that add up over batches, devices and ranks.

``metric.update(labels, preds)`` takes lists of arrays of any device. `EvalMetric.state` gives the sums as one
vector; the vectors of all ranks added and given to `EvalMetric.merge` make it the metric of all of them.
MAE, MSE, RMSE and the ``macro`` averages are means over updates (every update weighs the same), the others
are over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError
from .metric_base import (
    CompositeEvalMetric,
    CustomMetric,
    EvalMetric,
    Host,
    check_label_shapes,
    create,
    np,
    register,
)
from .metric_classes import F1, MCC, PCC, Accuracy, Averaged, TopKAccuracy

__all__ = [
    "check_label_shapes",
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
    "PCC",
    "Perplexity",
    "MAE",
    "MSE",
    "RMSE",
    "CrossEntropy",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Loss",
    "Torch",
    "Caffe",
]


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
class PearsonCorrelation(Averaged):
    """Pearson's correlation; NaN where labels or predictions do not vary."""

    default_name = "pearsonr"
    width = 6

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: labels and predictions of one size."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, label.size == pred.size)
            x, y = (array.reshape(-1).astype(numpy.float64) for array in (label, pred))
            if self.over_updates:  # whose sums need not add up
                x, y = x - x.mean(), y - y.mean()
            self.add(numpy.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y]))

    def score(self, sums: Host) -> float:
        """From count, Σx, Σy, Σx², Σy², Σxy."""
        n, x, y, xx, yy, xy = sums.tolist()
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


@register()
class Torch(Loss):
    """`Loss` under an older name."""

    default_name = "torch"


@register()
class Caffe(Loss):
    """`Loss` under an older name."""

    default_name = "caffe"
