"""A training on all ranks, whole, or saved on the way, or resumed. Arguments: see below; rank 0 writes the result."""

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

from arrayexec import comm
from arrayexec.errors import CheckpointError
from arrayexec.module.checkpoint import Checkpoints, resume, save
from tests.module.kill_saver import Counter
from tests.module.resuming import STEPS, Training

mode, face, net, rule, devices, at, folder, out = sys.argv[1:]
ranks = comm.init()
alone = ranks if ranks.size > 1 else None
training = Training(face, net, rule, int(devices), alone, seed=7 if mode != "resume" else 8, last_batch_handle="roll_over")
keeper = Checkpoints(folder, keep=2)
if mode == "whole":
    training.go_on(STEPS)
elif mode == "save":
    training.go_on(int(at) - 1)
    training.save(keeper)
    training.go_on(int(at))
    training.save(keeper)
    ranks.barrier()
    assert len(keeper.paths()) == 2
elif mode == "killed":  # rank 0, in the middle of its second file
    training.go_on(int(at))
    training.save(keeper)
    training.go_on(int(at) + 1)
    if ranks.rank == 0:
        Counter(30, kills=True).install()
    training.save(keeper)
elif mode == "refused":
    for call, error in (
        (lambda: Checkpoints("/dev/null/no").save(training.model, training.updater), NotADirectoryError),
        (lambda: resume(folder, training.model, training.updater), IsADirectoryError),
        (lambda: save("/dev/null/no", training.model, training.updater), NotADirectoryError),
        (lambda: training.model.save_checkpoint("/dev/null/no", 1), NotADirectoryError),
    ):
        try:
            call()
        except (OSError, CheckpointError) as caught:
            assert isinstance(caught, error if ranks.rank == 0 else CheckpointError), caught
            assert ranks.rank == 0 or "on rank 0: [Errno" in str(caught)
        else:
            raise AssertionError("that was no file")
else:
    training.resume(keeper)
    training.go_on(STEPS, live=training.steps < 4)
found = training.result()
own = hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found) if name not in ("metric", "next")))
assert len(set(ranks.allgather_object(own.hexdigest()))) == 1
metric = found.pop("metric")  # each rank counts its own rows
ranks.allreduce(metric)
if ranks.rank == 0:
    del found["next"]
    np.savez(out, metric=metric, **found)
