"""A forked child may not use its parent's communicator; the parent goes on."""

import os
import sys

import numpy

from arrayexec import comm
from arrayexec.errors import CollectiveError

ranks = comm.init()
child = os.fork()
if child == 0:
    try:
        ranks.allreduce(numpy.ones(3))
    except CollectiveError as error:
        if ranks.rank == 1:
            print(error, flush=True)
        os._exit(7)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
array = numpy.ones(3)
ranks.allreduce(array)
assert (array == ranks.size).all()
sys.exit(0)
