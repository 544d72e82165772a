"""What it costs that each row of random numbers is drawn by itself, against one call of NumPy's Generator for all.

For every family: 64 rows of 4,096 numbers, and as many numbers in rows of one. The call gives float64, as what is drawn
here is; the operator hands out float32. Run: ``python benchmarks/random_rows.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from timing import interleaved

import arrayexec.ops  # noqa: F401  (its table knows the operators)
from arrayexec.registry import make_op
from arrayexec.streams import RunPosition, Stream

ROWS, LENGTH = 64, 4096
Call = Callable[[np.random.Generator, tuple[int, ...]], Any]
FAMILIES: dict[str, tuple[dict[str, float], Call]] = {
    "uniform": ({}, lambda g, shape: g.random(shape)),
    "normal": ({}, lambda g, shape: g.normal(0.0, 1.0, shape)),
    "exponential": ({}, lambda g, shape: g.exponential(1.0, shape)),
    "gamma": ({"alpha": 2.5}, lambda g, shape: g.gamma(2.5, 1.0, shape)),
    "poisson": ({"lam": 4.0}, lambda g, shape: g.poisson(4.0, shape)),
    "negative_binomial": ({"k": 3, "p": 0.4}, lambda g, shape: g.negative_binomial(3, 0.4, shape)),
    "generalized_negative_binomial": (
        {"mu": 2.0, "alpha": 0.3},
        lambda g, shape: g.poisson(g.gamma(1 / 0.3, 0.6, shape)),
    ),
}


def ours(name: str, numbers: dict[str, float], shape: tuple[int, int]) -> Callable[[], None]:
    """The operator's body on arrays made once."""
    op: Any = make_op(f"_random_{name}", {"shape": shape, **numbers})
    out = np.empty(shape, np.float32)

    class Known:
        def __init__(self) -> None:
            self.out = shape

    (dims, kind), stream = op.temps(Known())["noise"], Stream("node", RunPosition())
    noise = np.empty(dims, kind)
    return lambda: op.forward(np, stream, out, noise)


def main() -> None:
    """One line a family: milliseconds and ratio, for long rows and for rows of one number."""
    print(f"{'':32}{ROWS} × {LENGTH}: ours, one call, ratio    rows of 1: ours, ratio")
    generator = np.random.default_rng(0)
    for name, (numbers, call) in FAMILIES.items():
        contenders = {
            "long": ours(name, numbers, (ROWS, LENGTH)),
            "whole": functools.partial(call, generator, (ROWS, LENGTH)),
            "short": ours(name, numbers, (ROWS * LENGTH // 16, 1)),
        }
        long, whole, short = (median(times) for times in interleaved(contenders, 0.01, 9, 1).values())
        short *= 16
        row = f"{long * 1e3:10.2f}{whole * 1e3:10.2f}{long / whole:8.2f}"
        print(f"{name:32}{row}{short * 1e3:22.1f}{short / whole:8.1f}")


if __name__ == "__main__":
    main()
