"""Every collective once, against closed forms; rank 0 prints one JSON line."""

import hashlib
import json

import numpy

from arrayexec import comm
from arrayexec.errors import CollectiveError
from tests.parallel.refused import refused

ranks = comm.init()
rank, size = ranks.rank, ranks.size
assert comm.init() is ranks
assert ranks.name == ("mpi" if size > 1 else "local")
assert (ranks.local_rank, ranks.local_size) == (rank, size)

# sums: 1 + 2 + … + size times a ramp, exact in every type
total = size * (size + 1) // 2
for dtype in "efdiql":
    for shape in ((), (1,), (0,), (3, 5)):
        ramp = numpy.arange(numpy.prod(shape, dtype=int), dtype=dtype).reshape(shape) + numpy.array(1, dtype)
        array = numpy.array(ramp * numpy.array(rank + 1, dtype))
        ranks.allreduce(array)
        assert array.dtype == dtype
        assert array.shape == shape
        assert (array == ramp * total).all(), (dtype, shape, array)
array = (numpy.arange(4.0) + 1j) * (rank + 1)
ranks.allreduce(array)
assert (array == (numpy.arange(4.0) + 1j) * total).all()

# every other column, and Fortran order: not in place for MPI, but for the caller
wide = numpy.full((4, 6), float(rank + 1))
ranks.allreduce(wide[:, ::2])
assert (wide[:, ::2] == total).all()
assert (wide[:, 1::2] == rank + 1).all()
columns = numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4) * (rank + 1))
ranks.allreduce(columns)
assert (columns == numpy.arange(12.0).reshape(3, 4) * total).all()

# gathering, several under way at once
requests, everything = [], []
for length in (0, 1, 7, 100_000):
    everything.append((numpy.arange(length, dtype=numpy.uint8) + numpy.uint8(rank), numpy.empty((size, length), numpy.uint8)))
    requests.append(ranks.start_gather(*everything[-1], "two bits"))
for request, (mine, rows) in zip(requests, everything, strict=True):
    request.wait()
    assert all((row == mine - numpy.uint8(rank) + numpy.uint8(r)).all() for r, row in enumerate(rows))

# broadcast from every root
for root in range(size):
    array = numpy.full((2, 3), rank, numpy.int32)
    ranks.broadcast(array, root)
    assert (array == root).all()

# control data
gathered = ranks.allgather_object({"rank": rank, "text": "é" * rank, "rows": (1, 2)})
assert gathered == [{"rank": r, "text": "é" * r, "rows": [1, 2]} for r in range(size)]
ranks.barrier()

# several under way at once, waited for in the order of their start
requests, arrays = [], []
for i in range(20):
    arrays.append(numpy.full(1000 * (i + 1), float(i * (rank + 1))))
    requests.append(ranks.start_allreduce(arrays[-1], f"gradient bucket {i}"))
for i, (request, array) in enumerate(zip(requests, arrays, strict=True)):
    request.wait()
    assert request.test()
    assert (array == i * total).all()

# what is refused is refused before anything is sent
for bad, text in (
    (numpy.array(["a"]), "allreduce: the array must hold numbers, but its type is <U1"),
    (numpy.array([True]), "allreduce: the array must hold numbers, but its type is bool"),
    (numpy.broadcast_to(1.0, (2,)), "allreduce: the array float64 (2,) must be writable, but is read-only"),
):
    said = refused(CollectiveError, ranks.allreduce, bad)
    assert said == text, said
said = refused(CollectiveError, ranks.broadcast, numpy.zeros(2), size)
assert said.startswith("broadcast: the root must be a rank, 0"), said
said = refused(CollectiveError, ranks.allgather_object, {1, 2})
assert said.startswith("allgather_object: only what JSON can carry can be gathered"), said
ranks.agree({"data": (32, 64), "dtype": numpy.dtype("f4")}, "model")

# the same bits on every rank: sums of floats whose order matters
digests = []
for dtype in ("f4", "f8", "f2"):
    for n in (1, 7, 1000, 100_003, 3_000_000 if dtype == "f4" else 5000):
        array = numpy.random.default_rng(rank).standard_normal(n).astype(dtype)
        ranks.start_allreduce(array, "gradient bucket 0").wait()
        digests.append(hashlib.sha256(array.tobytes()).hexdigest()[:16])
        exact = sum(numpy.random.default_rng(r).standard_normal(n).astype(dtype).astype("f8") for r in range(size))
        assert numpy.abs(array - exact).max() <= size * numpy.finfo(dtype).eps * 4 * numpy.abs(exact).max()
everywhere = ranks.allgather_object(digests)
assert all(other == digests for other in everywhere), "ranks hold different bits"
if rank == 0:
    print(json.dumps(digests))
