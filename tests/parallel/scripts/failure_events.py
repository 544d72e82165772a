"""Rank 1 fails in its third step, in the way named on the command line; the others go on.

Lines are written at once (``print`` writes their ends apart), so that those of several ranks do not run into one.
"""

import os
import signal
import sys
import threading
import time

import numpy

from arrayexec import comm
from arrayexec.errors import CollectiveError


def step(ranks: comm.Communicator, number: int) -> None:
    ranks.where = f"step {number}"
    gradient = numpy.ones(1000, numpy.float32)
    ranks.start_allreduce(gradient, "gradient bucket 0").wait()
    assert (gradient == ranks.size).all()


def stop() -> None:
    sys.stderr.write(f"failing at {time.time()}\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def forget_shared_memory() -> None:
    """Unlink the memory that MPICH mapped for this very job: killed, it could not do so any more."""
    with open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            os.unlink(path)


def broken_worker() -> None:
    raise ValueError("bad row 17")


def fail(ranks: comm.Communicator, event: str) -> None:
    """What rank 1 does instead of its third step, or before it."""
    ranks.where = "step 2"
    if event == "stopped in a collective":
        threading.Timer(1, stop).start()  # by then it waits for rank 0
        return
    sys.stderr.write(f"failing at {time.time()}\n")
    if event in ("exception", "exception on all ranks"):
        raise ValueError("bad row 17")
    if event == "exception in a thread":
        threading.Thread(target=broken_worker, name="reader").start()
        time.sleep(60)
    if event == "sys.exit":
        sys.exit(3)
    if event == "SIGKILL":
        forget_shared_memory()
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    if event in ("busy", "swallowed"):
        time.sleep(60)
    if event == "fewer batches":
        ranks.where = "end of epoch"
        ranks.barrier()


def main(event: str) -> None:
    ranks = comm.init()
    guilty = ranks.rank == 1
    for number in range(2):
        step(ranks, number)
    ranks.first_step_done()
    if event == "other model":
        sys.stderr.write(f"failing at {time.time()}\n")
        ranks.agree({"data": (32, 64), "fc_weight": (64, 11 if guilty else 10)}, "model")
    if event == "other size":
        sys.stderr.write(f"failing at {time.time()}\n")
        ranks.allreduce(numpy.ones(11 if guilty else 10))
    if event == "finishes later":
        # rank 1 is done here; the others still work, but need nothing of it
        if not guilty:
            time.sleep(5)
        return
    if event == "stopped at the end":
        if guilty:
            stop()
        return
    for number in range(2, 4):
        if guilty or event == "exception on all ranks":
            fail(ranks, event)
            if event == "early return":
                return
        elif event == "stopped in a collective":
            time.sleep(2)
        if event == "swallowed":
            try:
                step(ranks, number)
            except CollectiveError:
                return
        step(ranks, number)


if __name__ == "__main__":
    main(sys.argv[1])
