"""What the engine itself costs: a node, a step, inference, plan, bind, a switch between buckets.

    OPENBLAS_NUM_THREADS=1 python benchmarks/overhead.py

``a node`` is the slope of time over the number of nodes of a chain of additions of 16 numbers, and beside it the same
addition as a bare NumPy call in the same rounds: the rest is the engine's. The LSTM has two layers and 60 steps,
written with the operators of ``sym``.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import numpy as np
from timing import interleaved, report
from workloads import lstm

import arrayexec as ax
from arrayexec import sym
from arrayexec.plan import make_plan
from arrayexec.symbol.graph import Graph
from arrayexec.symbol.infer import infer_shapes, infer_types

SHORT, LONG = 10, 1010


def chain(length: int) -> Any:
    """An executor of ``length`` additions."""
    x, y = sym.Variable("x"), sym.Variable("y")
    net = x
    for _ in range(length):
        net = net + y
    return net.simple_bind(ax.cpu(), x=(16,), y=(16,))


def dispatch(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """A node and a step."""
    short, long, head = chain(SHORT), chain(LONG), np.ones(16, "f")
    a, b, out = (np.ones(16, "f") for _ in range(3))

    def both(executor: Any) -> None:
        executor.forward(is_train=True)
        executor.backward(head)

    def bare() -> None:
        for _ in range(LONG - SHORT):
            np.add(a, b, out)

    found = interleaved({
        "forward short": lambda: short.forward(is_train=True), "forward long": lambda: long.forward(is_train=True),
        "both short": lambda: both(short), "both long": lambda: both(long), "bare": bare,
    }, seconds, rounds)  # fmt: skip

    def slope(kind: str) -> float:
        pairs = zip(found[f"{kind} long"], found[f"{kind} short"], strict=True)
        return median((b - a) / (LONG - SHORT) for b, a in pairs)

    forward, bare_call = slope("forward"), median(found["bare"]) / (LONG - SHORT)
    return [
        {"what": "a node, forward", "microseconds": forward * 1e6, "least": bare_call * 1e6},
        {"what": "a node, backward", "microseconds": (slope("both") - forward) * 1e6, "least": bare_call * 1e6},
        {"what": f"forward of {SHORT} nodes", "microseconds": median(found["forward short"]) * 1e6,
         "least": SHORT * bare_call * 1e6},
    ]  # fmt: skip


def building(rounds: int, seconds: float = 0.0) -> list[dict[str, Any]]:
    """Compose, infer, plan and bind the unrolled LSTM."""
    workload = lstm(60)
    shapes = {n: a.shape for n, a in workload.inputs.items()}
    graph = Graph(workload.symbol.heads)
    known, types = infer_shapes(graph, shapes, "bind"), infer_types(graph, {}, "bind", np.float32)
    wants = {graph.nodes[i].name: "write" for i in graph.arguments if graph.nodes[i].name not in shapes}
    plan = make_plan(graph, known, types, wants, is_train=True)
    bound = workload.inputs

    def bind() -> Any:
        return workload.symbol.simple_bind(ax.cpu(), grad_req=wants, **shapes)

    def bind_and_run() -> None:
        bind().forward(is_train=True, **bound)

    warm = bind()
    warm.forward(is_train=True, **bound)
    found = interleaved({
        "compose": lambda: lstm(60), "infer": lambda: infer_shapes(graph, shapes, "bind"),
        "plan": lambda: make_plan(graph, known, types, wants, is_train=True), "bind": bind,
        "bind and run": bind_and_run, "run": lambda: warm.forward(is_train=True, **bound),
    }, seconds, rounds)  # fmt: skip
    first = median(a - b - c for a, b, c in zip(found["bind and run"], found["bind"], found["run"], strict=True))
    what = {
        "compose": f"compose {len(graph.nodes)} nodes", "infer": "infer shapes",
        "plan": f"plan of {len(plan.steps)} steps", "bind": "simple_bind",
    }  # fmt: skip
    rows = [{"what": f"LSTM of 60: {text}", "microseconds": median(found[name]) * 1e6} for name, text in what.items()]
    return [*rows, {"what": "LSTM of 60: first forward over later ones", "microseconds": first * 1e6}]


def switching(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """A forward that takes turns with another executor of the same memory, beside one that does not."""
    x = sym.Variable("x")
    executors = [(x + x).simple_bind(ax.cpu(), x=(16,))]
    executors.append((x + x).simple_bind(ax.cpu(), x=(8,), shared_exec=executors[0]))

    def turns() -> None:
        for executor in executors:
            executor.forward(is_train=True)

    def stays() -> None:
        for _ in executors:
            executors[0].forward(is_train=True)

    found = interleaved({"turns": turns, "stays": stays}, seconds, rounds)
    switch = median((a - b) / 2 for a, b in zip(found["turns"], found["stays"], strict=True))
    return [{"what": "switch to another bucket", "microseconds": switch * 1e6}]


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description="Costs of the engine itself.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each contender in a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        *dispatch(options.seconds, options.rounds),
        *switching(options.seconds, options.rounds),
        *building(max(3, options.rounds // 3)),
    ]
    report("costs of the engine itself", rows, options.json)


if __name__ == "__main__":
    main()
