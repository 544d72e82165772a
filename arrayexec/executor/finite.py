"""Where NaN and infinity come from: what a step has made is looked at before the next one runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..context import asnumpy
from ..errors import NonFiniteError, format_shape, message
from ..plan.record import Step
from ..plan.rewrite import numbers_of
from ..registry import signature_of
from .bound import BoundPlan

Array = Any
MADE = {"output": "output", "aux": "auxiliary state", "dinput": "the gradient of"}  # hidden outputs may hold anything


def check_finite(bound: BoundPlan, step: Step, title: str) -> None:
    """NonFiniteError if a step of the executor ``title`` has made a NaN or an infinity: what, where and from what.

    On a GPU the host waits for every value.
    """
    for _, kind, number in _bound_values(step) if step.kind not in ("zero", "transfer") else ():
        value, context = bound.plan.values[number], bound.context(number)
        if kind in MADE and number in step.writes and value.dtype.kind not in "biu":
            with context.enter():
                if not asnumpy(context.xp.isfinite(bound.arrays[number]).all()):
                    name = value.name.removeprefix("d ") if kind == "dinput" else value.name
                    what = step.name if step.op is None else f"{step.name}: {MADE[kind]} '{name}'"
                    raise NonFiniteError(_words(bound, step, what, number, title))


def _bound_values(step: Step) -> Iterator[tuple[str, str, int]]:
    """(parameter, kind, value) of everything that a step works on."""
    names = [("", "output"), ("", "input"), ("", "input")]
    if step.op is not None:
        parameters, slots = getattr(step.op.form, step.kind).parameters, getattr(signature_of(step.op), step.kind)
        names = [(parameter, kind) for parameter, (kind, _) in zip(parameters, slots, strict=True)]
    for (parameter, kind), binding in zip(names, step.bindings, strict=False):
        for number in numbers_of(binding):
            yield parameter, kind, number


def _words(bound: BoundPlan, step: Step, what: str, made: int, title: str) -> str:
    """The whole error: counts of value ``made``, statistics of what its step has read, and where it came in."""
    rows, before = [], []
    for parameter, _, number in _bound_values(step):
        if number in step.reads:
            value = bound.plan.values[number]
            spread, bad = _statistics(bound, number)
            count = f"{bad} of {bound.arrays[number].size}" if bad else "all finite"
            rows.append((parameter, f"= {value.name}", format_shape(value.shape), value.dtype.name, spread, count))
            if bad:
                before.append(_origin(bound, number))
    size, bad = bound.arrays[made].size, _statistics(bound, made)[1]
    fact = f"{what} must be finite, but it holds {bad} among {size} values (in {step.phase} of {title})"
    came = "all inputs are finite: it began here"
    if before:
        came = f"not finite already: {', '.join(dict.fromkeys(before))}"
    elif step.phase == "update" or (step.kind == "add" and len(step.bindings) == 2):  # what it adds to is overwritten
        came += ", or was there before"
    return message(fact, rows, "inputs", came)


def _origin(bound: BoundPlan, number: int) -> str:
    plan = bound.plan
    while (base := plan.values[number].base) is not None:
        number = base
    name = plan.values[number].name
    kind = "argument " if name in plan.arguments else "auxiliary state " if name in plan.aux else ""
    return f"{kind}'{name}'"


def _statistics(bound: BoundPlan, number: int) -> tuple[str, str]:
    """Smallest, largest and mean finite element in words, and how many are not finite (empty: none)."""
    context = bound.context(number)
    xp = context.xp
    with context.enter(), np.errstate(all="ignore"):
        array = bound.arrays[number].astype(np.float64)
        finite = xp.isfinite(array)
        count, nans = (int(asnumpy(mask.sum())) for mask in (finite, xp.isnan(array)))
        counts = ((nans, "NaN"), (array.size - count - nans, "infinite"))
        bad = " and ".join(f"{times} {word}" for times, word in counts if times)
        if not count:
            return "no finite value", bad
        lowest, highest = xp.where(finite, array, math.inf).min(), xp.where(finite, array, -math.inf).max()
        low, high, total = (float(asnumpy(x)) for x in (lowest, highest, xp.where(finite, array, 0.0).sum()))
    return f"{low:.6g} to {high:.6g}, mean {total / count:.6g}", bad
