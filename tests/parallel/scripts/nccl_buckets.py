"""Gradient buckets on GPUs that a fake NCCL joins: in place, while the device computes; and a training on them."""

import json
import sys

import numpy

import arrayexec as ax
from arrayexec import comm
from arrayexec.comm import GradientBuckets
from arrayexec.context import asnumpy
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train.io import NDArrayIter
from arrayexec.train.optimizer import create, get_updater
from tests.parallel import fake_nccl
from tests.parallel.networks import convolutional, values

fake_nccl.install(gpus=2)
comm.buckets.LEAST_BYTES = 64  # small gradients are cut, too, so that some are under way while others are written
ranks = comm.init(sys.argv[1])
where = ax.gpu(ranks.rank)
segment = where.zeros((64 * 8,), numpy.float32, "gradient")
gradients = {f"g{i}": segment[i * 64 : (i + 1) * 64].reshape(8, 8) for i in range(8)}
large = where.zeros((40_000,), numpy.float32, "gradient")
small = where.zeros((6,), numpy.float32, "gradient")
buckets = GradientBuckets(ranks, {**gradients, "large": large, "small": small}, [segment])
fake_nccl.log.clear()
for step in range(3):
    where.device.log.clear()
    for i, (name, gradient) in enumerate({**gradients, "large": large}.items()):
        with where.enter():
            gradient[...] = float(i + ranks.rank + step)
        buckets.ready(name)
    assert where.device.count("to_host") == 0, "the host has waited in backward"
    with where.enter():
        small[...] = 1.0
    buckets.ready("small")
    buckets.finish()
    total = sum(range(ranks.size))
    for i, gradient in enumerate((*gradients.values(), large)):
        assert (asnumpy(gradient) == (i + step) * ranks.size + total).all()
    assert (asnumpy(small) == ranks.size).all()
calls = [entry[:3] for entry in fake_nccl.log if entry[0] == "allReduce"]
assert sum(count for _, count, _ in calls) == 3 * (512 + 40_000)

# the same training as on the host
weights: dict[str, dict[str, numpy.ndarray]] = {}
for context in (where, ax.cpu()):
    symbol = convolutional()
    rows = numpy.random.default_rng(5).standard_normal((24, 1, 8, 8)).astype(numpy.float32)
    iterator = NDArrayIter(rows, numpy.arange(24) % 3, 12, num_shards=ranks.size, shard_id=ranks.rank)
    manager = DataParallelExecutorManager(symbol, context, iterator, comm=ranks)
    manager.set_params(*values(symbol, data=(12, 1, 8, 8)))
    updater = get_updater(create("sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1 / 12))
    for _ in range(2):
        iterator.reset()
        for batch in iterator:
            manager.load_data_batch(batch)
            manager.forward(is_train=True)
            manager.backward()
            manager.update(updater)
    manager.copy_to(weights.setdefault(context.device_type, {}), {})
for name, value in weights["cpu"].items():
    assert numpy.abs(weights["gpu"][name] - value).max() <= 2e-5 * numpy.abs(value).max(), name
if ranks.rank == 0:
    print(json.dumps({"calls": len(calls) // 3, "buckets": len(buckets.buckets)}))
