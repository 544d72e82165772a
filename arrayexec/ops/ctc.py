"""Connectionist temporal classification: the loss of a labelling when nothing says which step has which label.

Labels are laid out with a blank around each: the states 0 … 2L, odd ones labels. Step by step, ``alpha`` is the log of
the summed probability of all ways to be in a state, and ``beta`` that of all ways to the end from there.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..dims import UNKNOWN
from ..errors import format_shape
from ..registry import Op, Sample, Temp, register_op
from .bounds import at_least
from .checks import check_floating
from .index import gather
from .precision import wide
from .softmax import keep_where

Array = Any
LOW = -1e30  # log of nothing: a sum with it is finite, whatever the number of steps


class _Labels(NamedTuple):
    """Labels of one batch, as the recursions read them."""

    lengths: Array  # (n, 1) labels of each row
    steps: Array  # (n, 1) steps of each row
    impossible: Array  # (n, 1) a label that cannot be emitted is among them
    places: Array  # (n, states) flat place of each state's class in one step's probabilities (n, classes)
    skips: Array  # (n, states) 0 where a state may follow the one two before it, else LOW


@register_op(aliases=("ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"))
class CTCLoss(Op):
    """``out`` = -log p(label): data (t, n, k) is softmaxed over k inside, label (n, l), out (n,).

    p sums over all alignments: sequences of classes that give the label when repetitions, then blanks are left out.
    The blank is class 0 (``blank_label="first"``), or k - 1 (``last``). A row's label ends before the first 0 (first)
    or -1 (last), or is the first ``label_lengths`` (n,) of it; its data are all steps, or the first ``data_lengths``
    (n,). Lengths are cut to what is there. Labels may be of any numeric type and are truncated.

    A label that no alignment gives, for it has too few steps, or holds the blank or what is no class, costs inf and has
    gradient 0. A row of NaN costs NaN and has gradient NaN. No label costs what blanks alone cost, no steps cost 0.
    """

    use_data_lengths: bool = False
    use_label_lengths: bool = False
    blank_label: Literal["first", "last"] = "first"
    outputs = ("out0",)
    hidden = ("alpha",)
    no_gradient = ("label", "data_lengths", "label_lengths")
    batch_axis = 1
    examples = (  # many classes: the few numbers that are made a row are little beside them
        {"data": (3, 6, 240), "label": Sample((6, 2), 1, 2, True)},
        {"data": (4, 6, 180), "label": Sample((6, 2), 0, 2, True), "use_data_lengths": True,
         "data_lengths": Sample((6,), 3, 4, True), "use_label_lengths": True,
         "label_lengths": Sample((6,), 0, 1, True), "blank_label": "last"},
    )  # fmt: skip

    def inputs(self) -> tuple[str, ...]:
        given = (("data_lengths", self.use_data_lengths), ("label_lengths", self.use_label_lengths))
        return ("data", "label", *(name for name, there in given if there))

    def infer(self, s: Any) -> None:
        s.data = (UNKNOWN,) * 3
        s.label = (s.data[1], UNKNOWN)
        s.out0 = s.label[:1]
        for name in ("data_lengths", "label_lengths"):
            if name in self.inputs():
                setattr(s, name, s.out0)
                s.out0 = getattr(s, name)
        s.data, s.label = (UNKNOWN, s.out0[0], UNKNOWN), (s.out0[0], UNKNOWN)
        steps, rows, classes = s.data
        s.alpha = (steps, rows, 2 * s.label[1] + 1)
        if classes == 0:
            s.fail("data", f"must have a class at least, the blank, but it is {format_shape(s.data)}")

    def types(self, t: Any) -> None:
        t.out0 = t.data
        t.data = t.out0
        check_floating(t, "data")
        if t.data is not None:
            t.alpha = wide(t.data)

    def temps(self, s: Any) -> dict[str, Any]:
        (_, rows, classes), (_, _, states) = s.data, s.alpha
        state, letter, kind = (rows, states), (rows, states // 2), s.dtype("alpha")
        return {
            **dict.fromkeys(("emit", "two", "three", "beta", "after", "ends", "skips"), (state, kind)),
            "row": ((rows, classes), kind), "places": (state, "int64"),
            "classes": (letter, "int64"), "counts": (letter, "int64"), "marks": (letter, "bool"),
        }  # fmt: skip

    def _labels(
        self, xp: Any, data: Array, label: Array, data_lengths: Array, label_lengths: Array, places: Array,
        skips: Array, classes: Array, counts: Array, marks: Array,
    ) -> _Labels:  # fmt: skip
        steps, rows, size = data.shape
        blank = 0 if self.blank_label == "first" else size - 1
        if label_lengths is None:
            xp.copyto(classes, label, casting="unsafe")
            xp.equal(classes, 0 if self.blank_label == "first" else -1, out=marks)
            xp.cumsum(marks, axis=1, out=counts)
            xp.equal(counts, 0, out=marks)
            lengths = xp.sum(marks, axis=1, keepdims=True)
        else:
            lengths = _cut(xp, label_lengths, label.shape[1])
        times = xp.full((rows, 1), steps) if data_lengths is None else _cut(xp, data_lengths, steps)
        xp.copyto(classes, label, casting="unsafe")
        xp.greater_equal(classes.view("uint64"), size, out=marks)  # negative ones are huge without a sign
        xp.equal(classes, blank, out=counts)
        xp.logical_or(marks, counts, out=marks)
        xp.logical_and(marks, xp.arange(label.shape[1]) < lengths, out=marks)
        impossible = xp.any(marks, axis=1, keepdims=True)
        xp.clip(classes, 0, size - 1, out=classes)
        skips.fill(LOW)
        xp.equal(classes[:, 1:], classes[:, :-1], out=skips[:, 3::2])
        xp.multiply(skips[:, 3::2], LOW, out=skips[:, 3::2])
        starts = xp.arange(rows).reshape(-1, 1) * size
        places[:, ::2] = starts + blank
        xp.add(classes, starts, out=places[:, 1::2])
        return _Labels(lengths, times, impossible, places, skips)

    def _emissions(self, xp: Any, values: Array, row: Array, places: Array, out: Array) -> None:
        """``out`` = log probability of each state's class in one step; ``row`` = the probabilities of all classes."""
        xp.copyto(row, values)  # first: a difference of 16-bit values would be rounded to 16 bits
        xp.subtract(row, xp.max(row, axis=1, keepdims=True), out=row)
        gather(xp, row.reshape(-1), places, 0, out)
        xp.exp(row, out=row)
        total = xp.sum(row, axis=1, keepdims=True)
        xp.divide(row, total, out=row)
        xp.subtract(out, xp.log(total), out=out)
        at_least(xp, out, LOW, out)

    def forward(
        self, xp: Any, data: Array, label: Array, data_lengths: Array, label_lengths: Array, out0: Array, alpha: Array,
        row: Temp, emit: Temp, two: Temp, three: Temp, skips: Temp, places: Temp, classes: Temp, counts: Temp,
        marks: Temp,
    ) -> None:  # fmt: skip
        known = self._labels(xp, data, label, data_lengths, label_lengths, places, skips, classes, counts, marks)
        for step in range(len(data)):
            now = alpha[step]
            self._emissions(xp, data[step], row, places, emit)
            if step == 0:
                now.fill(LOW)
                xp.copyto(now[:, :2], emit[:, :2])
            else:
                before = alpha[step - 1]
                _move(before, two, three, skips, slice(None, -1), slice(1, None), slice(None, -2), slice(2, None))
                _log_add(xp, before, two, three, now)
                xp.add(now, emit, out=now)
        total = _total(xp, known, alpha)
        xp.copyto(out0, xp.where(total < LOW / 2, float("inf"), -total).reshape(-1), casting="same_kind")

    def backward(
        self, xp: Any, dout0: Array, data: Array, label: Array, data_lengths: Array, label_lengths: Array,
        alpha: Array, ddata: Array, row: Temp, emit: Temp, two: Temp, three: Temp, beta: Temp, after: Temp, ends: Temp,
        skips: Temp, places: Temp, classes: Temp, counts: Temp, marks: Temp,
    ) -> None:  # fmt: skip
        known = self._labels(xp, data, label, data_lengths, label_lengths, places, skips, classes, counts, marks)
        possible, head = xp.logical_not(_total(xp, known, alpha) < LOW / 2), dout0.reshape(-1, 1)
        behind = 2 * known.lengths - xp.arange(alpha.shape[2])  # 0 and 1 where an alignment may end
        xp.copyto(ends, xp.where((behind == 0) | (behind == 1), 0, LOW))
        blank = 0 if self.blank_label == "first" else data.shape[2] - 1
        beta.fill(LOW)
        for step in reversed(range(len(data))):
            if step + 1 < len(data):
                xp.add(beta, emit, out=after)
                _move(after, two, three, skips, slice(1, None), slice(None, -1), slice(2, None), slice(None, -2))
                _log_add(xp, after, two, three, beta)
            if data_lengths is not None or step + 1 == len(data):
                xp.copyto(beta, ends, where=known.steps == step + 1)
            self._emissions(xp, data[step], row, places, emit)
            xp.add(alpha[step], beta, out=two)
            xp.subtract(two, xp.max(two, axis=1, keepdims=True), out=two)
            xp.exp(two, out=two)
            xp.divide(two, xp.sum(two, axis=1, keepdims=True), out=two)  # share of the alignments that pass each state
            row[:, blank] -= xp.sum(two[:, ::2], axis=1)
            xp.negative(two[:, 1::2], out=two[:, 1::2])
            xp.add.at(row.reshape(-1), places[:, 1::2], two[:, 1::2])
            xp.multiply(row, head, out=row)
            keep_where(xp, row, possible & (known.steps > step), row)
            xp.copyto(ddata[step], row, casting="same_kind")


def _cut(xp: Any, lengths: Array, most: int) -> Array:
    """Lengths (n, 1) as whole numbers between 0 and ``most``."""
    return xp.clip(lengths.astype("int64"), 0, most).reshape(-1, 1)


def _move(
    states: Array, two: Array, three: Array, skips: Array, one_from: slice, one_to: slice, two_from: slice,
    two_to: slice,
) -> None:  # fmt: skip
    """``two`` and ``three`` = what comes into each state from the one beside it, and from the one behind that."""
    two.fill(LOW)
    three.fill(LOW)
    two[:, one_to] = states[:, one_from]
    three[:, two_to] = states[:, two_from]
    three[:, two_to] += skips[:, 2:]


def _log_add(xp: Any, first: Array, second: Array, third: Array, out: Array) -> None:
    """``out`` = log(exp(first) + exp(second) + exp(third)); second and third are used up."""
    xp.maximum(first, second, out=out)
    xp.maximum(out, third, out=out)
    xp.subtract(second, out, out=second)
    xp.exp(second, out=second)
    xp.subtract(third, out, out=third)
    xp.exp(third, out=third)
    xp.add(second, third, out=second)
    xp.subtract(first, out, out=third)
    xp.exp(third, out=third)
    xp.add(second, third, out=second)
    xp.log(second, out=second)
    xp.add(out, second, out=out)


def _total(xp: Any, known: _Labels, alpha: Array) -> Array:
    """Log probability (n, 1) of each row's label; below LOW / 2 where no alignment gives it."""
    steps, rows, states = alpha.shape
    nothing = xp.where(known.lengths == 0, 0.0, LOW).astype(alpha.dtype)
    if steps:
        place = xp.maximum(known.steps - 1, 0) * rows + xp.arange(rows).reshape(-1, 1)
        place = place * states + 2 * known.lengths
        last = xp.take(alpha.reshape(-1), place)
        label = xp.take(alpha.reshape(-1), xp.maximum(place - 1, 0))
        both = xp.logaddexp(last, xp.where(known.lengths == 0, LOW, label))
        nothing = xp.where(known.steps == 0, nothing, both)
    return xp.where(known.impossible, LOW, nothing)
