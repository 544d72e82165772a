"""What people reported of Caffe2 on several hosts: rows 16, 18, 20, 21, 23 and B4."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from mpi4py import MPI

import arrayexec as ax
from tests.parallel.parallelized import alike, batches, build, mlp, train
from tests.parallel.refused import refused

world = MPI.COMM_WORLD  # row 21: what mpirun gives is all that is needed

# rows 16, B4: statistics are those of all hosts, and the same everywhere
found, model = train("combined, uneven", [0, 1], world)
alike(found, train("combined, uneven", [0])[0], "combined")
for name, value in sorted(model.master.computed.items()):
    assert value.tobytes() == world.bcast(value.tobytes()), name

# row 18: ranks that do not run the same thing are told so
for difference in ({"devices": [0, 1][: 1 + world.rank]}, {"max_concurrent_distributed_ops": 1 + world.rank}):
    said = refused(ax.PlanMismatchError, build, "sgd", **{"devices": [0], **difference}, comm=world)
    assert next(iter(difference)) in said, said

# row 20: where a rank computes is its own affair
agreed = model.options.agreed()
assert agreed == dataclasses.replace(model.options, contexts=(ax.gpu(0), ax.gpu(1)), prefixes=("gpu_0", "gpu_1")).agreed()

# row 23: many small gradients are few messages, and the time that they take is known
model = ax.parallelize_cpu(
    ax.ModelHelper("m"), None, mlp, optimizer_builder_fun=lambda model: model.build_sgd(0.1), devices=[0], rendezvous=world
).init()
for name, array in zip(("data", "label"), batches("sgd")[0], strict=True):
    model.feed(name, array)
before = model.comm.seconds
model.run(3)
assert len(model._buckets.buckets) == 1 < len(model.trained) == 6
assert model.comm.seconds >= before
assert np.isfinite(model.loss())
