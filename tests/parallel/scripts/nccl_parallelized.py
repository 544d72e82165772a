"""Parallel models on two GPUs a rank, whose gradients a fake NCCL sums, against the same on processors."""

import sys

import arrayexec as ax
from arrayexec import comm
from arrayexec.context import asnumpy
from tests.parallel import fake_nccl
from tests.parallel.parallelized import MODELS, alike, batches

fake_nccl.install(gpus=4)
ranks = comm.init("nccl")


def train(name, make, devices):
    ax.random.seed(7)
    net, _, options = MODELS[name]
    rendezvous = {"engine": "nccl", "num_shards": ranks.size, "shard_id": ranks.rank, "comm": ranks}
    model = make(ax.ModelHelper(name), None, net, devices=devices, rendezvous=rendezvous, **options).init()
    for data, label in batches(name):
        model.feed("data", data)
        model.feed("label", label)
        model.run()
    model.check_consistency()
    return {key: asnumpy(value).copy() for key, value in {**model.master.params, **model.master.computed}.items()}


for name in sys.argv[1:]:
    wanted = train(name, ax.parallelize_cpu, [0, 1])
    fake_nccl.log.clear()
    alike(train(name, ax.parallelize_gpu, [2 * ranks.rank, 2 * ranks.rank + 1]), wanted, name)
    kinds = {(entry[0], entry[-1]) for entry in fake_nccl.log}
    assert ("allReduce", 2 * ranks.rank) in kinds, kinds
sys.stdout.write(f"rank {ranks.rank} done\n")
