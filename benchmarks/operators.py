"""What every operator costs beside the obvious NumPy expression and beside PyTorch on the CPU, slowest first.

    env -u OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS=1 python benchmarks/operators.py
    … benchmarks/operators.py --only LayerNorm softmax

Timed is a body of the operator alone: its outputs, gradients and scratch are bound beforehand, as a plan does; all
gradients that take a step are asked for. The NumPy expression makes its arrays on the way, as an expression does; it
keeps what the operator promises (an index outside is clipped, random numbers are float64 of Philox, rounded).
PyTorch (if it is installed) runs forward without recording, and backward through ``torch.autograd.grad``. Everything
has one thread, float32, and takes turns in one process; times are the processor's, not the clock's. A time is the
median of the rounds, a ratio the median of the ratios in a round, ``at best`` the ratio of the shortest times.
Operators that take no step (a reshape; a gradient handed on as it is) are listed under the table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import operator_peers as peers
from numpy.lib.stride_tricks import sliding_window_view as windows
from operator_arrays import INDICES, LINEAR_ALGEBRA, REDUCTIONS, SHAPES
from operator_layers import DETECTION, LAYERS, RANDOM
from operator_row import Bound, R, is_pointwise, pointwise_row
from timing import interleaved, ratio, report

from arrayexec import ops
from arrayexec.registry import get_op

try:
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
except ImportError:
    torch = None

WRITTEN = [*LAYERS, *DETECTION, *RANDOM, *SHAPES, *REDUCTIONS, *INDICES, *LINEAR_ALGEBRA]
TOLERANCE = 2e-3  # of the largest value: float32, sums in another order
NAMES = {"np": np, "peers": peers, "windows": windows, "rng": np.random.Generator(np.random.Philox(0))}


def operators() -> list[str]:
    """Every registered operator under its own name."""
    return sorted({get_op(name).form.name for names in ops.FAMILIES.values() for name in names.split()})


def rows(only: list[str] | None = None) -> list[R]:
    """All rows, those of elementwise operators made from their formulas; or those of the operators named."""
    names = operators() if not only else [get_op(name).form.name for name in only]
    found = [row for row in WRITTEN if get_op(row.op).form.name in names]
    return found + [pointwise_row(name) for name in names if is_pointwise(name)]


def _numpy_steps(row: R, bound: Bound) -> dict[str, Callable[[], Any]]:
    """The row's NumPy expressions as calls."""
    names = {**NAMES, **bound.names()}
    exec(row.setup, names)
    texts = {"forward": row.numpy, "backward": row.back if bound.backward else ""}
    return {body: eval(f"lambda: ({text})", names) for body, text in texts.items() if text}


def _torch_steps(row: R, bound: Bound) -> dict[str, Callable[[], Any]]:
    """The row's PyTorch expression, and autograd's way back through it."""
    tensors = {name: torch.from_numpy(array.copy()) for name, array in bound.values.items()}
    for name in bound.leaving:
        tensors[name].requires_grad_()
    names = {**tensors, "torch": torch, "F": F}
    text = row.torch if isinstance(row.torch, str) else "peer(torch, tensors)"
    function = eval(f"lambda: ({text})", {**names, "peer": row.torch, "tensors": tensors})

    def forward() -> Any:
        with torch.no_grad():
            return function()

    wanted, made = [tensors[name] for name in bound.leaving], function()
    made = made if isinstance(made, tuple) else (made,)
    pairs = [(m, torch.from_numpy(a)) for m, a in zip(made, bound.arriving, strict=False) if m.requires_grad]
    steps: dict[str, Callable[[], Any]] = {"forward": forward}
    if bound.backward and pairs:
        ends, arriving = zip(*[(m, a.reshape(m.shape).to(m.dtype)) for m, a in pairs], strict=True)
        steps["backward"] = lambda: torch.autograd.grad(ends, wanted, arriving, retain_graph=True, allow_unused=True)
    return steps


def _differs(found: Any, expected: list[Any]) -> bool:
    listed = list(found) if isinstance(found, tuple) else [found]
    for mine, its in zip(expected, listed, strict=False):
        if mine is None or its is None:
            continue
        its = np.asarray(its.detach() if hasattr(its, "detach") else its, dtype=np.float64)
        limit = TOLERANCE * max(float(np.abs(mine).max(initial=0.0)), 1e-30)
        if its.size != mine.size or not np.abs(its.reshape(mine.shape) - mine).max(initial=0.0) <= limit:
            return True
    return False


def measure(row: R, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """A line for forward and one for backward; it is said where a peer computes something else."""
    bound = Bound(row)
    contenders: dict[str, dict[str, Callable[[], Any]]] = {"numpy": _numpy_steps(row, bound)}
    if torch and row.torch:
        contenders["torch"] = _torch_steps(row, bound)
    answers = {"forward": bound.outputs, "backward": list(bound.leaving.values())}
    for body in ("forward", "backward"):
        mine = getattr(bound, body)
        if mine is None:
            yield {"operator": row.op, "body": body, "use": row.use, "ms": None}
            continue
        mine()
        steps = {name: found[body] for name, found in contenders.items() if body in found}
        for name, step in steps.items() if row.same else ():
            if _differs(step(), answers[body]):
                print(f"{row.op} ({row.use}), {body}: {name} computes something else", file=sys.stderr)
        times = interleaved({"ours": mine, **steps}, seconds, rounds, 1, time.process_time)
        line = {"operator": row.op, "body": body, "use": row.use, "ms": median(times["ours"]) * 1e3}
        for name in steps:
            line[f"/{name}"] = ratio(times, "ours", name)
        if steps:  # NumPy's expression where there is one: it is what an operator must not be slower than
            main = next(iter(steps))
            line |= {"ratio": line[f"/{main}"], "at best": min(times["ours"]) / min(times[main])}
        yield line


def main() -> None:
    """Measure the operators that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Cost of every operator.")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="of each contender in a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds, seconds = (3, 0.004) if options.quick else (options.rounds, options.seconds)
    lines: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))
        for row in rows(options.only):
            lines += measure(row, seconds, rounds)
    still = [f"{line['operator']} {line['body']}" for line in lines if line["ms"] is None]
    timed = [line for line in lines if line["ms"] is not None]
    timed.sort(key=lambda line: -line.get("ratio", 0.0))
    notes = [f"{platform.processor() or platform.machine()}, PyTorch {torch.__version__ if torch else 'is not there'}"]
    for name in ("/numpy", "/torch"):
        ratios = [line[name] for line in timed if name in line]
        if ratios:
            over = sum(r > 1.1 for r in ratios)
            notes.append(f"{name}: {len(ratios)} bodies, geometric mean {geometric_mean(ratios):.2f}, over 1.1: {over}")
    notes += [f"no step: {', '.join(still)}"] if still else []
    if "OPENBLAS_CORETYPE" in os.environ:
        notes.append(f"OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']}: products may not be as fast as they can")
    report("operators, slowest first", timed, options.json, notes)


if __name__ == "__main__":
    main()
