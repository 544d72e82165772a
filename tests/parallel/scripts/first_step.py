"""The first step takes longer on one rank than later steps may."""

import time

from arrayexec import comm

ranks = comm.init()
if ranks.rank == 1:
    time.sleep(2.5)
ranks.barrier()
ranks.first_step_done()
ranks.barrier()
if ranks.rank == 0:
    print("slow first step done")
