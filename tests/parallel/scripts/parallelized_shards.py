"""Updates in parts: the bits of whole updates, states of the parts alone, checkpoints that hold all. Argument: a folder."""

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from tests.parallel.parallelized import batches, build, train, train_in_parts
from tests.parallel.refused import refused

folder = Path(sys.argv[1])
ranks = comm.init()
hosts = -(-ranks.size // int(os.environ.get("ARRAYEXEC_RANKS_PER_HOST", ranks.size)))
for name in ("sgd", "momentum", "adam", "adagrad", "shared", "combined, uneven"):
    for devices in ([0], [0, 1]):
        whole, model = train(name, devices, ranks)
        parts, other = train(name, devices, ranks, sharded_update=True)
        for key, value in whole.items():
            assert value.tobytes() == parts[key].tobytes(), (name, devices, key)
        other.check_consistency()
        bytes_whole, bytes_parts = (m.plan.bytes["cpu_0"]["state"] for m in (model, other))
        every = ranks.allgather_object(bytes_parts)
        states = sum(model.blob(key).nbytes for key in model.checkpoint_params() if key.split("/")[-1] in model.master.states)
        assert sum(every[: ranks.local_size]) == states <= bytes_whole, (name, every, bytes_whole)
        if states and ranks.local_size > 1 and ranks.size % ranks.local_size == 0:
            assert max(every) < 0.8 * states, (name, every)
        saved = model.checkpoint_params(), other.checkpoint_params()
        assert saved[0].keys() == saved[1].keys()
        for key, value in saved[0].items():
            assert np.array_equal(value, saved[1][key]), (name, key)

# gradients of several batches add up before ranks sum them
for name in ("momentum", "adam"):
    wanted, _ = train(name, [0])
    for devices, sharded in (([0], False), ([0], True), ([0, 1], True)):
        if 8 // ranks.size < len(devices):
            continue
        found, model = train_in_parts(name, devices, ranks, sharded_update=sharded, loss_weighting="samples")
        model.check_consistency()
        for key, value in wanted.items():
            assert np.abs(found[key] - value).max() <= 1e-5 * np.abs(value).max(), (name, devices, sharded, key)

# a checkpoint goes on, in parts and whole, on these ranks and on one
for name in ("momentum", "adam"):
    wanted, _ = train(name, [0], ranks)
    path = str(folder / f"{name}.npz")
    for first, then in ((True, True), (True, False), (False, True)):
        model = build(name, [0], ranks, sharded_update=first)
        for number, (data, label) in enumerate(batches(name)):
            if number == 3:
                model.save(path)
                ranks.barrier()
                model = build(name, [0, 1] if then else [0], ranks, sharded_update=then)
                model.load(path)
            model.feed("data", data)
            model.feed("label", label)
            model.run()
        for key, value in wanted.items():
            assert np.abs(model.blob(key) - value).max() <= 1e-5 * np.abs(value).max(), (name, first, then, key)
        ranks.barrier()

# numbers that travel in 16 bits: another training by roundings, the same on every rank; on one host nothing travels
plain, _ = train("sgd", [0], ranks)
for kind in ("float16", "bfloat16"):
    for sharded in (False, True):
        found, model = train("sgd", [0], ranks, transport=kind, sharded_update=sharded)
        model.check_consistency()
        away = {key: np.abs(found[key] - value).max() / np.abs(value).max() for key, value in plain.items()}
        assert max(away.values()) < 0.02, away
        assert (max(away.values()) > 0) == (hosts > 1), away

# the same of executor_manager
rows = np.random.default_rng(3).normal(size=(12, 5)).astype("f4")
symbol = ax.sym.SoftmaxOutput(ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")
gradients = []
for kind in (None, "bfloat16"):
    source = ax.io.NDArrayIter(rows, np.arange(12.0) % 3, 12, num_shards=ranks.size, shard_id=ranks.rank)
    manager = ax.executor_manager.DataParallelExecutorManager(symbol, ax.cpu(), source, comm=ranks, transport=kind)
    manager.set_params({"fc_weight": np.ones((3, 5)), "fc_bias": np.zeros(3)})
    manager.load_data_batch(next(iter(source)))
    manager.forward(is_train=True)
    manager.backward()
    gradients.append(manager.grad_arrays[0][0].copy())
away = np.abs(gradients[0] - gradients[1]).max() / np.abs(gradients[0]).max()
assert (0 < away < 0.02) if hosts > 1 else away == 0, away

# without room for shared memory every rank updates everything
def no_room(nbytes):
    raise ax.BackendUnavailableError("no room")


ranks.shared_segment = no_room
whole, model = train("momentum", [0], ranks)
found, other = train("momentum", [0, 1], ranks, sharded_update=True)
assert model.plan.bytes["cpu_0"]["state"] == other.plan.bytes["cpu_0"]["state"] > 0
for key, value in whole.items():
    assert np.abs(found[key] - value).max() <= 1e-5 * np.abs(value).max(), key
del ranks.shared_segment

for bad in ({"transport": "float16" if ranks.rank else None}, {"sharded_update": bool(ranks.rank)}):
    said = refused(ax.PlanMismatchError, build, "sgd", [0], ranks, **bad)
    assert f"'option {next(iter(bad))}' differs" in said, said
