"""Two GPUs a rank: a sum over the group, one over the ranks, a copy back; the order of all three is that of streams."""

import sys

import numpy

import arrayexec as ax
from arrayexec import comm
from arrayexec.comm.nccl import DeviceGroup
from arrayexec.context import asnumpy
from tests.parallel import fake_nccl

fake_nccl.install(gpus=4)
ranks = comm.init("nccl")
contexts = [ax.gpu(2 * ranks.rank + i) for i in range(2)]
group = DeviceGroup(contexts)
arrays = [where.zeros((1000,), numpy.float32, "gradient") for where in contexts]
for step in range(5):
    for i, (where, array) in enumerate(zip(contexts, arrays, strict=True)):
        with where.enter():
            array[...] = float(10 * (2 * ranks.rank + i) + step)
        where.device.log.clear()
    group.allreduce(arrays)
    request = ranks.start_allreduce(arrays[0], "gradient bucket 0")
    assert [where.device.count("to_host") for where in contexts] == [0, 0]
    request.wait()
    group.broadcast(arrays)
    for where, array in zip(contexts, arrays, strict=True):
        with where.enter():
            array += 1
        devices = 2 * ranks.size
        assert (asnumpy(array) == 10 * devices * (devices - 1) // 2 + step * devices + 1).all()
numbers = [entry[3] for entry in fake_nccl.log if entry[0] in ("allReduce", "broadcast")]
first, second = (where.device_id for where in contexts)
assert numbers == [first, second, first, first, second] * 5
sys.stdout.write(f"rank {ranks.rank} done\n")
