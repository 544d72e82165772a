"""An update of all parameters: as runs of flat memory, parameter by parameter, and by PyTorch's foreach optimizers.

    OPENBLAS_NUM_THREADS=1 python benchmarks/update.py resnet50 resnet20 lstm odd

Parameters and gradients lie as executors lay them. Weights decay, the others do not. PyTorch gets the same arrays, one
thread (as NumPy has) and the same division by decay; without it its columns are missing. Times are the processor's.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
from timing import interleaved, ratio, report

import arrayexec as ax
from arrayexec.executor import allocate_segment

Shapes = dict[str, tuple[int, ...]]


def _normed(found: Shapes, name: str, shape: tuple[int, ...]) -> None:
    """A convolution and the batch norm behind it."""
    found[f"{name}_weight"] = shape
    found[f"{name}_gamma"], found[f"{name}_beta"] = (shape[0],), (shape[0],)


def resnet50() -> Shapes:
    """The parameters of ResNet-50 for 1000 classes."""
    found: Shapes = {}
    _normed(found, "conv0", (64, 3, 7, 7))
    width = 64
    for stage, units in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for unit in range(units):
            name = f"stage{stage}_unit{unit}"
            _normed(found, f"{name}_conv1", (inner, width, 1, 1))
            _normed(found, f"{name}_conv2", (inner, inner, 3, 3))
            _normed(found, f"{name}_conv3", (4 * inner, inner, 1, 1))
            if unit == 0:
                _normed(found, f"{name}_sc", (4 * inner, width, 1, 1))
            width = 4 * inner
    found["fc_weight"], found["fc_bias"] = (1000, width), (1000,)
    return found


def resnet20() -> Shapes:
    """The parameters of ResNet-20 for 10 classes."""
    found: Shapes = {}
    _normed(found, "conv0", (16, 3, 3, 3))
    width = 16
    for stage in range(3):
        for unit in range(3):
            out = 16 << stage
            _normed(found, f"stage{stage}_unit{unit}_conv1", (out, width, 3, 3))
            _normed(found, f"stage{stage}_unit{unit}_conv2", (out, out, 3, 3))
            width = out
    found["fc_weight"], found["fc_bias"] = (10, width), (10,)
    return found


def lstm() -> Shapes:
    """A language model: 10000 words, three layers of 200."""
    found: Shapes = {"embed_weight": (10000, 200)}
    for layer in range(3):
        for part in ("i2h", "h2h"):
            found[f"l{layer}_{part}_weight"], found[f"l{layer}_{part}_bias"] = (800, 200), (800,)
    found["pred_weight"], found["pred_bias"] = (10000, 200), (10000,)
    return found


def odd() -> Shapes:
    """Eighty small layers whose sizes fit nothing."""
    found: Shapes = {}
    for layer in range(80):
        found[f"fc{layer}_weight"], found[f"fc{layer}_bias"] = (11 + layer % 7, 13), (11 + layer % 7,)
    return found


NETS = {"resnet50": resnet50, "resnet20": resnet20, "lstm": lstm, "odd": odd}
RULES: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 1e-3, "wd": 1e-4},
}


def by_torch(rule: str, weights: dict[str, Any], grads: dict[str, Any]) -> Any:
    """A step of PyTorch's optimizer on these arrays; None where it is not there."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, array in weights.items():
        one = torch.nn.Parameter(torch.from_numpy(array))
        one.grad = torch.from_numpy(grads[name])
        groups[name.endswith(("_weight", "_gamma"))].append(one)
    given = [{"params": ones, "weight_decay": 1e-4 if decays else 0.0} for decays, ones in groups.items()]
    if rule == "sgd":
        return torch.optim.SGD(given, lr=0.01, momentum=0.9, foreach=True).step
    return torch.optim.Adam(given, lr=1e-3, foreach=True).step


def measure(net: str, rule: str, seconds: float, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    specs = {name: (shape, np.float32) for name, shape in NETS[net]().items()}
    weights = allocate_segment(ax.cpu(), "parameter", specs)[1]
    grads = allocate_segment(ax.cpu(), "gradient", specs)[1]
    draw = np.random.default_rng(1)
    for name in specs:
        weights[name][...] = draw.normal(size=weights[name].shape)
        grads[name][...] = draw.normal(size=weights[name].shape) * 1e-3
    names, held, given = list(specs), list(weights.values()), list(grads.values())
    whole, each = (ax.optimizer.get_updater(ax.optimizer.create(rule, **RULES[rule])) for _ in range(2))

    def one_by_one() -> None:
        for name, grad, weight in zip(names, given, held, strict=True):
            each(name, grad, weight)

    contenders = {"all": lambda: whole.update_all(names, given, held), "each": one_by_one}
    torch_step = by_torch(rule, weights, grads)
    if torch_step is not None:
        contenders["torch"] = torch_step
    found = interleaved(contenders, seconds, rounds, clock=time.process_time)  # all have one thread
    row = {"net": net, "rule": rule, "arrays": len(names), "numbers": sum(weight.size for weight in held)}
    row |= {f"{name} ms": 1e3 * median(times) for name, times in found.items()}
    row |= {f"all/{name}": ratio(found, "all", name) for name in contenders if name != "all"}
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(NETS))
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(net, rule, given.seconds, given.rounds) for net in given.nets for rule in RULES]
    report("an update of all parameters", rows, given.json)


if __name__ == "__main__":
    main()
