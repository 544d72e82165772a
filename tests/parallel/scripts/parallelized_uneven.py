"""Readers of ranks end at different times. Arguments: what a run does then, devices of a rank, whether
statistics are combined."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.train.model_helper import Reader

ranks = comm.init()
uneven, devices, combine = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
rng = np.random.default_rng(0)
batches = [(rng.normal(size=(4, 12)).astype(np.float32), rng.integers(0, 4, 4)) for _ in range(6 * devices)]
MINE = {0: batches[: 3 * devices], 1: batches[: 5 * devices]}[ranks.rank]


def net(model, loss_scale):
    h = model.spatial_bn(model.fc("data", "fc0", 12, 8), "bn", 8)
    _, loss = model.softmax_with_loss(model.fc(model.tanh(h, "tanh"), "fc1", 8, 4), "label")
    return [model.scale(loss, "scaled", loss_scale)]


def train(mine, rendezvous, ids, start=None):
    ax.random.seed(1)
    reader = Reader(mine)
    model = ax.parallelize_cpu(
        ax.ModelHelper("m"), lambda model: model.read(reader, ["data", "label"]), net, rendezvous=rendezvous, devices=ids,
        optimizer_builder_fun=lambda model: model.build_sgd(0.1), uneven=uneven, loss_weighting="samples",
        broadcast_computed_params=False, combine_spatial_bn=combine,
    ).init()  # fmt: skip
    if start is not None:
        model.set_params({name: start.blob(name) for name in (*start.master.params, *start.master.computed)})
    try:
        while True:
            model.run()
    except StopIteration:
        pass
    return model


model = train(MINE, ranks, range(devices))
assert model.iteration == {"drop": 3, "join": 5}[uneven], model.iteration
model.check_consistency()
if uneven == "join":
    held = ranks.allgather_object(model.blob("bn_rm").tolist())
    assert (held[0] == held[1]) == combine  # by itself the statistics of rank 0 stop with its batches
    if devices == 1:  # three steps as two devices, then two as the one that has batches
        both = [batch for pair in zip(batches[:3], batches[:3], strict=True) for batch in pair]
        first = train(both, None, [0, 1])
        last = train(batches[3:5], None, [0], start=first)
        known = {**last.master.params, **(last.master.computed if combine else {})}
        for name, value in known.items():
            worst = np.abs(model.blob(name) - value).max()
            assert worst <= 1e-5 * max(np.abs(value).max(), 1e-2), name  # fc0_b is taken out: only rounding is left
