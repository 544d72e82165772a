"""Sums of gradients over ranks: in shared memory, by MPI with packing, by PyTorch's gloo; what a step pays for them.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python benchmarks/comm.py sums
    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python benchmarks/comm.py steps

``sums``: eight gradients of equal size are written, all ranks meet, then the clock runs: packing, sum and unpacking,
until the slowest rank has all sums. ``steps``: forward and backward of the same nets by the engine and by PyTorch's
DistributedDataParallel, with and without sums over ranks; what counts is the difference, the time that a step pays.
``updates``: sums and Adam, by every rank for all parameters, and by each for its parts.
PyTorch is left out where it is not installed. Contenders take turns in each round; medians over rounds, ratios from
the same round. ``--of 30`` runs 30 rounds and keeps those in which other processes worked least.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI
from timing import ratio, report
from workloads import Workload, _dense, lenet, mlp

import arrayexec as ax
from arrayexec.comm import GradientBuckets
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.parallel.gradient_sync import ShardedUpdate

PIECES = 8

world = MPI.COMM_WORLD


def torch_of_ranks() -> tuple[Any, Any] | None:
    """PyTorch and its ``distributed`` with all ranks under gloo; None where it is not installed."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return None
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    path = world.bcast(tempfile.mktemp() if world.rank == 0 else None)  # gloo makes the file
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=world.rank, world_size=world.size)
    return torch, dist


class Rounds(dict[str, list[float]]):
    """Seconds of a call on the slowest rank, by contender and round; only the rounds least disturbed by others."""

    foreign = 0.0
    """Cores that other processes used in these rounds, on average."""


def rounds_of(
    contenders: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]],
    rounds: int,
    calls: Mapping[str, int],
    of: int = 0,
    typical: Callable[[Any], Any] = np.median,
) -> Rounds:
    """Measure contenders, each (what is done before, what is timed); keeps ``rounds`` rounds out of ``of``.

    A round counts with the ``typical`` one of its calls.
    """
    names = list(contenders)
    kept: list[tuple[float, dict[str, float]]] = []
    for number in range(max(rounds, of) + 2):
        turn = number % len(names)
        begun, busy, own = time.perf_counter(), _busy(), _own()
        found = {}
        for name in names[turn:] + names[:turn]:
            before, call = contenders[name]
            times = []
            for _ in range(calls[name]):
                before()
                world.Barrier()
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            slowest = np.array(times)
            world.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
            found[name] = float(typical(slowest))
        foreign = (_busy() - busy - (_own() - own)) / (time.perf_counter() - begun)
        if number > 1:
            kept.append((world.bcast(foreign), found))
    kept = sorted(kept, key=lambda one: one[0])[:rounds]
    result = Rounds({name: [found[name] for _, found in kept] for name in names})
    result.foreign = float(np.mean([foreign for foreign, _ in kept]))
    return result


def _busy() -> float:
    """Seconds that the cores of this machine have worked."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Seconds that all ranks have worked."""
    return float(world.allreduce(time.process_time()))


def sums(nbytes: int, comm: Any, torch: Any, rounds: int, of: int) -> dict[str, Any]:
    """One row: gradients of ``nbytes`` bytes in all."""
    count = nbytes // 4 // PIECES
    source = [np.random.default_rng([comm.rank, i]).standard_normal(count, np.float32) for i in range(PIECES)]
    names = [f"g{i}" for i in range(PIECES)]
    contenders: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}

    def write(arrays: list[np.ndarray]) -> Callable[[], None]:
        def run() -> None:
            for array, values in zip(arrays, source, strict=True):
                np.copyto(array, values)
        return run  # fmt: skip

    def engine(block: np.ndarray) -> tuple[Callable[[], Any], Callable[[], Any]]:
        arrays = [block[i * count : (i + 1) * count] for i in range(PIECES)]
        buckets = GradientBuckets(comm, dict(zip(names, arrays, strict=True)), [block])

        def run() -> None:
            for name in names:
                buckets.ready(name)
            buckets.finish()

        return write(arrays), run

    contenders["shared"] = engine(comm.shared_segment(nbytes).view(np.float32))
    contenders["own memory"] = engine(np.zeros(nbytes // 4, np.float32))
    scattered = [np.empty(count, np.float32) for _ in range(PIECES)]
    flat = np.empty(nbytes // 4, np.float32)

    def packed(total: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            np.concatenate(scattered, out=flat)
            total()
            for i, array in enumerate(scattered):
                np.copyto(array, flat[i * count : (i + 1) * count])
        return run  # fmt: skip

    contenders["Allreduce"] = write(scattered), packed(lambda: world.Allreduce(MPI.IN_PLACE, flat))
    if torch is not None:
        tensor = torch[0].from_numpy(flat)
        contenders["gloo"] = write(scattered), packed(lambda: torch[1].all_reduce(tensor))
    calls = dict.fromkeys(contenders, max(3, min(50, (16 << 20) // nbytes)))
    found = rounds_of(contenders, rounds, calls, of)
    row: dict[str, Any] = {"bytes": _size(nbytes)}
    row |= {f"{name} us": median(times) * 1e6 for name, times in found.items()}
    row |= {f"shared/{other}": ratio(found, "shared", other) for other in found if other != "shared"}
    return row | {"foreign cores": found.foreign}


def iterator(workload: Workload) -> Any:
    """What a manager asks of an iterator."""
    describe = {name: [ax.io.DataDesc(name, workload.inputs[name].shape)] for name in ("data", "softmax_label")}
    return SimpleNamespace(provide_data=describe["data"], provide_label=describe["softmax_label"])


def engine_step(workload: Workload, comm: Any) -> Callable[[], None]:
    """Forward and backward, with sums over the ranks of ``comm``."""
    manager = DataParallelExecutorManager(workload.symbol, ax.cpu(), iterator(workload), comm=comm)
    random, held = np.random.default_rng(1), manager.stores[0].parameters
    manager.set_params({n: random.normal(0, 0.05, a.shape).astype("f") for n, a in held.items()})
    batch = SimpleNamespace(data=[workload.inputs["data"]], label=[workload.inputs["softmax_label"]], pad=0)

    def run() -> None:
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()

    return run


def torch_step(name: str, workload: Workload, torch: Any, summed: bool) -> Callable[[], None]:
    """The same by PyTorch; without sums the same model is not wrapped."""
    nn = torch[0].nn
    if name.startswith("lenet"):
        layers = [nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10)]
    else:
        widths = [workload.inputs["data"].shape[1], *WIDTHS[name], 10]
        layers = [one for a, b in itertools.pairwise(widths) for one in (nn.Linear(a, b), nn.ReLU())][:-1]
    torch[0].manual_seed(0)
    model = nn.Sequential(*layers)
    if summed:
        model = nn.parallel.DistributedDataParallel(model)
    data = torch[0].from_numpy(workload.inputs["data"])
    label = torch[0].from_numpy(workload.inputs["softmax_label"].astype(np.int64))
    loss = nn.CrossEntropyLoss()

    def run() -> None:
        model.zero_grad()
        loss(model(data), label).backward()

    return run


def whole_update(rule: Any, gradients: Mapping[str, Any], parameters: Mapping[str, Any]) -> Callable[[Any], None]:
    """Every rank updates all parameters."""
    updater = ax.optimizer.get_updater(rule)

    def run(used: Any) -> None:
        for name in used:
            updater(name, gradients[name], parameters[name])

    return run


def updates(nbytes: int, comm: Any, rounds: int, of: int) -> dict[str, Any]:
    """One row: sums of ``nbytes`` bytes of gradients, then Adam."""
    values = np.random.default_rng(comm.rank).standard_normal(nbytes // 4, np.float32)
    contenders = {}
    for name, sharded in (("whole", False), ("parts", True)):
        gradient, parameter = (comm.shared_segment(nbytes).view(np.float32) for _ in range(2))
        buckets = GradientBuckets(comm, {"weight": gradient}, [gradient], sharded=sharded)
        rule = ax.optimizer.create("adam")
        arrays = {"weight": gradient}, {"weight": parameter}
        update = ShardedUpdate(comm, buckets, *arrays, rule) if sharded else whole_update(rule, *arrays)

        def run(buckets: GradientBuckets = buckets, update: Any = update) -> None:
            buckets.ready("weight")
            update(buckets.finish())

        contenders[name] = (lambda gradient=gradient: np.copyto(gradient, values), run)
    found = rounds_of(contenders, rounds, dict.fromkeys(contenders, max(3, min(50, (16 << 20) // nbytes))), of)
    row: dict[str, Any] = {"bytes": _size(nbytes)} | {f"{n} us": median(t) * 1e6 for n, t in found.items()}
    return row | {"parts/whole": ratio(found, "parts", "whole"), "foreign cores": found.foreign}


WIDTHS = {"mlp512": [512, 512], "mlp2048": [2048, 2048]}
NETS: dict[str, Callable[[], Workload]] = {
    "mlp512": lambda: mlp(128),
    "mlp2048": lambda: _dense([784, 2048, 2048, 10], 128),
    "lenet64": lambda: lenet(64),
}


def steps(name: str, comm: Any, torch: Any, rounds: int, of: int) -> dict[str, Any]:
    """One row: a net of ``NETS``."""
    workload = NETS[name]()
    contenders = {"engine": engine_step(workload, comm), "engine alone": engine_step(workload, None)}
    if torch is not None:
        contenders |= {
            "DDP": torch_step(name, workload, torch, True),
            "torch alone": torch_step(name, workload, torch, False),
        }
    timed = {n: (lambda: None, step) for n, step in contenders.items()}
    found = rounds_of(timed, rounds, dict.fromkeys(contenders, 3), of)
    row: dict[str, Any] = {"step": name} | {f"{key} ms": median(times) * 1e3 for key, times in found.items()}
    extra = {
        key: [a - b for a, b in zip(found[key], found[alone], strict=True)]
        for key, alone in (("engine", "engine alone"), ("DDP", "torch alone"))
        if key in found
    }
    row |= {f"{key} pays ms": median(times) * 1e3 for key, times in extra.items()}
    return row | {"foreign cores": found.foreign}


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def main() -> None:
    """Measure what the command line names; rank 0 prints."""
    parser = argparse.ArgumentParser(description="Sums of gradients over ranks.")
    parser.add_argument("what", choices=["sums", "steps", "updates"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--of", type=int, default=0, help="rounds run, of which the least disturbed ones count")
    parser.add_argument("--bytes", type=int, nargs="*", default=[1 << k for k in (16, 18, 20, 22, 23, 25, 26)])
    parser.add_argument("--nets", nargs="*", choices=sorted(NETS), default=list(NETS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    comm = ax.comm.init()
    torch = torch_of_ranks() if options.what != "updates" else None
    if options.what == "sums":
        rows = [sums(nbytes, comm, torch, options.rounds, options.of) for nbytes in options.bytes]
    elif options.what == "updates":
        rows = [updates(nbytes, comm, options.rounds, options.of) for nbytes in options.bytes]
    else:
        rows = [steps(name, comm, torch, options.rounds, options.of) for name in options.nets]
    if comm.rank == 0:
        title = f"{options.what} of gradients, {comm.size} ranks"
        report(title, rows, options.json, [MPI.Get_library_version().splitlines()[0].strip()])
    if torch is not None:
        with contextlib.suppress(RuntimeError):
            torch[1].destroy_process_group()


if __name__ == "__main__":
    main()
