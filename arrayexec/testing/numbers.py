"""Checks of element types: float16 and float32 beside float64, whole numbers, values of the smallest types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import ArrayExecError, TypeInferenceError
from .bodies import unequal, with_rows
from .naive import Array
from .trial import Outcome, Trial

MANY_ROWS = 4096  # a sum of as many float16 values near 1 stops growing at 2048 if it runs in float16


def check_types(trial: Trial) -> Iterator[str]:
    """float16 and float32 agree with float64 within their precision; free inputs may hold whole numbers."""
    want = trial.outcome().named()
    for kind, tolerance in ((np.float32, 2e-5), (np.float16, 2e-2)):
        try:
            small = Trial(trial.cls, trial.example, kind)
        except TypeInferenceError:
            continue
        for name, found in small.outcome().named().items():
            expected, scale = want[name], 1.0
            if found.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    expected = expected.astype(found.dtype).astype(np.float64)
                scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
            text = unequal(
                {name: found.astype(np.float64)}, {name: expected.astype(np.float64)}, tolerance, tolerance * scale
            )
            if text:
                yield f"{np.dtype(kind).name} is not within {tolerance} of float64: {text}"
                break
    whole = [name for name in trial.op.no_gradient if name in trial.samples and trial.samples[name].integer]
    for name in whole:
        arrays = trial.arrays()
        arrays[name] = arrays[name].astype(np.int32)
        text = unequal({"out": _outputs(trial.outcome(arrays))}, {"out": _outputs(trial.outcome())})
        if text:
            yield f"{name} as int32 gives other numbers: {text}"


def check_sums(trial: Trial) -> Iterator[str]:
    """Outputs and gradients that sum over many rows of float16 keep its precision: the sums run in float32."""
    exact = with_rows(trial, MANY_ROWS)
    try:
        small = with_rows(trial, MANY_ROWS, np.float16)
    except TypeInferenceError:
        return
    if exact is None or small is None:
        return
    summed = [f"gradient of {name}" for name in trial.differentiable() if trial.shape(name) == exact.shape(name)]
    outputs = enumerate(trial.signature.outputs)
    summed += [f"output {i}" for i, name in outputs if trial.shape(name) == exact.shape(name)]
    if not summed:
        return
    heads = [np.abs(head) for head in exact.heads()]
    want = exact.outcome(heads=heads).named()
    types = [small.type(name) for name in small.signature.outputs]
    try:
        got = small.outcome(heads=[head.astype(kind) for head, kind in zip(heads, types, strict=True)]).named()
    except TypeInferenceError:  # positions that float16 cannot hold are refused
        return
    for name in summed:
        scale = float(np.abs(want[name]).max(initial=0.0))
        if scale < 6e4:
            found = {name: got[name].astype(np.float64)}
            text = unequal(found, {name: want[name].astype(np.float64)}, 0.0, 0.02 * scale + 1e-3)
            if text:
                yield f"sums over {MANY_ROWS} rows in float16 lose precision: {text}; sum in float32 (dtype=)"


def check_integers(trial: Trial) -> Iterator[str]:
    """Whole numbers as inputs are refused by an error of the engine, or they run, backward included."""
    for kind in (np.int32, np.uint8):
        try:
            Trial(trial.cls, trial.example, kind).outcome()
        except ArrayExecError:
            pass
        except Exception as error:
            yield f"inputs of {np.dtype(kind).name}: {type(error).__name__}: {error}".partition("\n")[0]


def _outputs(outcome: Outcome) -> Array:
    """All outputs in one array of float64."""
    return np.concatenate([array.astype(np.float64).reshape(-1) for array in outcome.outputs])
