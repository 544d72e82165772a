"""Ranks: collectives on arrays behind one protocol, with deadlines and agreement.

``init()`` gives the communicator of this process; it imports mpi4py only where a launcher has started
the process as one of several ranks.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading

from ..errors import RendezvousError, near_miss
from .base import Communicator, Request
from .buckets import GradientBuckets
from .local import LocalCommunicator

__all__ = ["Communicator", "GradientBuckets", "Request", "init"]

BACKENDS = ("auto", "local", "mpi", "nccl")

DEFAULT_TIMEOUT = 300.0

# What launchers tell the processes they start: MPICH and its kin, Open MPI, MVAPICH, Cray, srun.
# (SLURM_NTASKS is no sign: it is also set in a batch script, which srun has not started.)
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")

_lock = threading.Lock()
_communicator: Communicator | None = None


def init(backend: str = "auto", timeout: float | None = None) -> Communicator:
    """The communicator of this process; later calls give the same one.

    ``auto`` is ``mpi`` where the environment shows that a launcher started several ranks, else ``local``; with CuPy
    installed its arrays of GPUs go through NCCL where that can serve on all ranks, else through host memory, as
    they always do with ``mpi``. ``nccl`` is the same, but refused where NCCL cannot serve.
    ``timeout``: seconds that a rank waits in a collective before the job is ended (else the environment
    variable ARRAYEXEC_TIMEOUT, else 300; four times that until the first step is done).
    Raises RendezvousError for impossible arguments and ranks that do not find each other,
    BackendUnavailableError for a backend that cannot be used here.
    """
    global _communicator
    if backend not in BACKENDS:
        raise RendezvousError(
            f"comm.init: the backend must be one of {', '.join(BACKENDS)}, but it is {backend!r}"
            + near_miss(str(backend), BACKENDS, shown=0)
        )
    seconds = None if timeout is None else _seconds(timeout, "timeout")
    with _lock:
        if _communicator is None:
            if seconds is None:
                seconds = default_timeout()
            _communicator = _make(backend, seconds)
        elif backend not in ("auto", _communicator.name):
            raise RendezvousError(
                f"comm.init: the backend {backend!r} was asked for, but this process has a communicator "
                f"with backend {_communicator.name!r} already; the first call decides"
            )
        elif seconds is not None:
            _communicator.set_timeout(seconds)
        return _communicator


def _make(backend: str, timeout: float) -> Communicator:
    ranks = launched_ranks()
    if backend == "local" or (backend == "auto" and ranks == 1):
        return LocalCommunicator()
    if backend == "nccl" or (backend == "auto" and importlib.util.find_spec("cupy") is not None):
        from .nccl import connect_nccl

        return connect_nccl(ranks, timeout, required=backend == "nccl")
    from .mpi import MPICommunicator, connect

    return connect(ranks, timeout, MPICommunicator)


def launched_ranks() -> int:
    """How many ranks the launcher of this process says there are; 1 where there is no launcher."""
    for variable in _SIZE_VARIABLES:
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    # A PMIx launcher gives a rank without a size: ask MPI.
    return 0 if "PMIX_RANK" in os.environ else 1


def default_timeout() -> float:
    """Seconds of waits where none are given. Raises RendezvousError for an ARRAYEXEC_TIMEOUT that means nothing."""
    return _seconds(os.environ.get("ARRAYEXEC_TIMEOUT", DEFAULT_TIMEOUT), "ARRAYEXEC_TIMEOUT")


def _seconds(value: object, name: str) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RendezvousError(f"comm.init: {name} must be a number of seconds > 0, but it is {value!r}")
    return seconds
