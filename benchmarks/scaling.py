"""How training scales: replays when the gradients of a plan are ready over modelled hosts and networks.

    OPENBLAS_NUM_THREADS=1 python benchmarks/scaling.py predict
    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python benchmarks/scaling.py check
    OPENBLAS_NUM_THREADS=1 ARRAYEXEC_RANKS_PER_HOST=2 mpirun -n 4 python benchmarks/scaling.py check

``predict`` runs one rank's step, keeps when each gradient was ready, and says what share of its speed every rank
keeps among up to 1,024. ``check`` measures what sums cost on this machine (time of a meeting, of a byte, of a
message), predicts what a step pays from that, and measures a step: the best of all rounds, since a rank that waits for
a core is no cost of the sum. The model is told in docs/design/scaling.md.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median
from typing import Any

import numpy as np
from timing import report
from workloads import WORKLOADS, _dense, lenet

import arrayexec as ax
from arrayexec.comm.buckets import cut

SMALL_STEPS = {
    "mlp 512": _dense([784, 512, 512, 10], 16), "mlp 2048": _dense([784, 2048, 2048, 10], 8), "lenet": lenet(4),
}  # fmt: skip
"""Small batches: what a step pays does not depend on them, and its parts are seen through less of everything else."""

Bucket = tuple[float, int]
"""Seconds of backward after which a gradient bucket is full, and its bytes."""


@dataclass(frozen=True)
class Costs:
    """What ranks and networks take; seconds, and bytes a second."""

    meeting: float = 5e-6
    """Of a bucket, before its bytes count; of the end of a step as well."""
    memory: float = 10e9
    """Bytes of a bucket a second that the ranks of a host add up, together."""
    alpha: float = 5e-6
    """Of a message between hosts."""
    network: float = 25e9 / 8
    """Bytes a second between hosts, one way."""
    compression: float = 1.0
    """By how much fewer bytes travel between hosts."""
    beside: bool = False
    """Whether sums run beside the computation (GPUs with a stream for them), not in its thread."""
    progress: bool = True
    """Whether messages move while the thread computes."""
    jitter: float = 0.0
    """Standard deviation of a rank's time of computing, as part of it."""


def between(nbytes: float, hosts: int, costs: Costs) -> float:
    """Seconds of the sum over hosts: the better of doubling and of halving and doubling (reduce-scatter, gather)."""
    if hosts == 1:
        return 0.0
    rounds, seconds = math.ceil(math.log2(hosts)), nbytes / costs.compression / costs.network
    return min(rounds * (costs.alpha + seconds), 2 * rounds * costs.alpha + 2 * (hosts - 1) / hosts * seconds)


def pays(buckets: Sequence[Bucket], backward: float, per_host: int, hosts: int, costs: Costs) -> float:
    """Seconds that a step takes beyond its own computation."""

    def inside(nbytes: int) -> float:
        return costs.meeting + (nbytes / costs.memory if per_host > 1 else 0.0)

    if costs.beside:
        free = 0.0
        for ready, nbytes in buckets:
            free = max(free, ready) + inside(nbytes) + between(nbytes, hosts, costs)
        return max(0.0, free - backward) + costs.meeting
    late, free, waiting = 0.0, 0.0, 0.0  # how late the thread is; when the network is free; what it has not begun
    for (_, nbytes), following in zip(buckets, [*(ready for ready, _ in buckets[1:]), backward], strict=True):
        late += inside(nbytes)  # when the next bucket is full, this one is added up
        if costs.progress:
            free = max(free, following + late) + between(nbytes, hosts, costs)
        else:
            waiting += between(nbytes, hosts, costs)
    return max(backward + late, free) + waiting - backward + costs.meeting


def efficiency(
    buckets: Sequence[Bucket], forward: float, backward: float, per_host: int, hosts: int, costs: Costs
) -> float:
    """What share of its speed alone every rank keeps."""
    alone, ranks = forward + backward, per_host * hosts
    slowest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0  # of so many, expected
    extra = pays(buckets, backward, per_host, hosts, costs) if ranks > 1 else 0.0
    return alone / (alone * (1 + costs.jitter * slowest) + extra)


def replayed(name: str, repeat: int = 3) -> tuple[list[Bucket], float, float]:
    """Gradient buckets of a workload with the times at which they are full; seconds of forward and of backward."""
    workload = WORKLOADS[name]()
    wants = {n: "null" if n in workload.inputs else "write" for n in workload.symbol.list_arguments()}
    executor = workload.symbol.simple_bind(ax.cpu(), grad_req=wants, **{n: a.shape for n, a in workload.inputs.items()})
    random = np.random.default_rng(0)
    for key, array in executor.arg_dict.items():
        if key not in workload.inputs:
            array[...] = random.normal(0, 0.02, array.shape)
    runs = []
    for _ in range(repeat + 1):
        ready: dict[str, float] = {}
        start = time.perf_counter()
        executor.forward(is_train=True, **workload.inputs)
        middle = time.perf_counter()
        executor.backward(on_ready=lambda key, at=ready: at.__setitem__(key, time.perf_counter()))
        end = time.perf_counter()
        runs.append((middle - start, end - middle, {key: at - middle for key, at in ready.items()}))
    forward, backward = median(run[0] for run in runs[1:]), median(run[1] for run in runs[1:])
    best = min(runs[1:], key=lambda run: run[1])
    times = {key: at * backward / best[1] for key, at in best[2].items()}
    gradients = [(key, executor.grad_dict[key].nbytes, np.float32) for key in times]
    buckets = [(max(times[p.name] for p in bucket.pieces), bucket.nbytes) for bucket in cut(gradients)]
    return buckets, forward, backward


def predict(rates: Sequence[float], per_host: int, jitter: float) -> list[dict[str, Any]]:
    """Rows: ResNet-50, batches of 64 at ``rates`` images a second of a rank alone, over two networks."""
    found, forward, backward = replayed("resnet50", 1)
    rows = []
    for rate in rates:
        scale = 64 / rate / (forward + backward)
        buckets = [(ready * scale, nbytes) for ready, nbytes in found]
        for gigabits in (25, 200):
            for bits in (32, 16):
                # a host of GPUs: NVLink or PCIe 4 at 20 GB/s at least; a message of TCP takes longer than one of RDMA
                costs = Costs(memory=20e9, alpha=15e-6 if gigabits == 25 else 5e-6, network=gigabits / 8 * 1e9,
                              compression=32 / bits, beside=True, meeting=20e-6, jitter=jitter)  # fmt: skip
                row: dict[str, Any] = {"images/s": rate, "Gb/s": gigabits, "bits": bits}
                for ranks in (8, 16, 64, 256, 1024):
                    local, hosts = min(per_host, ranks), max(1, ranks // per_host)
                    share = efficiency(buckets, forward * scale, backward * scale, local, hosts, costs)
                    row[str(ranks)] = f"{100 * share:.1f} %"
                rows.append(row)
    return rows


def check(rounds: int, of: int) -> list[dict[str, Any]]:
    """Rows: what steps of nets pay among the ranks that are there, predicted and measured."""
    from comm import engine_step, rounds_of, world

    from arrayexec.comm import GradientBuckets

    comm = ax.comm.init()
    per_host = comm.local_size
    fellows = world.Split(comm.local_rank, comm.rank)

    def sums(total: int) -> Any:
        block = comm.shared_segment(total).view(np.float32)
        buckets = GradientBuckets(comm, {"gradient": block}, [block])

        def run() -> None:
            buckets.ready("gradient")
            buckets.finish()

        return (lambda: block.fill(1), run), len(buckets.buckets)

    small, few = sums(1024)
    rows = []
    for name, workload in SMALL_STEPS.items():
        WORKLOADS[name] = lambda workload=workload: workload
        buckets, _, backward = replayed(name)
        total = sum(nbytes for _, nbytes in buckets)
        large, many = sums(total)
        message, bulk = np.zeros(1, np.float32), np.zeros(total // 4 // per_host, np.float32)
        alone = engine_step(workload, None)
        write, add = large

        def used(write: Any = write, alone: Any = alone) -> None:
            alone()  # caches are as a step leaves them
            write()

        contenders = {
            "small": small, "large": (used, add),
            "message": (lambda: None, lambda message=message: fellows.Allreduce(message.copy(), message)),
            "bulk": (lambda bulk=bulk: bulk.fill(1), lambda bulk=bulk: fellows.Allreduce(bulk.copy(), bulk)),
            "step": (lambda: None, engine_step(workload, comm)), "alone": (lambda: None, alone),
        }  # fmt: skip
        times = rounds_of(contenders, rounds, dict.fromkeys(contenders, 10), of, np.min)
        took = {key: min(values) for key, values in times.items()}
        hosts, alpha, network = fellows.size, 0.0, math.inf
        if hosts > 1:
            alpha = took["message"] / math.ceil(math.log2(hosts))
            network = 2 * (hosts - 1) / hosts * total / max(1e-9, took["bulk"] - took["message"])
        meeting = max(0.0, took["small"] - (few * took["message"] if hosts > 1 else 0.0)) / (few + 1)
        costs = Costs(meeting=meeting, alpha=alpha, network=network, progress=False)
        rest = took["large"] - pays([(0.0, 0)] * many, 0.0, per_host, hosts, costs)
        rest -= took["bulk"] if hosts > 1 else 0.0
        costs = replace(costs, memory=total / max(1e-9, rest))
        rows.append({
            "step": name, "ranks": comm.size, "hosts": hosts, "alone ms": took["alone"] * 1e3,
            "predicted ms": pays(buckets, backward, per_host, hosts, costs) * 1e3,
            "measured ms": (took["step"] - took["alone"]) * 1e3,
            "meeting us": meeting * 1e6, "memory GB/s": costs.memory / 1e9, "alpha us": alpha * 1e6,
            "network GB/s": network / 1e9, "foreign cores": times.foreign,
        })  # fmt: skip
    return rows if comm.rank == 0 else []


def main() -> None:
    """Predict, or check the prediction."""
    parser = argparse.ArgumentParser(description="How training scales.")
    parser.add_argument("what", choices=["predict", "check"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--of", type=int, default=0, help="rounds run, of which the least disturbed ones count")
    parser.add_argument("--images", type=float, nargs="*", default=[400, 2500], help="a second, of one rank alone")
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--jitter", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.what == "check":
        rows = check(options.rounds, options.of)
    else:
        rows = predict(options.images, options.per_host, options.jitter)
    if rows:
        report(f"scaling: {options.what}", rows, options.json)


if __name__ == "__main__":
    main()
