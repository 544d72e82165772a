"""Run all trainings on all ranks; rank 0 writes what came out. Arguments: file, devices of a rank."""

import hashlib
import sys
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arrayexec import comm
from tests.parallel.training import TRAININGS, Trainer

comm.buckets.LEAST_BYTES = 64  # small gradients are cut, too, so that some are under way while others are written


def watch(trainer: Trainer) -> list[float]:
    """When each gradient was written, from now on."""
    times: list[float] = []
    bind = trainer.bind

    def bound(*given: object, **options: object) -> None:
        bind(*given, **options)
        buckets = trainer.manager.gradient_buckets
        ready = buckets.ready

        def seen(name: str) -> None:
            times.append(time.perf_counter())
            ready(name)

        buckets.ready = seen

    trainer.bind = bound
    return times


def main(path: str, devices: int) -> None:
    ranks = comm.init()
    found = {}
    for name, training in TRAININGS.items():
        trainer = Trainer(ranks, devices)
        written = watch(trainer)
        result = training(trainer)
        own = hashlib.sha256(b"".join(trainer.manager.stores[0].parameters[n].tobytes() for n in sorted(trainer.manager.stores[0].parameters)))
        assert len(set(ranks.allgather_object(own.hexdigest()))) == 1, name
        found |= {f"{name}/{parameter}": value for parameter, value in result.items()}
        if name in ("convolution", "norm") and devices == 1:
            starts = [when for when, what, _ in trainer.manager.gradient_buckets.events if what == "start"]
            assert len(starts) >= 3, starts
            assert starts[0] < starts[-2] < written[-1], (starts, written)
    if ranks.rank == 0:
        numpy.savez(path, **found)


main(sys.argv[1], int(sys.argv[2]))
