"""Stores of all types on all ranks, against closed forms. Argument: a folder that all ranks see."""

import hashlib
import sys
from pathlib import Path

import numpy

import arrayexec as ax
from arrayexec.errors import CheckpointError, PlanMismatchError
from arrayexec.module.two_bit import TwoBit

ranks = ax.comm.init()
rank, size = ranks.rank, ranks.size
folder = Path(sys.argv[1])
total = size * (size + 1) // 2


def pulled(store, key, shape=(4,)):
    out = numpy.empty(shape, numpy.float32)
    store.pull(key, out)
    return out


def ones(number, length=4):
    return numpy.full(length, number, numpy.float32)


for kind in ("dist_sync", "mpi", "dist_device_sync"):
    store = ax.kv.create(kind)
    assert (store.rank, store.num_workers) == (rank, size)
    store.init(["a", "b"], [ones(rank + 5), ones(rank, 3)])
    assert (pulled(store, "a") == 5).all() and (pulled(store, "b", (3,)) == 0).all()  # those of rank 0
    for i in range(3):  # all pushes first: their sums are under way together
        store.push("a", [ones(rank + 1), ones(i)], priority=0)
        store.push("b", ones(rank + 1, 3), priority=-1)
        assert (pulled(store, "a") == total + i * size).all() and (pulled(store, "b", (3,)) == total).all()
    store.push("a", ones(1))
    store.push("a", ones(2))
    assert (pulled(store, "a") == 2 * size).all()
    store.barrier()

# 16 bits on the way
for name, eps in (("fp16", 2**-11), ("bf16", 2**-8)):
    store = ax.kv.create("dist_sync")
    store.set_gradient_compression({"type": name})
    store.init(0, ones(0, 1000))
    mine = [numpy.random.default_rng(r).standard_normal(1000).astype(numpy.float32) for r in range(size)]
    store.push(0, mine[rank])
    found = pulled(store, 0, (1000,))
    exact = numpy.sum(mine, axis=0)
    assert 0 < numpy.abs(found - exact).max() <= 2 * eps * numpy.sum(numpy.abs(mine), axis=0).max()
    assert len(set(ranks.allgather_object(hashlib.sha256(found.tobytes()).hexdigest()))) == 1

# two bits on the way: what each rank sends of the sum over its devices, as a coder of its own makes it
store = ax.kv.create("dist_sync")
store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
store.init("a", ones(0, 37))
coder, kept = TwoBit(0.5), [ones(0, 37) for _ in range(size)]
for step in range(5):
    pushed = [numpy.random.default_rng([step, r]).normal(0, 0.4, (2, 37)).astype(numpy.float32) for r in range(size)]
    store.push("a", list(pushed[rank]))
    expected, sent = ones(0, 37), ones(0, 37)
    for r in range(size):
        coder.send(pushed[r][0] + pushed[r][1], kept[r], sent)
        expected += sent
    assert (pulled(store, "a", (37,)) == expected).all()

# the same update on every rank; the state of one is that of all
store = ax.kv.create("dist_sync")
store.set_optimizer(ax.optimizer.create("adam", learning_rate=0.1))
store.init("w", ones(1))
updater, weight = ax.optimizer.get_updater(ax.optimizer.create("adam", learning_rate=0.1)), ones(1)
for step in range(4):
    store.push("w", ones((rank + 1) * (step + 1)))
    updater("w", ones(total * (step + 1)), weight)
    if step == 1:
        store.save_optimizer_states(str(folder / "s"))
        other = ax.kv.create("dist_sync")
        other.set_optimizer(ax.optimizer.create("adam", learning_rate=0.1))
        other.init("w", pulled(store, "w"))
        other.load_optimizer_states(str(folder / "s"))
        store = other
assert (pulled(store, "w") == weight).all()

# what is wrong on one rank is said on all
try:
    store.load_optimizer_states(str(folder / "none"))
except (FileNotFoundError, CheckpointError) as error:
    assert isinstance(error, FileNotFoundError) == (rank == 0)
    assert "none" in str(error)
else:
    raise AssertionError("a file that is not there was read")
try:
    store.set_optimizer(ax.optimizer.create("sgd", learning_rate=0.1 * (rank + 1)))
except PlanMismatchError as error:
    assert "'lr' differs" in str(error)
else:
    raise AssertionError("learning rates differed")
if len(sys.argv) > 2 and rank == size - 1:
    sys.exit("enough")
store.push("w", ones(1))
pulled(store, "w")
