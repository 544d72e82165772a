"""What ranks do beside training steps: running statistics, tables, blocks, checkpoints, checks. Arguments: a folder."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from tests.conformance.test_caffe2 import MOMENTUM, load, start, steps
from tests.conformance.test_caffe2 import mlp as recorded_mlp
from tests.parallel.parallelized import batches, build, check_parts, convolutional, mlp, train
from tests.parallel.refused import refused

folder = Path(sys.argv[1])
ranks = comm.init()
shards = {"engine": "MPI", "num_shards": ranks.size, "shard_id": ranks.rank}


def sgd(model):
    return model.build_sgd(0.1, momentum=0.9, nesterov=False)


def alike(array):
    return len(set(ranks.allgather_object(np.ascontiguousarray(array).tobytes().hex()))) == 1


def near(a, b):
    return np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


# computed parameters: a copy of rank 0's first device, their mean, or each its own
data, label = batches("combined")[0]
for how in (True, "average", False):
    model = build("combined", [0, 1], shards, combine_spatial_bn=False, broadcast_computed_params=how)
    model.feed("data", data)
    model.feed("label", label)
    model.run()
    means = 0.1 * np.concatenate([model.blob("conv1", i).mean(axis=(0, 2, 3))[None] for i in (0, 1)])
    every = np.array(ranks.allgather_object(means.tolist())).reshape(2 * ranks.size, -1)
    wanted = {True: every[[0, 0]], "average": np.repeat(every.mean(axis=0)[None], 2, 0), False: means}[how]
    for i in (0, 1):
        assert near(model.blob("bn_left_rm", i), wanted[i]), how
    assert alike(model.blob("bn_left_rm")) == (how is not False)

# trainings that were recorded on two hosts
for devices in (1, 2) if ranks.size == 2 else ():
    trace = load(f"h_gloo_2shards_x{devices}dev")
    model = start(trace, recorded_mlp, **MOMENTUM, devices=range(devices), rendezvous={**shards, "engine": "GLOO"}, max_concurrent_distributed_ops=2)
    for number in steps(trace, model):
        for key, value in trace.items():
            if key.startswith("traj_"):
                assert near(model.blob(key[5:]), value[number]), (devices, key, number)
        losses = np.array([model.blob("loss", i)[0] for i in range(devices)])
        assert near(losses, trace[f"losses_shard{ranks.rank}"][number]), (devices, number)

# without combining every part has its own statistics
check_parts(1, ranks)
check_parts(2, ranks)

# statistics of a host: those of the devices of a rank
model = build("combined", [0, 1], shards, combine_spatial_bn="host", broadcast_computed_params=False)
model.feed("data", data)
model.feed("label", label)
model.run()
mine = np.concatenate([model.blob("conv1", i) for i in (0, 1)])
assert near(model.blob("bn_left_rm"), 0.1 * mine.mean(axis=(0, 2, 3)))
assert not alike(model.blob("bn_left_rm"))
assert alike(model.blob("fc_w"))

# rows of a table, with a batch that does not divide evenly
def table(model, loss_scale):
    _, loss = model.softmax_with_loss(model.fc(model.gather("idx", "emb", 9, 5), "fc", 5, 4), "label")
    return [model.scale(loss, "scaled", loss_scale)]


found = []
for given in (None, shards):
    ax.random.seed(3)
    rng = np.random.default_rng(2)
    model = ax.parallelize_cpu(ax.ModelHelper("table"), None, table, optimizer_builder_fun=sgd, devices=[0], rendezvous=given, loss_weighting="samples").init()
    for _ in range(4):
        model.feed("idx", rng.integers(0, 9, 11))
        model.feed("label", rng.integers(0, 4, 11))
        model.run()
    found.append(np.array(model.blob("emb_w")))
assert near(found[1], found[0])
assert alike(found[1])

# blocks: ranks as devices
found = []
for given, ids in ((None, range(ranks.size)), (shards, [0])):
    ax.random.seed(3)
    rng = np.random.default_rng(2)
    model = ax.parallelize_bmuf(ax.ModelHelper("blocks"), None, mlp, optimizer_builder_fun=sgd, devices=ids, rendezvous=given, cpu_device=True, nesterov=True, warmup_iterations=2).init()
    for block in range(4):
        model.feed("data", rng.normal(size=(12, 12)).astype(np.float32))
        model.feed("label", rng.integers(0, 4, 12))
        model.warmup() if block == 1 else model.run(2)
    found.append(np.array(model.blob("fc2_w")))
assert near(found[1], found[0]), np.abs(found[1] - found[0]).max()
assert alike(found[1])

# a checkpoint goes on with another number of ranks
wanted, _ = train("momentum", [0])
path = str(folder / "momentum.npz")
ax.random.seed(7)
model = build("momentum", [0], ranks)
for number, (data, label) in enumerate(batches("momentum")):
    if number == 3:
        model.save(path)
        ranks.barrier()
        model = build("momentum", [0, 1])  # every rank alone
        model.load(path)
    model.feed("data", data)
    model.feed("label", label)
    model.run()
for key, value in wanted.items():
    assert near(model.blob(key), value), key

# replicas are compared by their bits
model = build("sgd", [0], ranks)
model.check_consistency()
model.check_for_failures()
model.synchronize(5)
model.synchronize(6)
if ranks.rank == 1:
    model.blob("fc2_b")[1] += 1e-6
said = refused(ax.InconsistentReplicaError, model.check_consistency)
assert "'fc2_b' differs at step 0" in said and "rank 1 cpu_0" in said, said
model.finalize_after_checkpoint()
model.check_consistency()

# other models, other options, other orders are refused before any message that carries numbers
for wrong in (
    {"net": convolutional if ranks.rank else mlp}, {"loss_weighting": "samples" if ranks.rank else "devices"},
    {"optimizer_builder_fun": lambda model: model.build_sgd(0.1 * (1 + ranks.rank))},
):  # fmt: skip
    options = {"optimizer_builder_fun": sgd, **wrong}
    other = ax.parallelize_cpu(ax.ModelHelper("m"), None, options.pop("net", mlp), devices=[0], rendezvous=ranks, **options)
    said = refused(ax.PlanMismatchError, other.init)
    assert "rank 0" in said or "ranks" in said, said
