"""Operators and recorded networks on another device: how far are the numbers from the processor's, from MXNet's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from arrayexec.context import Context, asnumpy, copyto
from arrayexec.ops import FAMILIES
from arrayexec.registry import Op, get_op
from arrayexec.testing.trial import Outcome, Trial

LIMITS = {"float32": 3e-5, "float64": 1e-11}
"""Largest error, relative to the largest number of the array: another library sums in another order."""


def operators() -> list[type[Op]]:
    """Every operator class of the package once, by name."""
    found = {get_op(name).form.name: get_op(name) for names in FAMILIES.values() for name in names.split()}
    return [found[name] for name in sorted(found)]


def examples() -> Iterator[tuple[str, type[Op], Mapping[str, Any]]]:
    """(title, operator, example) of everything there is."""
    for cls in operators():
        for number, example in enumerate(cls.examples):
            yield f"{cls.form.name}-{number}", cls, example


def to_device(context: Context, array: np.ndarray) -> Any:
    """A copy of a host array on a device."""
    there = context.empty(array.shape, array.dtype, "input")
    copyto(there, array)
    return there


def difference(here: np.ndarray, there: np.ndarray) -> float:
    """Largest |a - b| over the largest |a| (at least 1); infinite where NaN or infinity stand in other places."""
    if here.shape != there.shape or here.dtype != there.dtype:
        return float("inf")
    first, second = here.astype(np.float64), there.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True) or not np.isfinite(second[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(first[finite] - second[finite]).max() / max(1.0, np.abs(first[finite]).max()))


def compare(cls: type[Op], example: Mapping[str, Any], context: Context, dtype: str) -> dict[str, float]:
    """Forward in both modes and backward on the processor and on ``context``: the difference of each array."""
    trial = Trial(cls, example, dtype)
    arrays, heads = trial.arrays(), trial.heads()
    there = {name: to_device(context, array) for name, array in arrays.items()}
    device_heads = [to_device(context, head) for head in heads]
    found = {}
    for mode, is_train in (("train", True), ("inference", False)):
        here = trial.outcome(arrays, is_train, heads=heads).named()
        other = trial.outcome(there, is_train, heads=device_heads, xp=context.xp).named()
        for name, array in here.items():
            found[f"{mode} {name}"] = difference(array, asnumpy(other[name]))
    return found


def run_on(context: Context) -> Callable[..., Outcome]:
    """A runner of recorded cases (see tests/conformance/test_operators.py) through the executor on a device."""

    def run(symbol: Any, args: Any, aux: Any, is_train: bool, heads: Any, wants: Any, gradients: Any) -> Outcome:
        there = {name: to_device(context, array) for name, array in args.items()}
        states = {name: to_device(context, array) for name, array in aux.items()}
        asked = {name: how for name, how in wants.items() if how != "null"}
        grads = {
            name: to_device(context, gradients[name] if name in gradients else np.zeros_like(args[name])) for name in asked
        }
        executor = symbol.bind(context, there, grads, {name: asked.get(name, "null") for name in args}, states)
        outputs = [asnumpy(array).copy() for array in executor.forward(is_train=is_train)]
        if asked:
            executor.backward(heads and [to_device(context, head) for head in heads])
        for name, array in args.items():
            np.copyto(array, asnumpy(there[name]))  # whoever asks whether arguments were written sees it
        return Outcome(
            outputs,
            [],
            {name: asnumpy(array).copy() for name, array in grads.items()},
            {name: asnumpy(array).copy() for name, array in states.items()},
        )

    return run
