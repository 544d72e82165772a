"""Check of an operator's gradient as a Symbol, where it has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import CompositionError
from ..symbol import Symbol, Variable
from .bodies import STEP, unequal
from .naive import NaiveRun
from .trial import Trial

PROBES = 4  # elements of one input that are moved


def check_symbol(trial: Trial) -> Iterator[str]:
    """``Symbol.gradient`` is what backward gives, and its own gradient is its numeric derivative.

    A setting of the attributes for which the operator has no gradient as a Symbol passes.
    """
    names = [f"v_{name}" for name in trial.differentiable()]
    if not names or any(trial.type(name).kind != "f" for name in trial.signature.outputs):
        return
    heads = {f"h_{i}": array for i, array in enumerate(trial.heads())}
    try:
        symbol = Symbol(trial.graph_heads).gradient(names, [Variable(name) for name in heads])
    except CompositionError:
        return
    given = {f"v_{name}": array for name, array in trial.arrays().items()} | heads
    arrays = {name: given[name] for name in symbol.list_arguments()}
    run = NaiveRun(symbol, arrays)
    with np.errstate(all="ignore"):
        found = dict(zip(names, run.forward(), strict=True))
    want = {f"v_{name}": array for name, array in trial.outcome().gradients.items()}
    text = unequal(found, {name: want[name] for name in names}, 1e-11, 1e-12)
    if text:
        yield f"the gradient as a Symbol is not what backward gives: {text}"
        return
    random = np.random.default_rng(4)
    pulls = [random.uniform(-1, 1, array.shape) for array in found.values()]
    second = run.backward(pulls)
    for name in [name for name in arrays if name in names or name in heads]:
        array, gradient = arrays[name], second[name]
        scale = 1.0 + float(np.abs(gradient).max(initial=0.0))
        for place in random.permutation(array.size)[:PROBES]:
            at = np.unravel_index(int(place), array.shape)
            here, sums = array[at], list[float]()
            for step in (STEP, -STEP):
                array[at] = here + step
                pairs = zip(pulls, run.forward(), strict=True)
                sums.append(sum(float(np.vdot(pull, out)) for pull, out in pairs))
            array[at] = here
            numeric = (sums[0] - sums[1]) / (2 * STEP)
            if not abs(gradient[at] - numeric) <= 1e-5 * abs(numeric) + 2e-7 * scale:
                where = ", ".join(map(str, at))
                yield f"the second derivative for {name[2:]}[{where}] is {gradient[at]:.9g}, numerically {numeric:.9g}"
                break
