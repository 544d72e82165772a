"""The same graph through the planned executor, its memory poisoned, beside the plain run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..executor import bind
from ..symbol import Symbol, load_json
from .bodies import modes, unequal
from .naive import Array
from .trial import Outcome, Trial


@contextlib.contextmanager
def poison() -> Iterator[None]:
    """Executors that are bound inside fill released memory with NaN."""
    before = os.environ.get("ARRAYEXEC_POISON")
    os.environ["ARRAYEXEC_POISON"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["ARRAYEXEC_POISON"]
        else:
            os.environ["ARRAYEXEC_POISON"] = before


def run_planned(
    symbol: Any,
    args: Mapping[str, Array],
    aux: Mapping[str, Array],
    is_train: bool,
    out_grads: Sequence[Array] | None = None,
    wants: Mapping[str, str] | None = None,
    grad_arrays: Mapping[str, Array] | None = None,
) -> Outcome:
    """Bind, forward and backward once in poisoned memory. Arguments as for ``NaiveRun``; hidden outputs stay empty."""
    wants = dict.fromkeys(args, "write") if wants is None else wants
    given = grad_arrays or {}
    gradients = {
        name: given[name] if name in given else np.full(array.shape, 77, array.dtype)
        for name, array in args.items()
        if wants.get(name, "null") != "null"
    }
    states = {name: array.copy() for name, array in aux.items()}
    with poison(), np.errstate(all="ignore"):
        executor = bind(symbol, None, dict(args), gradients, dict(wants), states)
        outputs = [array.copy() for array in executor.forward(is_train)]
        executor.backward(out_grads)
    return Outcome(outputs, [], gradients, states)


def check_planned(trial: Trial) -> Iterator[str]:
    """The executor gives what the plain run gives, to the bit: write, add and null, strided arguments."""
    symbol, heads = Symbol(trial.graph_heads), trial.heads()
    arrays = trial.arrays()
    strided = {name: np.repeat(array[..., None], 2, axis=-1)[..., 0] for name, array in arrays.items()}
    names = list(trial.signature.inputs)
    requests = {
        "write": dict.fromkeys(names, "write"),
        "add": dict.fromkeys(names, "add"),
        "write and null": {name: ("write", "null")[i % 2] for i, name in enumerate(names)},
        "null and add": {name: ("null", "add")[i % 2] for i, name in enumerate(names)},
    }
    for is_train in modes(trial):
        for title, request in requests.items():
            for given in (arrays, strided):
                wants = {f"v_{name}": how for name, how in request.items()}
                run = trial.start(given, is_train)
                buffers = {f"v_{name}": np.full(given[name].shape, 0.5).astype(given[name].dtype) for name in names}
                want = Outcome(run.forward(), [], run.backward(heads, wants, _copies(buffers)), run.aux)
                got = run_planned(symbol, run.args, _first(trial, given), is_train, heads, wants, _copies(buffers))
                text = unequal(got.named(), want.named())
                if text:
                    yield f"the executor differs from the plain run ({title}): {text}"
                    return


def _copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def _first(trial: Trial, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Auxiliary states as they were before the plain run moved its copies."""
    return {f"v_{name}": arrays[name] for name in trial.signature.aux}


def check_json(trial: Trial) -> Iterator[str]:
    """Written to JSON and read again, the operator is the same and stands in the same graph."""
    text = Symbol(trial.graph_heads).tojson()
    again = load_json(text)
    if again.tojson() != text:
        yield "JSON that is read and written again differs"
    node = again.heads[0][0]
    if node.op != trial.op:
        yield f"JSON gives {node.op} back for {trial.op}"
    if [entry[0].name for entry in node.inputs] != [entry[0].name for entry in trial.node.inputs]:
        yield "JSON gives other inputs back"
