"""Whether replicas still hold the same numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..comm import Communicator
from ..context import asnumpy
from ..errors import InconsistentReplicaError, message

Array = Any


def check_replicas(replicas: Mapping[str, Mapping[str, Array]], comm: Communicator | None, where: str) -> None:
    """Compare arrays of one name in all ``replicas`` (device → name → array) of all ranks by their bits; collective.

    ``where`` says when in messages. Raises InconsistentReplicaError on all ranks, naming the first array that differs
    and who holds what.
    """
    label = "" if comm is None else f"rank {comm.rank} "
    held = [(label + device, {name: _digest(a) for name, a in arrays.items()}) for device, arrays in replicas.items()]
    if comm is not None:
        union = dict(sorted(item for _, hashes in held for item in hashes.items()))
        alike = all(union[name] == digest for _, hashes in held for name, digest in hashes.items())
        own = hashlib.sha256(json.dumps(union).encode()).hexdigest() if alike else label
        if len(set(comm.allgather_object(own, "digests of parameters"))) == 1 and alike:
            return
        held = [(who, hashes) for each in comm.allgather_object(held, "hashes of parameters") for who, hashes in each]
    for name in dict.fromkeys(name for _, hashes in held for name in hashes):
        rows = [(who, hashes[name]) for who, hashes in held if name in hashes]
        if len({digest for _, digest in rows}) > 1:
            fact = f"replicas must hold the same, but {name!r} differs {where}"
            raise InconsistentReplicaError(message(fact, rows, "hashes", "something wrote to one of them alone"))


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(asnumpy(array)).tobytes()).hexdigest()[:16]
