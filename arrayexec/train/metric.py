"""Measures of how good predictions are, kept as sums that add up over batches, devices and ranks.

``metric.update(labels, preds)`` takes lists of arrays of any device. `EvalMetric.state` gives the sums as one
vector; the vectors of all ranks added and given to `EvalMetric.merge` make it the metric of all of them.
MAE, MSE, RMSE and the ``macro`` averages are means over updates (every update weighs the same), the others
are over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError
from .metric_base import CompositeEvalMetric, CustomMetric, EvalMetric, Host, create, np, register

__all__ = [
    "Accuracy",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "F1",
    "Loss",
    "MAE",
    "MCC",
    "MSE",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "RMSE",
    "TopKAccuracy",
    "create",
    "np",
    "register",
]


@register("acc")
class Accuracy(EvalMetric):
    """The share of right predictions: scores along ``axis``, or classes where the shapes are equal."""

    def __init__(self, axis: int = 1, name: str = "accuracy", **names: Any) -> None:
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
            raise AttributeValueError(
                f"TopKAccuracy: top_k must be at least 2 (Accuracy is 1), but it is {top_k}"
            )
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


class _BinaryMetric(EvalMetric):
    """From the counts of true and false positives and negatives of two classes."""

    def __init__(self, name: str, average: str = "macro", **names: Any) -> None:
        if average not in ("macro", "micro"):
            raise AttributeValueError(
                f"{type(self).__name__}: average must be 'macro' or 'micro', but it is {average!r}"
            )
        self.average = average
        super().__init__(name, **names, average=average)

    def score(self, tp: float, fp: float, fn: float, tn: float) -> float:
        """The value of four counts."""
        raise AttributeValueError(f"metric {type(self).__name__}: the class must define score()")

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._counts = numpy.zeros(4)

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: predictions (n, 2) or (n, 1, 2), labels 0 or 1.

        Raises AttributeValueError for other labels.
        """
        counts = numpy.zeros(4)
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, pred.shape[-1] == 2 and pred.size == 2 * label.size)
            positive = pred.reshape(-1, 2).argmax(1) == 1
            label = label.reshape(-1)
            if not numpy.isin(label, (0, 1)).all():
                raise AttributeValueError(f"metric {self.name!r}: labels must be 0 or 1, but one is "
                                          f"{label[~numpy.isin(label, (0, 1))][0]:g}")  # fmt: skip
            truth = label == 1
            counts += [
                (positive & truth).sum(),
                (positive & ~truth).sum(),
                (~positive & truth).sum(),
                (~positive & ~truth).sum(),
            ]
        if self.average == "macro":
            self.sum_metric += self.score(*counts)
            self.num_inst += 1
        else:
            self._counts += counts

    def state(self) -> Host:
        """The sums as a float64 vector."""
        return super().state() if self.average == "macro" else self._counts.copy()

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums by the total of ``states``."""
        if self.average == "macro":
            super().merge(states)
        else:
            self._counts = sum(states, start=numpy.zeros(4))

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of sums."""
        if self.average == "macro":
            return float(super().evaluate(state))
        return self.score(*state) if state.any() else math.nan


@register()
class F1(_BinaryMetric):
    """Harmonic mean of precision and recall of class 1; 0 where there are no true positives."""

    def __init__(self, name: str = "f1", average: str = "macro", **names: Any) -> None:
        super().__init__(name, average, **names)

    def score(self, tp: float, fp: float, fn: float, tn: float) -> float:
        """``2·tp / (2·tp + fp + fn)``."""
        return float(2 * tp / (2 * tp + fp + fn)) if tp else 0.0


@register()
class MCC(_BinaryMetric):
    """Matthews' correlation coefficient of two classes; 0 where a class is missing on either side."""

    def __init__(self, name: str = "mcc", average: str = "macro", **names: Any) -> None:
        super().__init__(name, average, **names)

    def score(self, tp: float, fp: float, fn: float, tn: float) -> float:
        """The correlation of prediction and truth."""
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return float((tp * tn - fp * fn) / math.sqrt(product)) if product else 0.0


@register()
class Perplexity(EvalMetric):
    """``exp`` of the mean of −log p(label) over all labels but ``ignore_label``; classes lie on ``axis``."""

    def __init__(
        self, ignore_label: int | None = None, axis: int = -1, name: str = "perplexity", **names: Any
    ) -> None:
        super().__init__(name, **names, ignore_label=ignore_label, axis=axis)
        self.ignore_label = ignore_label
        self.axis = axis

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: as many labels as predictions without their class axis."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, label.size * pred.shape[self.axis] == pred.size)
            rows = numpy.moveaxis(pred, self.axis, -1).reshape(label.size, -1)
            label = label.reshape(-1)
            if self.ignore_label is not None:
                counted = label != self.ignore_label
                rows, label = rows[counted], label[counted]
            probabilities = numpy.maximum(self._probabilities(label, rows), 1e-10)
            self.sum_metric -= float(numpy.log(probabilities).sum(dtype=numpy.float64))
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

    def __init__(self, name: str = "mae", **names: Any) -> None:
        super().__init__(name, **names)

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return float(numpy.abs(difference).mean())


@register()
class MSE(_UpdateMean):
    """Mean squared error."""

    def __init__(self, name: str = "mse", **names: Any) -> None:
        super().__init__(name, **names)

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return float(numpy.square(difference).mean())


@register()
class RMSE(_UpdateMean):
    """Root of the mean squared error of every update, averaged."""

    def __init__(self, name: str = "rmse", **names: Any) -> None:
        super().__init__(name, **names)

    def distance(self, difference: Host) -> float:
        """The distance of one update."""
        return math.sqrt(numpy.square(difference).mean())


@register("ce", "cross-entropy")
class CrossEntropy(EvalMetric):
    """The mean of −log(p(label) + eps); predictions (…, classes)."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", **names: Any) -> None:
        super().__init__(name, **names, eps=eps)
        self.eps = eps

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, label.size * pred.shape[-1] == pred.size)
            probabilities = self._probabilities(label, pred.reshape(label.size, -1)).astype(numpy.float64)
            self.sum_metric -= float(numpy.log(probabilities + self.eps).sum())
            self.num_inst += label.size


@register("nll_loss", "nll-loss")
class NegativeLogLikelihood(CrossEntropy):
    """`CrossEntropy` under another name."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", **names: Any) -> None:
        super().__init__(eps, name, **names)


@register("pearsonr")
class PearsonCorrelation(EvalMetric):
    """Pearson's correlation: the mean over updates (``macro``) or that of all samples (``micro``)."""

    def __init__(self, name: str = "pearsonr", average: str = "macro", **names: Any) -> None:
        if average not in ("macro", "micro"):
            raise AttributeValueError(
                f"PearsonCorrelation: average must be 'macro' or 'micro', but it is {average!r}"
            )
        self.average = average
        super().__init__(name, **names, average=average)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._moments = numpy.zeros(6)

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch: labels and predictions of one size."""
        for label, pred in self._pairs(labels, preds):
            self._must_agree(label, pred, label.size == pred.size)
            x, y = (array.reshape(-1).astype(numpy.float64) for array in (label, pred))
            if self.average == "macro":  # whose sums need not add up
                x, y = x - x.mean(), y - y.mean()
            moments = numpy.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y])
            if self.average == "micro":
                self._moments += moments
            else:
                self.sum_metric += _correlation(moments)
                self.num_inst += 1

    def state(self) -> Host:
        """The sums as a float64 vector."""
        return super().state() if self.average == "macro" else self._moments.copy()

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums by the total of ``states``."""
        if self.average == "macro":
            super().merge(states)
        else:
            self._moments = sum(states, start=numpy.zeros(6))

    def evaluate(self, state: Host) -> float:
        """The value that belongs to a vector of sums."""
        return float(super().evaluate(state)) if self.average == "macro" else _correlation(state)


def _correlation(moments: Host) -> float:
    """From count, Σx, Σy, Σx², Σy², Σxy; NaN where one of the two does not vary."""
    n, x, y, xx, yy, xy = map(float, moments)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return (n * xy - x * y) / math.sqrt(spread) if spread > 0 else math.nan


@register()
class Loss(EvalMetric):
    """The mean of all predicted values; labels do not matter."""

    def __init__(self, name: str = "loss", **names: Any) -> None:
        super().__init__(name, **names)

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        for one in [preds] if hasattr(preds, "shape") else preds:
            pred = asnumpy(one)
            self.sum_metric += float(pred.sum(dtype=numpy.float64))
            self.num_inst += pred.size
