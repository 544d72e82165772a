"""A bit of one parameter changes on rank 2 after the third step; the argument says who looks for it."""

import sys
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import arrayexec as ax
from arrayexec import comm
from arrayexec.parallel.executor_manager import DataParallelExecutorManager
from arrayexec.train.io import DataBatch
from tests.parallel.networks import Described, mlp, values

ranks = comm.init()
every = 2 if sys.argv[1] == "every second step" else 0
manager = DataParallelExecutorManager(
    mlp(), [ax.cpu(0), ax.cpu(1)], Described({"data": (4, 6)}, {"softmax_label": (4,)}), comm=ranks, check_every=every
)
manager.set_params(*values(mlp(), data=(4, 6)))
updater = ax.optimizer.get_updater(ax.optimizer.create("sgd", learning_rate=0.0))
for step in range(6):
    if step == 3 and ranks.rank == 2:
        held = manager.stores[1 if sys.argv[1] == "another device" else 0].parameters["fc2_weight"].view(numpy.uint32)
        held[0, 0] ^= 1
    manager.load_data_batch(DataBatch([numpy.ones((4, 6))], [numpy.zeros(4)]))
    manager.forward(is_train=True)
    manager.backward()
    if every or step < 3:
        manager.update(updater)
manager.check_consistency()
