"""Rank 1 does not come to the second run. Argument: seconds that a run waits."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from arrayexec import comm
from tests.parallel.parallelized import batches, build

ranks = comm.init()
model = build("sgd", [0], ranks, barrier_net_timeout_sec=float(sys.argv[1]))
for data, label in batches("sgd"):
    model.feed("data", data)
    model.feed("label", label)
    if ranks.rank == 1 and model.iteration == 1:
        print("late at", time.time(), file=sys.stderr, flush=True)
        time.sleep(60)
    model.run()
