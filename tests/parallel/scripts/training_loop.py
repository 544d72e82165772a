"""A training loop in which rank 1 fails in its third step, in the way named on the command line."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train import optimizer
from arrayexec.train.io import NDArrayIter
from tests.parallel.networks import convolutional, values


def main(event: str) -> None:
    ranks = comm.init()
    symbol = convolutional()
    data = numpy.zeros((96, 1, 8, 8), numpy.float32)
    iterator = NDArrayIter(data, numpy.zeros(96), 12, num_shards=ranks.size, shard_id=ranks.rank)
    manager = DataParallelExecutorManager(symbol, ax.cpu(), iterator, comm=ranks)
    manager.set_params(*values(symbol, data=(12, 1, 8, 8)))
    updater = optimizer.get_updater(optimizer.create("sgd"))
    for number, batch in enumerate(iterator):
        if number == 2 and ranks.rank == 1:
            sys.stderr.write(f"failing at {time.time()}\n")
            if event == "exception":
                raise ValueError("bad row 17")
            if event == "early return":
                return
            if event == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        manager.update(updater)


main(sys.argv[1])
