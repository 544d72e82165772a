"""A training that ends by itself, unless its hosts lose each other: rank 0 asks for that in the fourth step."""

import socket
import sys
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.errors import CollectiveError
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train.io import NDArrayIter
from tests.parallel.networks import convolutional, values


def train(ranks: comm.Communicator, cut: str) -> None:
    assert socket.gethostname() == f"h{1 + ranks.rank // 2}"
    assert (ranks.local_rank, ranks.local_size) == (ranks.rank % 2, 2)
    data, label = numpy.zeros((96, 1, 8, 8)), numpy.zeros(96)
    iterator = NDArrayIter(data, label, 12, num_shards=ranks.size, shard_id=ranks.rank)
    symbol = convolutional()
    manager = DataParallelExecutorManager(symbol, ax.cpu(), iterator, comm=ranks)
    manager.set_params(*values(symbol, data=(12, 1, 8, 8)))
    updater = ax.optimizer.get_updater(ax.optimizer.create("sgd"))
    for number, batch in enumerate(iterator):
        if number == 3 and ranks.rank == 0:
            sys.stderr.write(f"failing at {time.time()}\n{cut}\n")
            time.sleep(1.5)
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        manager.update(updater)


def main(cut: str, directory: str) -> None:
    ranks = comm.init()
    try:
        train(ranks, cut)
    except CollectiveError as error:
        (Path(directory) / f"rank {ranks.rank}").write_text(f"{type(error).__name__}: {error}")
        raise
    if ranks.rank == 0:
        print("trained")


main(*sys.argv[1:])
