"""Rank 1 of two has a fault of its GPU or its NCCL in the third step; the name of the fault is the argument."""

import os
import signal
import sys
import time

import numpy

import arrayexec as ax
from arrayexec import comm
from tests.parallel import fake_nccl

fake_nccl.install(gpus=2)
fault = sys.argv[1]
ranks = comm.init("nccl")
where = ax.gpu(ranks.rank)
guilty = ranks.rank == 1
if fault in ("refused_meeting", "stuck_meeting", "refused_id"):
    ranks.first_step_done()
    setattr(fake_nccl.faults, fault, guilty or fault == "refused_id")
gradient = where.zeros((1000,), numpy.float32, "gradient")
for number in range(4):
    ranks.where = f"step {number}"
    if number == 2 and guilty:
        sys.stderr.write(f"failing at {time.time()}\n")
        if fault == "exception":
            raise ValueError("bad row 17")
        if fault == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "fewer batches":
            sys.exit(0)
        if fault == "host array":
            gradient = numpy.zeros(1000, numpy.float32)
        setattr(fake_nccl.faults, fault, True)
    try:
        request = ranks.start_allreduce(gradient, "gradient bucket 0")
        if number == 2 and guilty and fault == "late_error":
            ranks.check("check_for_failures")  # sees it without waiting for anybody
            raise AssertionError("nothing was seen")
        request.wait()
    except BaseException:
        sys.stderr.write(f"rank {ranks.rank} has ended NCCL: {('abort', ranks.rank) in fake_nccl.log}\n")
        raise
    if number == 0:
        ranks.first_step_done()
ranks.barrier()
