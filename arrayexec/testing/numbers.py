"""Checks of element types: 16 bits beside 32, float32 beside float64, whole numbers, long sums."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ArrayExecError, TypeInferenceError
from .bodies import unequal, with_rows
from .naive import Array
from .trial import Outcome, Trial

SMALLEST = 2.0**-24  # of float16
LOST = 8.0  # rows times allowed error: a sum in 16 bits of as many values near 1 stops growing half way


@functools.cache
def sixteen_bits() -> Mapping[Any, float]:
    """The 16-bit types that there are, and the error allowed them, in parts of the largest value.

    bfloat16 is there if ml_dtypes is installed.
    """
    found: dict[Any, float] = {np.dtype(np.float16): 2.0**-9}
    if importlib.util.find_spec("ml_dtypes") is not None:
        found[np.dtype(importlib.import_module("ml_dtypes").bfloat16)] = 2.0**-6
    return found


def check_types(trial: Trial) -> Iterator[str]:
    """float32 agrees with float64, 16-bit types with float32 of the same values; free inputs may hold whole numbers."""
    want = trial.outcome().named()
    try:
        single = Trial(trial.cls, trial.example, np.float32)
    except TypeInferenceError:  # an attribute says another type
        return
    for name, found in single.outcome().named().items():
        expected, scale = want[name], 1.0
        if found.dtype.kind == "f":
            with np.errstate(over="ignore"):
                expected = expected.astype(found.dtype).astype(np.float64)
            scale = _largest(expected)
        text = unequal({name: found.astype(np.float64)}, {name: expected.astype(np.float64)}, 2e-5, 2e-5 * scale)
        if text:
            yield f"float32 is not within 2e-05 of float64: {text}"
            break
    for kind, tolerance in sixteen_bits().items():
        try:
            small = Trial(trial.cls, trial.example, kind)
        except TypeInferenceError:
            continue
        yield from _check_small(small, single, tolerance)
    whole = [name for name in trial.op.no_gradient if name in trial.samples and trial.samples[name].integer]
    for name in whole:
        arrays = trial.arrays()
        arrays[name] = arrays[name].astype(np.int32)
        text = unequal({"out": _outputs(trial.outcome(arrays))}, {"out": _outputs(trial.outcome())})
        if text:
            yield f"{name} as int32 gives other numbers: {text}"


def _check_small(small: Trial, single: Trial, tolerance: float) -> Iterator[str]:
    """16-bit data give what float32 gives for the same values, within ``tolerance`` of the largest."""
    text = _differs(small, single, small.heads(), tolerance)
    if text:
        yield f"{small.dtype.name} is not within {tolerance} of the largest value of float32: {text}"


def _differs(small: Trial, single: Trial, heads: list[Array], tolerance: float, names: Any = None) -> str:
    """What is not within ``tolerance`` of the largest value of its kind; ``names``: of these only. Empty if nothing."""
    arrays = small.arrays()
    widened = {name: array.astype(single.type(name)) for name, array in arrays.items()}
    kinds = [single.type(name) for name in single.signature.outputs]
    with np.errstate(all="ignore"):
        want = single.outcome(widened, heads=[h.astype(kind) for h, kind in zip(heads, kinds, strict=True)]).named()
    got = small.outcome(arrays, heads=heads).named()
    for name in want if names is None else names:
        expected, found = want[name].astype(np.float64), got[name]
        with np.errstate(over="ignore"):
            holds = np.array_equal(np.isfinite(expected.astype(found.dtype)), np.isfinite(expected))
        margin = tolerance * _largest(expected) + SMALLEST
        text = unequal({name: found.astype(np.float64)}, {name: expected}, 0.0, margin) if holds else ""
        if text:
            return text
    return ""


def _largest(values: Array) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def check_sums(trial: Trial) -> Iterator[str]:
    """Outputs and gradients that sum over many rows of 16-bit values keep their precision: the sums run in float32."""
    for kind, tolerance in sixteen_bits().items():
        yield from _check_sums(trial, kind, tolerance)


def _check_sums(trial: Trial, kind: Any, tolerance: float) -> Iterator[str]:
    rows = int(LOST / tolerance)
    try:
        small, single = (with_rows(trial, rows, one) for one in (kind, np.float32))
    except TypeInferenceError:
        return
    if small is None or single is None:
        return
    summed = [f"gradient of {name}" for name in trial.differentiable() if trial.shape(name) == small.shape(name)]
    outputs = enumerate(trial.signature.outputs)
    summed += [f"output {i}" for i, name in outputs if trial.shape(name) == small.shape(name)]
    if not summed:
        return
    try:
        text = _differs(small, single, [np.abs(head) for head in small.heads()], 2 * tolerance, summed)
    except TypeInferenceError:  # positions that float16 cannot hold are refused
        return
    if text:
        yield f"sums over {rows} rows in {kind.name} lose precision: {text}; sum in float32 (dtype=)"


def check_integers(trial: Trial) -> Iterator[str]:
    """Whole numbers as inputs are refused by an error of the engine, or they run, backward included."""
    for kind in (np.int32, np.uint8, np.bool_):
        try:
            Trial(trial.cls, trial.example, kind).outcome()
        except ArrayExecError:
            pass
        except Exception as error:
            yield f"inputs of {np.dtype(kind).name}: {type(error).__name__}: {error}".partition("\n")[0]


def _outputs(outcome: Outcome) -> Array:
    """All outputs in one array of float64."""
    return np.concatenate([array.astype(np.float64).reshape(-1) for array in outcome.outputs])
