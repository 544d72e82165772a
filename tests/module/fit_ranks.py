"""``fit`` on all ranks, stopped and called again. Argument: a folder that rank 0 sees."""

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import arrayexec as ax
from arrayexec.module.checkpoint import Checkpoints
from tests.module.resuming import RULES, norm_net

ranks = ax.comm.init()
folder = Path(sys.argv[1]) if ranks.rank == 0 else Path("/nobody/sees/this")
rng = np.random.default_rng(0)
images, labels = rng.normal(size=(50, 6)).astype("f4"), rng.integers(0, 3, 50).astype("f4")


class Stopped(Exception):
    pass


def train(stop=0, seed=3, **options):
    """Bits of all parameters and states; what was seen after every batch."""
    seen = []

    def watch(told):
        seen.append((told.epoch, told.nbatch, told.eval_metric.state().tolist()))
        if len(seen) == stop:
            raise Stopped

    ax.random.seed(seed)
    data, held_out = (
        ax.io.NDArrayIter(images, labels, 12, shuffle=True, num_shards=ranks.size, shard_id=ranks.rank) for _ in range(2)
    )
    module = ax.mod.Module(norm_net(), context=[ax.cpu(0), ax.cpu(1)])
    module.fit(
        data, held_out, kvstore="dist_sync", optimizer=RULES["momentum"](), initializer=ax.init.Xavier(), num_epoch=3,
        batch_end_callback=watch, **options,
    )
    held = {**module.get_params()[0], **module.get_params()[1]}
    return hashlib.sha256(b"".join(held[name].tobytes() for name in sorted(held))).hexdigest(), seen


whole, seen = train()
for stop in (4, 8):
    try:
        train(stop, checkpoint=Checkpoints(folder / str(stop), every=2))
    except Stopped:
        pass
    found, rest = train(seed=4, checkpoint=Checkpoints(folder / str(stop), every=2), resume=True)
    assert found == whole
    done = (stop - 1) // 5 * 5 + (stop - 1) % 5 // 2 * 2
    assert rest == seen[done:], (rest, seen[done:])
assert len(set(ranks.allgather_object(whole))) == 1
