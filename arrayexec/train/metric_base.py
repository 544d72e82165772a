"""What all metrics share: sums that add up, names, combinations of several, metrics from functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy

from ..context import Array, asnumpy
from ..errors import AttributeValueError, ShapeError, UnknownNameError, near_miss
from .options import made

Host = numpy.ndarray[Any, Any]

_registry: dict[str, type[EvalMetric]] = {}
_Class = TypeVar("_Class", bound="type[EvalMetric]")


def register(*aliases: str) -> Callable[[_Class], _Class]:
    """Make a metric known to `create` under its class name in lower case and under ``aliases``."""

    def add(cls: _Class) -> _Class:
        _registry.update(dict.fromkeys((cls.__name__.lower(), *aliases), cls))
        return cls

    return add


def create(metric: Any, *args: Any, **options: Any) -> EvalMetric:
    """The metric of a registered name, of a function ``(label, pred)``, of a list of these, or the one given.

    Raises AttributeValueError for an unknown name or option, with the nearest known one.
    """
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric([create(one, *args, **options) for one in metric])
    if callable(metric):
        return made("metric", "custom", _registry, metric, *args, **options)
    return made("metric", metric, _registry, *args, **options)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> tuple[Any, Any]:
    """Labels and predictions as they are, or (``wrap``) single arrays as lists of one.

    Raises ShapeError unless they are as many, or (``shape``) of one shape.
    """
    sizes = [one.shape if shape else len(one) for one in (labels, preds)]
    if sizes[0] != sizes[1]:
        what = "have the shape of predictions" if shape else "be as many as predictions"
        raise ShapeError(f"check_label_shapes: labels must {what}, but they are {sizes[0]} and {sizes[1]}")
    if wrap:
        labels, preds = ([one] if hasattr(one, "shape") else one for one in (labels, preds))
    return labels, preds


class EvalMetric:
    """A mean, ``sum_metric / num_inst``; NaN before the first update.

    A subclass adds to the two in `update`, or gives `reset`, `state`, `merge` and `evaluate` for other sums. One that
    gives `reset` and `get` alone keeps sums that nobody else knows: they are not added over ranks, not saved, and no
    window is cut out of them. ``output_names`` and ``label_names`` pick what `update_dict` uses.
    """

    default_name: ClassVar[str] = "metric"
    sum_metric: float = 0.0
    num_inst: int = 0
    num_resets: int = 0
    _past: Host | None = None  # sums at the last reset_local

    def __init__(
        self,
        name: str | None = None,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **config: Any,
    ) -> None:
        self.name = name or self.default_name
        self.output_names = output_names
        self.label_names = label_names
        self._config = config
        self._given: tuple[Sequence[str], Sequence[str]] | None = None  # names of labels and outputs, where known
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.sum_metric = 0.0
        self.num_inst = 0
        self.num_resets += 1
        self._past = None

    def reset_local(self) -> None:
        """Let `get` begin anew; `get_global` still gives the value since `reset`."""
        self._past = self.state()

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add the predictions of a batch and their labels."""
        raise AttributeValueError(f"metric {type(self).__name__}: the class must define update()")

    def update_dict(self, label: Mapping[str, Array], pred: Mapping[str, Array]) -> None:
        """`update` with arrays by name, restricted to ``label_names`` and ``output_names`` where given.

        Raises UnknownNameError for a name that is not there.
        """
        labels = self._picked(label, self.label_names, "label")
        outputs = self._picked(pred, self.output_names, "output")
        self._given = labels, outputs
        try:
            self.update([label[name] for name in labels], [pred[name] for name in outputs])
        finally:
            self._given = None

    def _picked(self, arrays: Mapping[str, Array], names: Sequence[str] | None, role: str) -> list[str]:
        for name in names or ():
            if name not in arrays:
                raise UnknownNameError(f"metric {self.name!r}: there is no {role} {name!r}{near_miss(name, arrays)}")
        return list(arrays if names is None else names)

    def state(self) -> Host:
        """The sums as a float64 vector; those of several ranks may be added. Empty where a subclass keeps its own."""
        if self._own_sums():
            return numpy.zeros(0)
        return numpy.array([self.sum_metric, self.num_inst], numpy.float64)

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums by the total of ``states``."""
        if self._own_sums():
            return
        self.sum_metric, count = map(float, sum(states, start=numpy.zeros(2)))
        self.num_inst = int(count)

    def evaluate(self, state: Host) -> Any:
        """The value that belongs to a vector of sums."""
        total, count = map(float, state)
        return total / count if count else math.nan

    def get(self) -> tuple[Any, Any]:
        """Name and value, since `reset` or `reset_local`."""
        return self.name, self.evaluate(self._window())

    def get_name_value(self, state: Host | None = None) -> list[tuple[str, float]]:
        """``[(name, value)]``, since `reset` or `reset_local`, or of a ``state`` given."""
        if type(self).get is not EvalMetric.get:
            names, values = self.get()
            return list(zip(names, values, strict=True)) if isinstance(names, list | tuple) else [(names, values)]
        return [(self.name, self.evaluate(self._window() if state is None else state))]

    def _window(self) -> Host:
        """The sums since `reset` or `reset_local`, also where nobody else is told of them."""
        plain = type(self).state is EvalMetric.state
        sums = numpy.array([self.sum_metric, self.num_inst], numpy.float64) if plain else self.state()
        return sums if self._past is None or not self._past.size else sums - self._past

    def values_of(self, state: Host) -> list[tuple[str, float]]:
        """`get_name_value` of a ``state``; of a class that keeps its own sums, those of `get_name_value`."""
        return self.get_name_value() if self._own_sums() else self.get_name_value(state)

    def _own_sums(self) -> bool:
        """Whether a subclass gives values in its own way."""
        given = type(self).get, type(self).get_name_value
        return given not in [(base.get, base.get_name_value) for base in (EvalMetric, CompositeEvalMetric)]

    def get_global(self) -> tuple[Any, Any]:
        """Name and value since `reset`, whatever `reset_local` did."""
        if self._own_sums():
            return self.get()
        return self.name, self.evaluate(self.state())

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """``[(name, value)]`` since `reset`, whatever `reset_local` did."""
        return self.values_of(self.state())

    def get_config(self) -> dict[str, Any]:
        """What `create` needs to make such a metric."""
        names = {"output_names": self.output_names, "label_names": self.label_names}
        return {"metric": type(self).__name__, "name": self.name, **names, **self._config}

    def __str__(self) -> str:
        return f"{type(self).__name__}: {dict(self.get_name_value())}"

    def _pairs(self, labels: Sequence[Array], preds: Sequence[Array]) -> Iterator[tuple[Host, Host]]:
        """Host arrays of every label and its prediction that hold any; raises ShapeError unless they are as many."""
        labels, preds = ([arrays] if hasattr(arrays, "shape") else list(arrays) for arrays in (labels, preds))
        if len(labels) != len(preds):
            names = ""
            if self._given is not None:
                names = ": labels {}; outputs {}\n  choose with label_names= and output_names=".format(
                    *(", ".join(map(repr, held)) or "none" for held in self._given)
                )
            raise ShapeError(
                f"metric {self.name!r}: there must be as many label arrays as predictions, but there are "
                f"{len(labels)} and {len(preds)}{names}"
            )
        for label, pred in zip(map(_plain, labels), map(_plain, preds), strict=True):
            if label.size or pred.size:
                yield label, pred

    def _must_agree(self, label: Host, pred: Host, agree: bool) -> None:
        if not agree:
            raise ShapeError(
                f"metric {self.name!r}: labels and predictions must belong to the same samples, but their "
                f"shapes are {label.shape} and {pred.shape}"
            )

    def _classes(self, label: Host, count: int) -> numpy.ndarray[Any, numpy.dtype[numpy.intp]]:
        """The labels as a vector of integers; raises AttributeValueError for one outside of 0..count − 1."""
        classes = numpy.trunc(label).reshape(-1)
        wrong = (classes < 0) | (classes >= count)
        if wrong.any():
            raise AttributeValueError(
                f"metric {self.name!r}: labels must be in 0..{count - 1}, but one is {classes[wrong][0]:g}"
            )
        return classes.astype(numpy.intp)

    def _probabilities(self, label: Host, pred: Host) -> Host:
        """The entry of each row of ``pred`` (n, classes) that its label names, as float64."""
        picked: Host = pred[numpy.arange(len(pred)), self._classes(label, pred.shape[1])]
        return picked.astype(numpy.float64)


def _plain(array: Array) -> Host:
    """As NumPy array, of a type that all of its functions take."""
    host = asnumpy(array)
    return host.astype(numpy.float32) if host.dtype.kind == "V" else host


@register("composite")
class CompositeEvalMetric(EvalMetric):
    """Several metrics as one; `get` gives lists."""

    default_name = "composite"

    def __init__(self, metrics: Sequence[Any] | None = None, name: str | None = None, **names: Any) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, **names)

    def add(self, metric: Any) -> None:
        """Append a metric, or what `create` makes one of."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> EvalMetric:
        """The metric of a number; raises AttributeValueError where there is none."""
        if not 0 <= index < len(self.metrics):
            raise AttributeValueError(
                f"metric {self.name!r}: it has {len(self.metrics)} metrics, so there is no number {index}"
            )
        return self.metrics[index]

    def reset(self) -> None:
        """Reset every metric."""
        self.num_resets += 1
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        """Let `get` of every metric begin anew."""
        for metric in self.metrics:
            metric.reset_local()

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Update every metric."""
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: Mapping[str, Array], pred: Mapping[str, Array]) -> None:
        """Update every metric with the arrays that it picks."""
        for metric in self.metrics:
            metric.update_dict(label, pred)

    def state(self) -> Host:
        """The sums of all metrics, one after the other."""
        return numpy.concatenate([numpy.empty(0), *(metric.state() for metric in self.metrics)])

    def merge(self, states: Iterable[Host]) -> None:
        """Replace the sums of every metric by the total of ``states``."""
        total = sum(states, start=numpy.zeros(self.state().size))
        for metric, state in zip(self.metrics, self._parts(total), strict=True):
            metric.merge([state])

    def evaluate(self, state: Host) -> list[Any]:
        """The values of all metrics."""
        parts = self._parts(state)
        return [metric.evaluate(part) for metric, part in zip(self.metrics, parts, strict=True)]

    def get(self) -> tuple[list[Any], list[Any]]:
        """Names and values."""
        pairs = self.get_name_value()
        return [name for name, _ in pairs], [value for _, value in pairs]

    def get_global(self) -> tuple[list[Any], list[Any]]:
        """Names and values since `reset`, whatever `reset_local` did."""
        pairs = self.get_global_name_value()
        return [name for name, _ in pairs], [value for _, value in pairs]

    def get_name_value(self, state: Host | None = None) -> list[tuple[str, float]]:
        """``[(name, value), …]`` of all metrics."""
        if state is None:
            return [pair for metric in self.metrics for pair in metric.get_name_value()]
        parts = self._parts(state)
        return [pair for metric, part in zip(self.metrics, parts, strict=True) for pair in metric.values_of(part)]

    def _parts(self, state: Host) -> list[Host]:
        ends = numpy.cumsum([metric.state().size for metric in self.metrics])
        return numpy.split(state, ends[:-1]) if self.metrics else []


@register("custom")
class CustomMetric(EvalMetric):
    """The mean of ``feval(label, pred)``, which gives a value for the batch or a pair (sum, count).

    With ``allow_extra_outputs``, predictions beyond the labels are not looked at.
    """

    def __init__(
        self,
        feval: Callable[[Host, Host], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        **names: Any,
    ) -> None:
        if name is None:
            name = getattr(feval, "__name__", type(feval).__name__)
            name = f"custom({name})" if "<" in name else name
        super().__init__(name, **names, feval=feval, allow_extra_outputs=allow_extra_outputs)
        self._feval = feval
        self._allow_extra_outputs = allow_extra_outputs

    def update(self, labels: Sequence[Array], preds: Sequence[Array]) -> None:
        """Add a batch."""
        if self._allow_extra_outputs and not hasattr(preds, "shape"):
            preds = preds[: len(labels)]
        for label, pred in self._pairs(labels, preds):
            value = self._feval(label, pred)
            try:
                total, count = map(float, value if isinstance(value, tuple) else (value, 1))
            except (TypeError, ValueError) as error:
                wanted = "its function must give a number, or a sum and a count"
                raise AttributeValueError(f"metric {self.name!r}: {wanted}, but it gives {value!r:.60}") from error
            self.sum_metric += total
            self.num_inst += int(count)


def np(
    numpy_feval: Callable[[Host, Host], Any], name: str | None = None, allow_extra_outputs: bool = False
) -> CustomMetric:
    """A `CustomMetric` of a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)
