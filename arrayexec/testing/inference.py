"""Checks of an operator's inference: what it refuses, what it accepts, what it says when less is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..dims import ANY, UNKNOWN
from ..errors import ShapeError
from ..symbol.infer import _Shapes as ShapeTable
from .bodies import unequal
from .trial import Trial


def wrong_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of another rank, and with another dim."""
    ranks = [(*shape, 2), *([shape[:-1]] if len(shape) > 1 else []), (2,)]
    dims = [(*shape[:i], shape[i] + 1, *shape[i + 1 :]) for i in range(len(shape))]
    return [other for other in dict.fromkeys((*ranks, *dims)) if other != shape]


def check_refused(trial: Trial) -> Iterator[str]:
    """A wrong rank or dim is refused by inference, naming node and argument; what is accepted runs."""
    arguments = trial.signature.arguments
    right = {name: trial.shape(name) for name in arguments}
    for name, shape in right.items():
        for changed in wrong_shapes(shape):
            try:
                other = Trial(trial.cls, trial.example, trial.dtype, {**right, name: changed})
            except ShapeError as error:
                fact = str(error).partition("\n")[0]
                if "'node'" not in fact or not any(word in fact.replace("'", " ").split() for word in names_of(trial)):
                    yield f"{name} {changed}: the error names no node and argument: {fact}"
                continue
            try:
                text = unequal(other.outcome(fill=3.0).named(), other.outcome().named())
            except Exception as error:
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
            if text:
                yield f"inference accepts {name} {changed} beside {right}, but running it fails: {text}"


def check_wrong(trial: Trial) -> Iterator[str]:
    """A wrong shape of a value, alone or beside the right ones, is a ShapeError or nothing; of an output it must be."""
    names = (*trial.signature.arguments, *trial.signature.outputs)
    right = {name: trial.shape(name) for name in names}
    for name, shape in right.items():
        for changed in wrong_shapes(shape):
            for given in ({name: changed}, {**right, name: changed}):
                try:
                    inferred(trial, given)
                    if name in trial.signature.outputs and len(given) > 1:
                        yield f"inference accepts {name} {changed} beside {right}"
                except ShapeError:
                    pass
                except Exception as error:
                    fact = f"{type(error).__name__}: {error}".partition("\n")[0]
                    yield f"from {given} inference raises {fact}"


def names_of(trial: Trial) -> tuple[str, ...]:
    """Names that an error about the node may use."""
    return (*trial.signature.arguments, *trial.signature.outputs, *trial.signature.hidden)


def check_partial(trial: Trial) -> Iterator[str]:
    """With less known, on either side, inference raises nothing and says nothing false."""
    inputs = {name: trial.shape(name) for name in trial.signature.arguments}
    outputs = {name: trial.shape(name) for name in trial.signature.outputs}
    cases: list[dict[str, Any]] = [{}, outputs, {**inputs, **outputs}]
    for name, shape in {**inputs, **outputs}.items():
        holes = [(*shape[:axis], UNKNOWN, *shape[axis + 1 :]) for axis in range(len(shape))]
        for part in (shape, *holes):
            cases += [{name: part}, {**outputs, name: part}, {**inputs, name: part}]
        cases.append({key: value for key, value in inputs.items() if key != name})
        cases.append({**outputs, **{key: value for key, value in inputs.items() if key != name}})
    for given in cases:
        for name, shape in zip(names_of(trial), inferred(trial, given), strict=True):
            right = trial.shape(name)
            if shape is ANY:
                continue
            if len(shape) != len(right) or any(a is not UNKNOWN and a != b for a, b in zip(shape, right, strict=True)):
                yield f"from {given} inference says that {name} is {shape}, but it is {right}"


def inferred(trial: Trial, given: Mapping[str, Any]) -> list[Any]:
    """Shapes of the node's values in frame order that follow from those ``given`` by name, inputs and outputs alike."""
    table = ShapeTable(trial.graph)
    for name, shape in given.items():
        table.give(trial.entries[names_of(trial).index(name)], shape, "given")
    table.deduce()
    return [table.values[entry] for entry in trial.entries]
