"""Two models at once, each on half of the ranks; then one on all. Argument: nothing, or what rank 2 does in a step."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from mpi4py import MPI

import arrayexec as ax
from tests.parallel.parallelized import alike, batches, build, train

event = sys.argv[1] if len(sys.argv) > 1 else ""
ranks = ax.comm.init()
half = MPI.COMM_WORLD.Split(ranks.rank % 2, ranks.rank)
names = ("combined, uneven", "adam")
name = names[ranks.rank % 2]

if event:
    model = build("sgd", [0], half)
    for data, label in batches("sgd"):
        model.feed("data", data)
        model.feed("label", label)
        if ranks.rank == 2 and model.iteration == 1:
            if event == "raises":
                raise ValueError("a fault of the program")
            sys.exit()
        model.run()
    sys.exit()

for options in ({}, {"sharded_update": True}, {"shared_model": True, "max_concurrent_distributed_ops": 1}):
    found, model = train(name, [1, 0], half, **options)  # a second time these are the same ranks
    assert model.comm.size == 2
    assert model.comm.rank == ranks.rank // 2
    alike(found, train(name, [0])[0], (name, options))
    model.check_consistency()
    for key, value in sorted(found.items()):
        assert value.tobytes() == half.bcast(value.tobytes()), key

# as Caffe2 said it; and all together again
shards = {"engine": "MPI", "num_shards": half.size, "shard_id": half.rank, "comm": half}
alike(train(name, [0], shards)[0], train(name, [0])[0], name)
alike(train("momentum", [0], MPI.COMM_WORLD)[0], train("momentum", [0])[0], "all")
assert ax.comm.init() is ranks

# each rank by itself leaves the others alone
alone = train("sgd", [0], MPI.COMM_SELF)[1]
assert alone.comm is None
assert ax.comm.init().size == ranks.size

first = MPI.COMM_WORLD.Create(MPI.COMM_WORLD.group.Incl([0, 1]))
try:
    build("sgd", [0], first)
except ax.RendezvousError as error:
    assert ranks.rank > 1
    assert str(error) == "parallelize: rendezvous: this process is none of the ranks of the MPI communicator"
else:
    assert ranks.rank < 2
sums = np.ones(3)
ranks.allreduce(sums)
assert sums.tolist() == [ranks.size] * 3
