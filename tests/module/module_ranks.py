"""Train modules on ranks; rank 0 writes what came out. Arguments: path of the archive, devices a rank."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import arrayexec as ax
from tests.module import ranked

path, devices = sys.argv[1], int(sys.argv[2])
comm = ax.comm.init()
found: dict[str, Any] = {}
for name, training in ranked.TRAININGS.items():
    for key, value in training("dist_sync", comm, devices).items():
        found[f"{name}/{key}"] = value
for key, value in ranked.rounded("dist_sync", comm, devices).items():
    found[f"rounded/{key}"] = value
digests = comm.allgather_object({key: repr(np.asarray(value).tobytes()) for key, value in found.items()})
assert all(one == digests[0] for one in digests), "ranks differ"
if comm.rank == 0:
    np.savez(path, **found)
