"""A manager's gradients lie in shared memory and are under way inside backward; without room it works as before."""

import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.comm import mpi
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from tests.parallel.networks import Described, convolutional, values

comm.buckets.LEAST_BYTES = 64  # small gradients are cut, too, so that some are under way while others are written
ranks = comm.init()
room = mpi._shared_memory_room


def gradients(shared: bool) -> dict[str, numpy.ndarray]:
    symbol = convolutional()
    described = Described({"data": (4, 1, 8, 8)}, {"softmax_label": (4,)})
    manager = DataParallelExecutorManager(symbol, ax.cpu(), described, comm=ranks)
    held = manager.stores[0].gradients
    assert {ranks.place(array) is not None for array in held.values()} == {shared}
    manager.set_params(*values(symbol, data=(4, 1, 8, 8)))
    random = numpy.random.default_rng(ranks.rank)
    batch = Described({"data": (4, 1, 8, 8)}, {"softmax_label": (4,)})
    batch.data = [random.standard_normal((4, 1, 8, 8)).astype("f4")]
    batch.label = [random.integers(0, 4, 4).astype("f4")]
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    last = {}
    sync = manager.gradient_buckets
    ready = sync.ready
    sync.ready = lambda name: (last.update(started=[e for e in sync.events if e[1] == "start"]), ready(name))
    manager.backward()
    assert last["started"], "no bucket was under way when the last gradient was written"
    return {name: array.copy() for name, array in held.items()}


with_room = gradients(True)
if ranks.rank == ranks.size - 1:
    mpi._shared_memory_room = lambda: 0
assert ranks.allocate(64, "gradient") is None
without = gradients(False)
mpi._shared_memory_room = room
for name, array in with_room.items():
    assert array.any()
    assert numpy.abs(array - without[name]).max() <= 1e-6 * numpy.abs(array).max(), name
if ranks.rank == 0:
    print("the same without room")
