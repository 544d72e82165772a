"""``mx.metric``: the metrics of the engine, which take NDArrays; one of a program's own gets NDArrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...train import metric as _core
from ...train import metric_base as _base
from .array import unwrap, wrap
from .refused import found_in

__all__ = [
    "CompositeEvalMetric", "CustomMetric", "EvalMetric", "alias", "check_label_shapes", "create", "np", "register",
]  # fmt: skip


class EvalMetric(_base.EvalMetric):
    """Base of metrics: a subclass gives ``update(labels, preds)``, lists of NDArrays."""

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """`update` with arrays by name."""
        super().update_dict(*({name: wrap(array) for name, array in given.items()} for given in (label, pred)))


class _Taken:
    """A metric of the engine that takes NDArrays."""

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Add the predictions of a batch and their labels."""
        super().update(unwrap(labels), unwrap(preds))  # type: ignore[misc]

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """`update` with arrays by name."""
        super().update_dict(unwrap(dict(label)), unwrap(dict(pred)))  # type: ignore[misc]


class CompositeEvalMetric(_base.CompositeEvalMetric, EvalMetric):
    """Several metrics as one."""

    def __init__(self, metrics: Sequence[Any] | None = None, *args: Any, **keywords: Any) -> None:
        super().__init__([create(metric) for metric in metrics or ()], *args, **keywords)

    def add(self, metric: Any) -> None:
        """Add a metric, or what `create` makes one of."""
        super().add(create(metric))

    def update(self, labels: Sequence[Any], preds: Sequence[Any]) -> None:
        """Add a batch to every metric."""
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Any], pred: Mapping[str, Any]) -> None:
        """Add a batch to every metric, each with the arrays that it picks."""
        for metric in self.metrics:
            metric.update_dict(label, pred)


class CustomMetric(_Taken, _base.CustomMetric, EvalMetric):
    """The mean of ``feval(label, pred)``, which gets NumPy arrays."""


def create(metric: Any, *args: Any, **kwargs: Any) -> Any:
    """The metric of a registered name, of a function ``(label, pred)``, of a list of these, or the one given."""
    if isinstance(metric, list | tuple):
        return CompositeEvalMetric([create(one, *args, **kwargs) for one in metric])
    found = _base.create(metric, *args, **kwargs)
    if found is not metric and not isinstance(found, EvalMetric):
        found.__class__ = _class(type(found))
    return found


def np(numpy_feval: Any, name: str | None = None, allow_extra_outputs: bool = False) -> CustomMetric:
    """A `CustomMetric` of a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)


def register(klass: Any, *aliases: str) -> Any:
    """Class decorator: make a metric known to `create` under its name in lower case."""
    return _base.register(*aliases)(klass)


def alias(*aliases: str) -> Any:
    """Class decorator: make a metric known to `create` under more names."""
    return _base.register(*aliases)


check_label_shapes = _base.check_label_shapes

_classes: dict[type, type] = {
    _base.EvalMetric: EvalMetric, _base.CompositeEvalMetric: CompositeEvalMetric, _base.CustomMetric: CustomMetric,
}  # fmt: skip


def _class(core: type) -> type:
    """The class here that stands for one of the engine."""
    if core not in _classes:
        _classes[core] = type(core.__name__, (_Taken, core, EvalMetric), {"__doc__": core.__doc__})
    return _classes[core]


def __getattr__(name: str) -> Any:
    found = found_in(_core, "metric", name, __dir__())
    return _class(found) if isinstance(found, type) and issubclass(found, _base.EvalMetric) else found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_core) if name[:1] != "_")})
