"""Collectives on GPU arrays over ranks that have a fake NCCL, against closed forms; rank 0 prints one JSON line.

Arguments: the backend, and which GPUs the ranks have: ``own`` or ``one`` for all, or ``bare``: rank 1 has no NCCL.
With a third, ``real``, the CuPy, the NCCL and the GPUs are those of the machine.
"""

import json
import os
import sys

import numpy

import arrayexec as ax
from arrayexec import comm
from arrayexec.context import asnumpy
from arrayexec.errors import CollectiveError
from tests.parallel import fake_nccl
from tests.parallel.refused import refused

backend, gpus, *real = sys.argv[1:]
number = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
if not real:
    fake_nccl.install(gpus=3, available=gpus != "bare" or number != 1)
ranks = comm.init(backend)
rank, size = ranks.rank, ranks.size
assert (rank, ranks.name) == (number, {"auto": "mpi"}.get(backend, backend))
where = ax.gpu(0 if gpus == "one" else ranks.local_rank)
total = size * (size + 1) // 2


def there(values, dtype="f4"):
    host = numpy.array(values, dtype)
    array = where.empty(host.shape, host.dtype, "gradient")
    where.from_host(host, array)
    return array


# sums in every type, and in layouts that are not in place for NCCL, but for the caller
for dtype in "efdbBiIqQFDhH":
    for shape in ((), (1,), (0,), (3, 5)):
        ramp = numpy.arange(numpy.prod(shape, dtype=int)).reshape(shape) + 1
        array = there(ramp * (rank + 1), dtype)
        ranks.allreduce(array)
        assert array.dtype == dtype
        assert (asnumpy(array) == (ramp * total).astype(dtype)).all(), (dtype, shape, asnumpy(array))
wide = there(numpy.full((4, 6), rank + 1))
ranks.allreduce(wide[:, ::2])
assert (asnumpy(wide)[:, ::2] == total).all()
assert (asnumpy(wide)[:, 1::2] == rank + 1).all()
columns = there(numpy.arange(12).reshape(3, 4) * (rank + 1)).transpose()
ranks.allreduce(columns)
assert (asnumpy(columns) == numpy.arange(12).reshape(3, 4).T * total).all()

for root in range(size):
    for dtype in ("f4", "i2"):
        array = there(numpy.full((2, 3), rank), dtype)
        ranks.broadcast(array, root)
        assert (asnumpy(array) == root).all()

# arrays of the host, control data and GPU arrays by turns
host = numpy.full(5, rank + 1.0)
ranks.allreduce(host)
assert (host == total).all()
assert ranks.allgather_object(rank) == list(range(size))
ranks.barrier()

# under way beside each other and beside a computation: nothing waits for the host, and the order is kept
gradients = [there(numpy.full(1000 * (i + 1), i * (rank + 1))) for i in range(8)]
other = there([1.0, 2.0])
where.synchronize()
if not real:
    where.device.log.clear()
requests = []
for i, gradient in enumerate(gradients):
    with where.enter():
        gradient += 1
    requests.append(ranks.start_allreduce(gradient, f"gradient bucket {i}"))
    with where.enter():
        other *= 2
why = getattr(ranks, "why_staged", "backend mpi")
if not why and not real:
    assert (where.device.count("synchronize"), where.device.count("to_host")) == (0, 0)
for i, (gradient, request) in enumerate(zip(gradients, requests, strict=True)):
    request.wait()
    assert request.test()
    with where.enter():
        gradient *= 2
    assert (asnumpy(gradient) == 2 * (i * total + size)).all()
assert asnumpy(other).tolist() == [256, 512]

# nobody keeps the array but the communicator
for i in range(4):
    ranks.start_allreduce(there(numpy.ones(10)), f"gradient bucket {i}")
ranks.barrier()
last = there(numpy.ones(3))
ranks.allreduce(last)
assert (asnumpy(last) == size).all()

for bad, text in (
    (numpy.array(["a"]), "allreduce: the array must hold numbers, but its type is <U1"),
    (there([True], bool), "allreduce: the array must hold numbers, but its type is bool"),
):
    said = refused(CollectiveError, ranks.allreduce, bad)
    assert said == text, said

calls = [entry for entry in fake_nccl.log if entry[0] != "to pinned memory"]
everywhere = ranks.allgather_object([entry[:3] for entry in calls if entry[0] != "meet"])
assert all(other == everywhere[0] for other in everywhere), "ranks have called NCCL differently"
staged = sum(entry[0] == "to pinned memory" for entry in fake_nccl.log)
if rank == 0:
    meetings = [entry for entry in calls if entry[0] == "meet"]
    print(json.dumps({"meetings": meetings, "calls": len(everywhere[0]), "staged": staged, "why": why}))
