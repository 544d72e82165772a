"""A gradient segment that ranks see in each other's memory, and that outlives everything else."""

import atexit
import json

import numpy

from arrayexec import comm, context
from arrayexec.errors import BackendUnavailableError
from tests.parallel.refused import refused

kept = {}
# registered before init: runs after the communicator has said good-bye
atexit.register(lambda: print(json.dumps({"last": float(kept["gradient"][0])})))

ranks = comm.init()
with context.cpu().allocator(ranks.allocate):
    gradient = context.cpu().zeros((1000,), "f4", "gradient")
    parameter = context.cpu().zeros((1000,), "f4", "parameter")
kept["gradient"] = gradient


def in_shared_memory(array: numpy.ndarray) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(text, 16) for text in line.split()[0].split("-"))
            if start <= array.ctypes.data < end:
                return "/dev/shm/" in line
    return False


assert in_shared_memory(gradient)
assert not in_shared_memory(parameter)
gradient += ranks.rank + 1
ranks.allreduce(gradient)
assert (gradient == ranks.size * (ranks.size + 1) / 2).all()
text = refused(BackendUnavailableError, ranks.shared_segment, 1 << 50)
assert all(other == text for other in ranks.allgather_object(text))
if ranks.rank == 0:
    print(json.dumps({"refused": text}))
