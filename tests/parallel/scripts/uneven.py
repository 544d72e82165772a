"""Rank r has COUNTS[r] batches; arguments: what is done about it, file for the parameters that come of it."""

import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.parallel.uneven import EvenBatches
from tests.parallel.networks import Described, mlp, values
from tests.parallel.uneven import COUNTS, SHAPE, batches

how, path = sys.argv[1:]
ranks = comm.init()
count = COUNTS[ranks.rank] * (how != "none at all" or ranks.rank != 1)
given = EvenBatches(batches(ranks.rank, count), ranks, how if how != "none at all" else "join")
manager = DataParallelExecutorManager(
    mlp(), ax.cpu(), Described({"data": SHAPE}, {"softmax_label": SHAPE[:1]}), comm=ranks, check_every=2
)
manager.set_params(*values(mlp(), data=SHAPE))
rule = ax.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
updater = ax.optimizer.get_updater(rule)
rows = []
for batch in given:
    manager.load_data_batch(batch)
    manager.forward(is_train=True)
    manager.backward()
    rule.rescale_grad = 1 / batch.global_rows
    manager.update(updater)
    rows.append(batch.global_rows)
manager.check_consistency()
if ranks.rank == 0:
    print(rows)
    numpy.savez(path, **manager.stores[0].parameters)
