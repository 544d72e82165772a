"""A whole training step of the engine beside the same step written out in plain NumPy, in one interleaved run.

    OPENBLAS_NUM_THREADS=1 python benchmarks/step.py mlp64 mlp512 lenet64 lstm_30 chain tiny resnet20

``engine/hand`` is the median over the rounds of engine time / hand-written time: 1.0 is level, 2.0 twice as slow.
``update`` rows include SGD with momentum. ``of product`` is the floating-point rate against a product of 512×512
matrices in the same rounds; ``of copy``: bytes that the step must move at least (parameters, gradients, inputs, the
arena once in each direction) against a copy of 64 MiB. Gradients of both are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

import numpy as np
from by_hand import BY_HAND
from timing import contenders_of_the_machine, interleaved, ratio, report
from workloads import WORKLOADS

import arrayexec as ax
from arrayexec import optimizer

TOLERANCE = 5e-2  # of the norm: a value beside the kink of a relu may fall on either side of it, and many layers follow


def engine(name: str) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Workload, bound executor with random parameters, and the parameters."""
    workload = WORKLOADS[name]()
    wants = {n: "null" if n in workload.inputs and n not in "xy" else "write" for n in workload.symbol.list_arguments()}
    executor = workload.symbol.simple_bind(ax.cpu(), grad_req=wants, **{n: a.shape for n, a in workload.inputs.items()})
    random = np.random.default_rng(1)
    parameters = {}
    for key, array in executor.arg_dict.items():
        if key not in workload.inputs:
            fan = np.prod(array.shape[1:]) if array.ndim > 1 else 1
            array[...] = random.normal(0, (2 / fan) ** 0.5 if array.ndim > 1 else 0.1, array.shape)
            if key.endswith("gamma"):
                array[...] += 1
            parameters[key] = array.copy()
    return workload, executor, parameters


def compare(executor: Any, hand: Any) -> float:
    """The largest difference of a gradient, relative to its norm; SystemExit if it is too large."""
    worst = 0.0
    for name, gradient in hand.gradients().items():
        mine = executor.grad_dict[name]
        difference = float(np.linalg.norm(mine - gradient) / (np.linalg.norm(gradient) + 1e-30))
        worst = max(worst, difference)
        if difference > TOLERANCE:
            raise SystemExit(f"the gradients of '{name}' differ by {difference:.2g} of their norm")
    return worst


def measure(name: str, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Rows of one workload."""
    workload, executor, parameters = engine(name)
    hand = BY_HAND[name](parameters, workload.inputs)
    updater = optimizer.Updater(optimizer.SGD(learning_rate=1e-3, momentum=0.9))
    keys = list(parameters)
    weights, gradients = [executor.arg_dict[k] for k in keys], [executor.grad_dict[k] for k in keys]

    def step() -> None:
        executor.forward(is_train=True, **workload.inputs)
        executor.backward(workload.out_grad)

    step()
    hand.step()
    compare(executor, hand)
    machine, amounts = contenders_of_the_machine()
    contenders = {"engine": step, "hand": hand.step, **machine}
    if keys:

        def step_update() -> None:
            step()
            updater.update_all(keys, gradients, weights)

        def hand_update() -> None:
            hand.step()
            hand.parameters.update()

        contenders |= {"engine update": step_update, "hand update": hand_update}
    found = interleaved(contenders, seconds, rounds)
    plan = executor.memory_plan()
    least = sum(a.nbytes for a in workload.inputs.values()) + 2 * plan["arena"] + plan["argument"] + plan["gradient"]
    rate = {key: amounts[key] / median(found[key]) for key in amounts}
    rows = []
    for kind in ("", " update"):
        if "engine" + kind in found:
            times = found["engine" + kind]
            rows.append({
                "step": name + kind,
                "engine ms": median(times) * 1e3,
                "hand ms": median(found["hand" + kind]) * 1e3,
                "engine/hand": ratio(found, "engine" + kind, "hand" + kind),
                "at best": min(times) / min(found["hand" + kind]),
                "GFLOP/s": workload.flops / median(times) / 1e9,
                "of product": workload.flops / median(times) / rate["product"],
                "of copy": least / median(times) / rate["copy"],
                "arena MB": plan["arena"] / 1e6,
            })  # fmt: skip
    return rows


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="Training steps of the engine and by hand.")
    parser.add_argument("workloads", nargs="+", choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each contender in a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for name in options.workloads for row in measure(name, options.seconds, options.rounds)]
    report("training step: engine against NumPy by hand", rows, options.json)


if __name__ == "__main__":
    main()
