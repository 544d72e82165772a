"""A training in which rank 1 does what the first argument says at the place that the second one names.

Places, in their order: start, before the ranks have met; init, where the model is made; first step; mid backward, when
gradients of the third step are on their way; checkpoint, after an epoch; evaluation. Lines are written at once, so that
those of several ranks do not run into one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train.io import DataBatch, NDArrayIter
from tests.parallel.networks import Described, convolutional, values

comm.buckets.LEAST_BYTES = 64  # small gradients are cut, too, so that some are under way inside backward

EVENT, PLACE = sys.argv[1:3]
ROWS, BATCHES = 8, 4
IMAGE = (ROWS, 1, 8, 8)
GUILTY = "1" in (os.environ.get("PMI_RANK"), os.environ.get("PMIX_RANK"))
RANKS: Any = None


class Return(Exception):
    """Leave the program as by a return."""


def broken() -> None:
    raise ValueError("bad row 17")


def forked() -> None:
    RANKS.allreduce(numpy.ones(3))


def failing() -> None:
    sys.stderr.write(f"failing at {time.time()}\n")


def act(place: str) -> None:
    """What rank 1 does where it goes wrong; differences between the ranks are made elsewhere."""
    if not (GUILTY and place == PLACE):
        return
    failing()
    if EVENT == "exception":
        broken()
    if EVENT == "exception in a thread":
        thread = threading.Thread(target=broken, name="reader")
        thread.start()
        thread.join()
        time.sleep(1)
    if EVENT == "fork in a data worker":
        worker = multiprocessing.get_context("fork").Process(target=forked if RANKS else int)
        worker.start()
        worker.join()
        if worker.exitcode:
            raise RuntimeError("a data worker ended with an exception")
    if EVENT == "sys.exit":
        sys.exit(3)
    if EVENT == "os._exit":
        os._exit(0)
    if EVENT == "early return":
        raise Return
    if EVENT in ("SIGKILL", "SIGSTOP"):
        if EVENT == "SIGKILL":  # MPICH could not unlink its shared memory any more
            maps = Path("/proc/self/maps").read_text().splitlines()
            for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
                os.unlink(path)
        os.kill(os.getpid(), getattr(signal, EVENT))
    if EVENT == "slow rank":
        time.sleep(120)
    if EVENT == "Ctrl-C":  # as a terminal does
        os.killpg(int(os.environ["LAUNCHER"]), signal.SIGINT)
        time.sleep(30)


def odd(event: str, *places: str) -> bool:
    """Whether this rank differs from the others in the way of ``event``, at the places given."""
    here = GUILTY and event == EVENT and PLACE in places
    if here:
        failing()
    return here


def network(place: str) -> Any:
    if odd("parameter order", place):  # the same parameters, made the other way round
        data = ax.sym.Variable("data")
        parts = [ax.sym.FullyConnected(data, num_hidden=4, name=name) for name in ("right", "left")]
        return ax.sym.SoftmaxOutput(parts[0] + parts[1], name="softmax")
    if EVENT == "parameter order":
        data = ax.sym.Variable("data")
        parts = [ax.sym.FullyConnected(data, num_hidden=4, name=name) for name in ("left", "right")]
        return ax.sym.SoftmaxOutput(parts[0] + parts[1], name="softmax")
    return convolutional(classes=5 if odd("model", place) else 4, norm=True, dropout=0.5 if odd("option", place) else 0.25)


def manager(place: str) -> DataParallelExecutorManager:
    dtype = numpy.float64 if odd("dtype", place) else numpy.float32
    described = Described({"data": IMAGE}, {"softmax_label": (ROWS,)}, dtype=dtype)
    if place == "init":
        described.num_batches = BATCHES + odd("fewer batches", place)
    return DataParallelExecutorManager(network(place), ax.cpu(), described, comm=RANKS)


def batches(number: int) -> list[DataBatch]:
    iterator = NDArrayIter(numpy.ones((ROWS * BATCHES, 1, 8, 8)), numpy.zeros(ROWS * BATCHES), ROWS)
    return list(iterator)[:number]


def backward(one: DataParallelExecutorManager) -> None:
    """A backward in the middle of which something happens."""
    sync: Any = one.gradient_buckets
    ready, seen = sync.ready, []

    def stopped(name: str) -> None:
        ready(name)
        seen.append(name)
        if len(seen) == 4:
            assert sync.events, "no gradient is on its way"
            act("mid backward")

    sync.ready = stopped
    one.backward()
    sync.ready = ready


def train(one: DataParallelExecutorManager, epoch: int) -> None:
    fewer = odd("fewer batches", "first step") * BATCHES + (epoch == 1 and odd("fewer batches", "checkpoint"))
    rate = 0.2 if odd("option", "first step") else 0.1
    updater = ax.optimizer.get_updater(ax.optimizer.create("sgd", learning_rate=rate))
    for number, batch in enumerate(batches(BATCHES - fewer)):
        one.load_data_batch(batch)
        one.forward(is_train=True)
        if (epoch, number) == (0, 0):
            act("first step")
        if (epoch, number) == (0, 2):
            backward(one)
        else:
            one.backward()
        one.update(updater)


def checkpoint(one: DataParallelExecutorManager, path: Path) -> None:
    RANKS.where = "checkpoint"
    held = one.stores[0]
    args = {name: numpy.empty_like(value) for name, value in held.parameters.items()}
    one.copy_to(args, {name: numpy.empty_like(value) for name, value in held.aux.items()})
    act("checkpoint")
    if RANKS.rank == 0:
        numpy.savez(path, **args)
    RANKS.barrier()
    found = dict(numpy.load(path))
    if odd("model", "checkpoint"):
        found["fc2_weight"] = numpy.zeros((7, 16), numpy.float32)
    if odd("dtype", "checkpoint"):
        found = {name: value.astype(numpy.float64) for name, value in found.items()}
    if odd("parameter order", "checkpoint"):
        found = dict(reversed(found.items()))
    one.set_params(found)


def evaluate(place: str = "evaluation") -> None:
    one = manager(place)
    one.set_params(*values(one.symbol, data=IMAGE))
    RANKS.where = "evaluation"
    counts = numpy.zeros(1)
    for number, batch in enumerate(batches(BATCHES - odd("fewer batches", place))):
        one.load_data_batch(batch)
        one.forward()
        counts += len(one.get_outputs()[0])
        if number == 1:
            act(place)
    RANKS.allreduce(counts)
    if RANKS.rank == 0:
        print(f"evaluated {counts[0]:.0f} rows")


def main() -> None:
    global RANKS
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
    act("start")
    RANKS = comm.init()
    act("init")
    one = manager("init")
    one.set_params(*values(one.symbol, data=IMAGE))
    for epoch in range(2):
        train(one, epoch)
    checkpoint(one, Path(sys.argv[3]))
    evaluate()


if __name__ == "__main__":
    try:
        main()
    except Return:
        pass
