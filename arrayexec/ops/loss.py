"""Loss heads: their output is a prediction (or a loss), their gradient starts the flow whatever stands behind them.

Labels may be of any numeric type and have no gradient; classes are truncated, and NaN or infinity is no class. Batches
without rows are legal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from ..dims import ANY, UNKNOWN, product
from ..errors import AttributeValueError, format_shape
from ..registry import Op, Sample, Temp, register_op
from .bounds import at_least
from .checks import check_axis, check_floating
from .index import class_places, class_temps, gather
from .precision import wide
from .softmax import check_not_empty, keep_where, row_temp, sigmoid, softmax_into


@register_op(aliases=("Softmax",))
class SoftmaxOutput(Op):
    """``out`` = softmax of ``data``; the gradient is that of the cross-entropy with ``label``.

    The classes are on axis 1: data (n, k), label (n,). With ``multi_output`` data is (n, k, …), label (n, places),
    (n, …) or (n, 1, …); with ``preserve_shape`` the classes are on the last axis, label is data's shape without it.
    Data of more dims needs one of the two. A label of data's own shape holds probabilities: the gradient is
    grad_scale · (out - label), the other attributes do not count (and the classes are all axes but the first).

    Gradient of a class: grad_scale · (out - t) / m. t is 1 - smooth_alpha at the label, else smooth_alpha / (k - 1); a
    label that is no class subtracts nothing. m is the number of places a row (``null``), of places (``batch``), of
    labels other than ignore_label (``valid``; at least 1). ``use_ignore`` sets the gradient of places labelled
    ignore_label to 0. With ``out_grad`` the gradient is multiplied with the one that arrives. A NaN makes the place's
    classes NaN, and their gradient unless it is ignored.
    """

    grad_scale: float = 1.0
    ignore_label: float = -1.0
    multi_output: bool = False
    use_ignore: bool = False
    preserve_shape: bool = False
    normalization: Literal["null", "batch", "valid"] = "null"
    out_grad: bool = False
    smooth_alpha: float = 0.0
    no_gradient = ("label",)
    inplace = {"out": "data"}  # noqa: RUF012
    examples = (
        {"data": (4, 3), "label": Sample((4,), 0, 2, True), "grad_scale": 2.0},
        {"data": (6, 3), "label": Sample((6,), 0, 1, True), "ignore_label": 1.0, "use_ignore": True},
        {"data": (4, 3), "label": Sample((4,), -1, 2, True), "normalization": "valid", "smooth_alpha": 0.2},
        {"data": (4, 3), "label": Sample((4,), 0, 2, True), "normalization": "batch"},
        {"data": (4, 3), "label": Sample((4,), 0, 2, True), "out_grad": True},
        {"data": (2, 3, 2, 2), "label": Sample((2, 4), -1, 2, True), "multi_output": True, "smooth_alpha": 0.1},
        {"data": (2, 3, 4), "label": Sample((2, 4), 0, 2, True), "multi_output": True, "normalization": "batch"},
        {"data": (2, 2, 3), "label": Sample((2, 2), 0, 2, True), "preserve_shape": True},
    )

    def __post_init__(self) -> None:
        if not math.isfinite(self.ignore_label):
            raise AttributeValueError(
                f"SoftmaxOutput: attribute 'ignore_label' must be a finite number, but it is {self.ignore_label}"
            )

    def inputs(self) -> tuple[str, ...]:
        return ("data", "label")

    def unused(self) -> Iterable[str]:
        return () if self.out_grad else ("dout",)

    @property
    def rows(self) -> str | None:  # type: ignore[override]
        return "parallel" if self.normalization == "null" else None

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        check_axis(s, "data", 1)
        data, label = s.data, s.label
        if self.multi_output:
            options = [(data[0], product(data[2:])), (data[0], *data[2:]), (data[0], 1, *data[2:]), data]
        elif self.preserve_shape or len(data) == 2:
            options = [data[:-1], data]
        else:
            options = [data]
        one = 1 if self.multi_output else -1
        for axis in (one,) if self.multi_output or self.preserve_shape else range(1, len(data)):
            check_not_empty(s, axis)
        if label is ANY:
            if len(options) > 1:
                s.assume("label", options[0])
            return
        fits = [option for option in options if len(option) == len(label)]
        if len(fits) > 1 and len(label) == len(data) and data[1] != 1:  # (n, 1, …) or probabilities
            fits = [data if label[1] != 1 else fits[0]]
        pairs = zip(label, fits[0], strict=True) if fits and len(label) == len(data) and len(options) > 1 else ()
        if not fits or any(a is not UNKNOWN and b is not UNKNOWN and a != b for a, b in pairs):
            hint = "; multi_output=True or preserve_shape=True says where the classes are" if len(options) == 1 else ""
            choice = " or ".join(dict.fromkeys(map(format_shape, options)))
            s.fail("label", f"must be {choice} for data {format_shape(data)}, but it is {format_shape(label)}{hint}")
        s.label = fits[0]

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def _view(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """``shape`` as (rows, classes, places)."""
        if self.multi_output:
            return shape[0], shape[1], math.prod(shape[2:])
        if self.preserve_shape:
            return math.prod(shape[:-1]), shape[-1], 1
        return shape[0], math.prod(shape[1:]), 1

    def temps(self, s: Any) -> dict[str, Any]:
        shape, kind = self._view(s.data), s.dtype("data")
        rows, inner = (0, 0) if s.label == s.data else (shape[0], shape[2])
        return {
            "row": row_temp(shape, 1, kind), **class_temps(rows, inner), "picked": ((rows, inner), kind),
            "amount": ((rows, inner), kind),
        }  # fmt: skip

    def forward(self, xp: Any, data: Any, out: Any, row: Temp) -> None:
        if out.ndim == 2 or self.multi_output or self.preserve_shape:
            axis = -1 if self.preserve_shape and not self.multi_output else 1
            softmax_into(xp, data, out, axis, row.reshape(row_temp(out.shape, axis, out.dtype)[0]))
        else:
            xp.copyto(out, data)
            view = out.reshape(self._view(out.shape))
            softmax_into(xp, view, view, 1, row)

    def backward(
        self, xp: Any, dout: Any, label: Any, out: Any, ddata: Any, place: Temp, index: Temp, outside: Temp,
        picked: Temp, amount: Temp,
    ) -> None:  # fmt: skip
        if label.shape == out.shape:
            xp.subtract(out, label, out=ddata)
            xp.multiply(ddata, self.grad_scale, out=ddata)
        elif out.size:
            self._from_classes(xp, label, out, ddata, place, index, outside, picked, amount)
        if self.out_grad:
            xp.multiply(ddata, dout, out=ddata)

    def _from_classes(
        self, xp: Any, label: Any, out: Any, ddata: Any, place: Any, index: Any, outside: Any, picked: Any, amount: Any
    ) -> None:
        rows, classes, inner = self._view(out.shape)
        scale: Any = self.grad_scale / {"null": inner, "batch": rows * inner, "valid": 1}[self.normalization]
        if self.normalization == "valid":
            self._ignored(xp, label, index, outside)
            counted = xp.sum(outside.reshape(1, -1), axis=1, dtype=wide(out.dtype))
            scale = scale / xp.maximum(rows * inner - counted, 1)
        elsewhere = self.smooth_alpha / max(classes - 1, 1)
        if elsewhere:
            xp.subtract(out, elsewhere, out=ddata)
            xp.multiply(ddata, scale, out=ddata)
        else:
            xp.multiply(out, scale, out=ddata)
        class_places(xp, label, place, index, classes, outside)
        xp.logical_not(outside, out=outside)
        xp.multiply(outside, scale * (1 - self.smooth_alpha - elsewhere), out=amount)
        flat = ddata.reshape(-1)
        gather(xp, flat, place, 0, picked)
        xp.subtract(picked, amount, out=picked)
        flat[place] = picked
        if self.use_ignore:
            self._ignored(xp, label, index, outside)
            xp.logical_not(outside, out=outside)
            view = ddata.reshape(rows, classes, inner)
            keep_where(xp, view, outside.reshape(rows, 1, inner), view)

    def _ignored(self, xp: Any, label: Any, index: Any, outside: Any) -> None:
        """Mark the labels that are ``ignore_label`` in ``outside``."""
        xp.copyto(index.reshape(label.shape), label, casting="unsafe")
        xp.equal(index, int(self.ignore_label), out=outside)


class Regression(Op):
    """Base of heads whose label has as many values as the data, and the gradient per row is scaled by their number."""

    grad_scale: float = 1.0
    no_gradient = ("label",)
    inplace = {"out": "data"}  # noqa: RUF012
    rows = "parallel"

    def inputs(self) -> tuple[str, ...]:
        return ("data", "label")

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out
        data, label = s.data, s.label
        if label is ANY:
            s.assume("label", data[:1] if len(data) == 2 and data[1] == 1 else data)
            return
        if not label:
            s.fail("label", "must have at least one dim")
        s.label = (data[0],) + (UNKNOWN,) * (len(label) - 1)
        if product(label) != product(data):
            s.fail("label", f"must have as many values as data {format_shape(data)}, but it is {format_shape(label)}")

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def _scale(self, xp: Any, label: Any, ddata: Any) -> None:
        """Multiply the gradient with grad_scale over the number of values a row."""
        xp.multiply(ddata, self.grad_scale / max(math.prod(label.shape[1:]), 1), out=ddata)


def _as(label: Any, data: Any) -> Any:
    return label if label.shape == data.shape else label.reshape(data.shape)


_REGRESSION_EXAMPLES = (
    {"data": (3, 2), "label": (3, 2), "grad_scale": 2.0},
    {"data": (3, 1), "label": (3,)},
    {"data": (2, 3, 2), "label": (2, 3, 2)},
)


@register_op
class LinearRegressionOutput(Regression):
    """``out`` = data; gradient grad_scale · (out - label) / values a row; label as data, or (n,) for data (n, 1).

    NaN in data or label is NaN in the gradient.
    """

    grad_scale: float = 1.0
    examples = _REGRESSION_EXAMPLES

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, label: Any, out: Any, ddata: Any) -> None:
        xp.subtract(out, _as(label, out), out=ddata)
        self._scale(xp, label, ddata)


@register_op
class LogisticRegressionOutput(LinearRegressionOutput):
    """``out`` = sigmoid(data); gradient grad_scale · (out - label) / values a row; labels as LinearRegressionOutput."""

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        sigmoid(xp, data, out)


@register_op
class MAERegressionOutput(Regression):
    """``out`` = data; gradient ± grad_scale / values a row, + where out > label, - elsewhere (equality, NaN)."""

    grad_scale: float = 1.0
    examples = _REGRESSION_EXAMPLES

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)

    def backward(self, xp: Any, label: Any, out: Any, ddata: Any) -> None:
        xp.greater(out, _as(label, out), out=ddata)
        xp.multiply(ddata, 2, out=ddata)
        xp.subtract(ddata, 1, out=ddata)
        self._scale(xp, label, ddata)


class Same(Op):
    """Base of operators whose output is their input."""

    inplace = {"out": "data"}  # noqa: RUF012

    def infer(self, s: Any) -> None:
        s.out = s.data
        s.data = s.out

    def forward(self, xp: Any, data: Any, out: Any) -> None:
        xp.copyto(out, data)


@register_op
class MakeLoss(Same):
    """``out`` = data, taken as a loss; gradient grad_scale, by ``normalization`` over the rows (``batch``) or over the
    number of values above valid_thresh (``valid``; at least 1)."""

    grad_scale: float = 1.0
    valid_thresh: float = 0.0
    normalization: Literal["null", "batch", "valid"] = "null"
    examples = (
        {"data": (3, 2), "grad_scale": 0.5},
        {"data": (3, 2), "normalization": "batch"},
        {"data": Sample((3, 2), -1, 1), "normalization": "valid", "valid_thresh": 0.3},
    )

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def keeps(self, want: frozenset[str]) -> Iterable[str]:
        return ("data",) if self.normalization == "valid" else ()

    def temps(self, s: Any) -> dict[str, Any]:
        return {"above": (s.data if self.normalization == "valid" else (0,), "bool")}

    def backward(self, xp: Any, data: Any, ddata: Any, above: Temp) -> None:
        if self.normalization != "valid":
            ddata.fill(self.grad_scale / (max(ddata.shape[0], 1) if self.normalization == "batch" else 1))
            return
        xp.greater(data, self.valid_thresh, out=above)
        count = xp.maximum(xp.sum(above.reshape(1, -1), axis=1, dtype=wide(ddata.dtype)), 1)
        xp.copyto(ddata, (self.grad_scale / count).reshape((1,) * ddata.ndim), casting="same_kind")


@register_op
class make_loss(Same):
    """``out`` = data, taken as a loss; gradient 1."""

    listed = ("loss",)
    rows = "parallel"
    examples = ({"data": (3, 2)},)

    def backward(self, xp: Any, ddata: Any) -> None:
        ddata.fill(1)


@register_op(aliases=("stop_gradient",))
class BlockGrad(Same):
    """``out`` = data; no gradient flows back through it."""

    rows = "parallel"
    examples = ({"data": (3, 2)},)

    def is_view(self, train: bool) -> bool:
        return True


_FLOOR = 1e-8


@register_op
class softmax_cross_entropy(Op):
    """``out`` (1,) = -Σ log max(p[label], 1e-8), p = softmax of data (n, k), label (n,).

    A label that is no class adds 0. The gradient is that of -Σ log p[label]: p - onehot(label), 0 where no class is.
    A NaN makes ``out`` NaN, whatever its row's label, and the gradient of its row if the label is a class.
    """

    no_gradient = ("label",)
    hidden = ("prob",)
    examples = (
        {"data": (3, 4), "label": Sample((3,), 0, 3, True)},
        {"data": (3, 4), "label": Sample((3,), -1, 4, True)},
    )

    def infer(self, s: Any) -> None:
        s.out = (1,)
        s.prob = s.data
        s.data = s.prob
        s.data = (UNKNOWN, UNKNOWN)
        s.label = s.data[:1]
        s.data = (*s.label, UNKNOWN)
        check_not_empty(s, 1)

    def types(self, t: Any) -> None:
        t.same()
        check_floating(t, "data")

    def total_outputs(self) -> int:
        return 1  # the files do not count prob

    def temps(self, s: Any) -> dict[str, Any]:
        kind, rows = s.dtype("data"), s.data[0]
        return {"row": row_temp(s.data, 1, kind), **class_temps(rows, 1), "picked": ((rows, 1), kind)}

    def forward(
        self, xp: Any, data: Any, label: Any, out: Any, prob: Any, row: Temp, place: Temp, index: Temp, outside: Temp,
        picked: Temp,
    ) -> None:  # fmt: skip
        softmax_into(xp, data, prob, 1, row)
        self._pick(xp, label, prob, place, index, outside, picked)
        at_least(xp, picked, _FLOOR, picked)
        xp.log(picked, out=picked)
        xp.multiply(picked, outside, out=picked)
        out[...] = -xp.sum(picked.reshape(1, -1), axis=1, dtype=wide(out.dtype))

    def _pick(self, xp: Any, label: Any, values: Any, place: Any, index: Any, outside: Any, picked: Any) -> None:
        """``picked`` = the values at the labels; ``outside`` turned into: is a class."""
        class_places(xp, label, place, index, values.shape[1], outside)
        xp.logical_not(outside, out=outside)
        gather(xp, values.reshape(-1), place, 0, picked)

    def backward(
        self,
        xp: Any,
        dout: Any,
        label: Any,
        prob: Any,
        ddata: Any,
        place: Temp,
        index: Temp,
        outside: Temp,
        picked: Temp,
    ) -> None:
        xp.multiply(prob, dout, out=ddata)
        self._pick(xp, label, ddata, place, index, outside, picked)
        xp.subtract(picked, dout, out=picked)
        ddata.reshape(-1)[place] = picked
        keep_where(xp, ddata, outside, ddata)
