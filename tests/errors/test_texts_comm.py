"""Every refusal of communicators and gradient buckets: its whole text, with ranks and an MPI that are made up.

The texts stand in ``texts_comm.txt``; how they are recorded: ``recorder.py``. That real ranks get to these places, and
which of them speaks then: ``tests/parallel``.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from arrayexec import comm, threads
from arrayexec.comm import GradientBuckets, guard, init
from arrayexec.comm.local import LocalCommunicator
from arrayexec.comm.mpi import MPICommunicator
from arrayexec.errors import CollectiveError
from tests.errors.recorder import PACKAGE, Recorder, checks_of
from tests.parallel.test_comm import LAUNCHERS, Agreeing, Letters

RECORDER = Recorder(
    Path(__file__).parent / "texts_comm.txt",
    [*sorted({*(PACKAGE / "comm").glob("*.py")} - {PACKAGE / "comm" / "nccl.py"}), PACKAGE / "threads.py"],
)
case, cases = RECORDER.case, RECORDER.cases

LOCAL = LocalCommunicator()


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


# --- init ------------------------------------------------------------------------------------------------------------


def alone(*arguments: Any, mpi: Any = None, before: str = "", **environment: str) -> Callable[[], Any]:
    """A case: ``init`` in a process with this environment and no communicator; ``mpi``: what mpi4py gives there."""
    module = ModuleType("mpi4py")
    module.MPI = mpi  # type: ignore[attr-defined]

    def call() -> None:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.dict(sys.modules, mpi4py=module if mpi else None),
            mock.patch.object(comm, "_communicator", None),
        ):
            for variable in {*LAUNCHERS, "ARRAYEXEC_TIMEOUT"} - set(environment):
                os.environ.pop(variable, None)
            if before:
                init(before)
            init(*arguments)

    return call


LONELY = SimpleNamespace(
    COMM_WORLD=SimpleNamespace(Get_size=lambda: 1), Get_library_version=lambda: "Open MPI v5.0.6, package …\nmore"
)

cases(
    init_backend=alone("mpl"),
    init_nccl=alone("nccl"),
    init_timeout=alone("auto", 0),
    init_timeout_of_environment=alone(ARRAYEXEC_TIMEOUT="5 min"),
    init_again=alone("mpi", before="local"),
    init_no_mpi=alone(PMI_SIZE="2"),
    init_other_launcher=alone(PMI_SIZE="2", mpi=LONELY),
)

# --- arrays, objects and agreement -----------------------------------------------------------------------------------

cases(
    sum_of_texts=lambda: LOCAL.allreduce(np.array(["a"])),
    sum_read_only=lambda: LOCAL.start_allreduce(np.broadcast_to(1.0, (2,)), "gradient bucket 0"),
    broadcast_root=lambda: LOCAL.broadcast(zeros(2), 1),
    gather_a_set=lambda: LOCAL.allgather_object({1}),
    agree_value=lambda: Agreeing({"fc_weight": "(64, 63)"}).agree({"fc_weight": "(64, 64)"}, "model"),
    agree_key=lambda: Agreeing({"fc_wieght": "(64,)"}).agree({"fc_weight": "(64,)"}, "model"),
    agree_order=lambda: Agreeing({"b": "1", "a": "1"}).agree({"a": "1", "b": "1"}, "model"),
)

cases(threads_none=lambda: threads.set_num_threads(0))

# --- gradient buckets ------------------------------------------------------------------------------------------------


def written_twice() -> None:
    buckets = GradientBuckets(LOCAL, {"fc_weight": zeros(4), "fc_bias": zeros(4)})
    buckets.ready("fc_weight")
    buckets.ready("fc_weight")


cases(
    buckets_in_flight=lambda: GradientBuckets(LOCAL, {}, max_in_flight=0),
    buckets_transport=lambda: GradientBuckets(LOCAL, {}, transport="int8"),
    buckets_columns=lambda: GradientBuckets(LOCAL, {"fc_weight": np.zeros((3, 4), order="F")}),
    buckets_twice=written_twice,
    buckets_name=lambda: GradientBuckets(LOCAL, {"fc_weight": zeros(4)}).ready("fc_wieght"),
)

# --- ranks that wait -------------------------------------------------------------------------------------------------


def watcher(link: Any) -> guard.Guard:
    """The guard of a rank that has done one collective."""
    made = guard.Guard(link, lambda: "step 4")
    made.completed(made.enter("allreduce", "step 3"))
    return made


def waits(*heard: tuple[Any, ...], size: int = 3, waited: float = 1.0, what: str = "barrier") -> Callable[[], None]:
    """A case: rank 1 waits in its second collective and hears these letters."""

    def call() -> None:
        letters = Letters(size)
        watching = watcher(letters)
        operation = watching.enter(what, "step 4")
        for letter in heard:
            letters.hear(*letter)
        with mock.patch.object(guard.time, "monotonic", side_effect=itertools.count(1000.0, 0.1)):
            for _ in range(60):
                watching.watch(operation, waited, 5)

    return call


def forked() -> None:
    watching = watcher(Letters(2))
    watching._in_child()
    watching.check("allreduce")


def gone(state: str) -> Callable[[], None]:
    """A case: rank 1 looks about itself after a barrier and finds that rank 0 will not come back."""

    def call() -> None:
        letters = Letters(3)
        watching = watcher(letters)
        watching.enter("barrier", "step 1")
        letters.hear(0, state, 0)
        watching.look("check_for_failures")

    return call


def after_a_failure() -> None:
    watching = watcher(Letters(2))
    with pytest.raises(CollectiveError):
        watching.watch(watching.enter("barrier", "step 4"), 9, 5)
    watching.check("allreduce")


cases(
    rank_left=waits((0, "left", 1)),
    ranks_left=waits((0, "left", 0, ""), (2, "left", 1)),
    rank_elsewhere=waits((0, "waiting", 2, "allreduce of gradient bucket 0")),
    rank_late=waits((2, "waiting", 2), waited=9),
    ranks_late=waits(waited=9, what="allreduce", size=4),
    all_there=waits((0, "waiting", 2), (2, "waiting", 2), waited=9),
    seen_to_have_raised=gone("raised"),
    seen_to_have_left=gone("left"),
    forked_child=forked,
    after_a_failure=after_a_failure,
)

# --- ranks of MPI ----------------------------------------------------------------------------------------------------


def ranks(**members: Any) -> MPICommunicator:
    """Rank 0 of two under an MPI that knows only its exception."""
    made = object.__new__(MPICommunicator)
    link = SimpleNamespace(rank=0, size=2, collect=list)
    vars(made).update(
        rank=0, size=2, local_size=2, _guard=guard.Guard(link, str), _mpi=SimpleNamespace(Exception=OSError)
    )
    vars(made).update(members)
    return made


def refused_by_mpi() -> None:
    handle = mock.Mock(Test=mock.Mock(side_effect=OSError("MPI_ERR_TRUNCATE: message truncated")))
    ranks().tested(handle, guard.Operation(3, "allreduce of gradient bucket 1", "step 2"))


cases(
    mpi_root=lambda: ranks().broadcast(zeros(2), 2),
    mpi_room=lambda: ranks(
        _hosts=["a", "a"], allgather_object=lambda obj: [[64, 999], [64, 100]]
    ).shared_segment(8),
    mpi_fails=refused_by_mpi,
)

# --- the tests -------------------------------------------------------------------------------------------------------


(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
