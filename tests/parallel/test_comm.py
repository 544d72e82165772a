"""Communicators, cuts and the guard without any MPI."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy
import pytest

import arrayexec.comm
from arrayexec.comm import GradientBuckets, Request, guard, init, launched_ranks
from arrayexec.comm.base import ranges
from arrayexec.comm.buckets import cut
from arrayexec.comm.local import LocalCommunicator
from arrayexec.errors import (
    BackendUnavailableError,
    BarrierTimeoutError,
    CollectiveError,
    CollectiveTimeoutError,
    PlanMismatchError,
    RendezvousError,
    UnknownNameError,
)
from tests.parallel.refused import refused

LAUNCHERS = (
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "PALS_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "PMIX_RANK",
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that no launcher started and that has no communicator yet."""
    for variable in (*LAUNCHERS, "ARRAYEXEC_TIMEOUT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(arrayexec.comm, "_communicator", None)
    return monkeypatch


# init


def test_a_process_alone_gets_the_local_communicator_and_no_mpi(alone: pytest.MonkeyPatch) -> None:
    alone.setitem(sys.modules, "mpi4py", None)  # an import of it would raise
    ranks = init()
    assert (ranks.name, ranks.rank, ranks.size, ranks.local_rank, ranks.local_size) == ("local", 0, 1, 0, 1)
    assert init() is ranks
    assert init("local", timeout=7) is ranks


@pytest.mark.parametrize(
    ("variable", "value", "ranks"),
    [
        ("PMI_SIZE", "4", 4),
        ("PMI_SIZE", "1", 1),
        ("OMPI_COMM_WORLD_SIZE", "2", 2),
        ("SLURM_STEP_NUM_TASKS", "8", 8),
        ("PMIX_RANK", "0", 0),
        ("SLURM_NTASKS", "8", 1),
    ],
)
def test_the_environment_tells_how_many_ranks_there_are(
    alone: pytest.MonkeyPatch, variable: str, value: str, ranks: int
) -> None:
    alone.setenv(variable, value)
    assert launched_ranks() == ranks


def test_ranks_without_mpi4py_are_told_what_to_install(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("PMI_SIZE", "2")
    alone.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BackendUnavailableError) as caught:
        init()
    assert str(caught.value) == (
        "comm.init: MPI cannot be used: ModuleNotFoundError: import of mpi4py halted; None in sys.modules\n"
        '  install: pip install "arrayexec[mpi]"; on a cluster pip install mpi4py beside its own MPI'
    )


def test_impossible_arguments_of_init(alone: pytest.MonkeyPatch) -> None:
    assert refused(RendezvousError, lambda: init("mpl")) == (
        "comm.init: the backend must be one of auto, local, mpi, nccl, but it is 'mpl'; did you mean 'mpi'?"
    )
    assert refused(RendezvousError, lambda: init("sockets")) == (
        "comm.init: the backend must be one of auto, local, mpi, nccl, but it is 'sockets'"
    )
    for value in (0, -1, float("inf"), float("nan"), "soon", None):
        if value is not None:
            text = refused(RendezvousError, lambda value=value: init(timeout=value))
            assert text == f"comm.init: timeout must be a number of seconds > 0, but it is {value!r}"
    alone.setenv("ARRAYEXEC_TIMEOUT", "5 min")
    assert refused(RendezvousError, init) == (
        "comm.init: ARRAYEXEC_TIMEOUT must be a number of seconds > 0, but it is '5 min'"
    )
    alone.delenv("ARRAYEXEC_TIMEOUT")
    init()
    assert refused(RendezvousError, lambda: init("mpi")) == (
        "comm.init: the backend 'mpi' was asked for, but this process has a communicator "
        "with backend 'local' already; the first call decides"
    )


# the local communicator


def test_one_rank_keeps_its_arrays_and_refuses_what_ranks_refuse() -> None:
    ranks = LocalCommunicator()
    array = numpy.arange(6.0)
    ranks.allreduce(array)
    ranks.broadcast(array)
    ranks.barrier()
    request = ranks.start_allreduce(array, "gradient bucket 0")
    assert request.test()
    request.wait()
    assert (array == numpy.arange(6.0)).all()
    assert ranks.allgather_object({"a": (1, None)}) == [{"a": [1, None]}]
    ranks.agree({"a": 1}, "model")
    segment = ranks.allocate(100, "gradient")
    assert segment is not None
    assert (segment.nbytes, segment.ctypes.data % 64, segment.any()) == (100, 0, False)
    assert ranks.allocate(100, "arena") is None
    assert refused(CollectiveError, lambda: ranks.broadcast(array, 1)) == (
        "broadcast: the root must be a rank, 0 alone here, but it is 1"
    )
    assert refused(CollectiveError, lambda: ranks.allreduce(numpy.array(["a"]))) == (
        "allreduce: the array must hold numbers, but its type is <U1"
    )
    assert refused(CollectiveError, lambda: ranks.allgather_object({1})) == (
        "allgather_object: only what JSON can carry can be gathered: Object of type set is not JSON serializable"
    )


# agreement, on ranks that are made up


class Agreeing(LocalCommunicator):
    """Rank 0 of several whose descriptions are given."""

    def __init__(self, *descriptions: Mapping[str, object]) -> None:
        super().__init__()
        self._others = [[[key, str(value)] for key, value in d.items()] for d in descriptions]

    def allgather_object(self, obj: object, what: str = "") -> list[Any]:
        return [str(obj), "another digest"] if isinstance(obj, str) else [obj, *self._others]


@pytest.mark.parametrize(
    ("mine", "others", "text"),
    [
        (
            {"data": "(32, 64)", "lr": "0.1"},
            [{"data": "(32, 64)", "lr": "0.2"}, {"data": "(32, 64)", "lr": "0.1"}],
            "plan: the ranks must hold the same, but 'lr' differs\n  found:\n    ranks 0, 2  0.1\n    rank 1      0.2\n",
        ),
        (
            {"a": "1", "b": "2"},
            [{"a": "1", "x": "9", "b": "2"}],
            "plan: the ranks must hold the same, but 'x' differs\n  found:\n    rank 0  not there\n    rank 1  9\n",
        ),
        (
            {"a": "1", "b": "2"},
            [{"a": "1"}],
            "plan: the ranks must hold the same, but 'b' differs\n  found:\n    rank 0  2\n    rank 1  not there\n",
        ),
        (
            {"a": "1", "b": "2"},
            [{"b": "2", "a": "1"}],
            "plan: the ranks must hold the same entries in one order, but entry 0 differs\n"
            "  found:\n"
            "    rank 0  a\n"
            "    rank 1  b\n",
        ),
    ],
)
def test_disagreement_names_the_first_difference(
    mine: dict[str, object], others: list[dict[str, object]], text: str
) -> None:
    found = refused(PlanMismatchError, lambda: Agreeing(*others).agree(mine, "plan"))
    assert found == text + "  every rank must run the same program with the same model and options"


def test_ranks_are_listed_in_ranges() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


# where gradients are cut


def test_few_gradients_are_one_bucket() -> None:
    """Up to 256 KiB there is nothing that a meeting of the ranks could hide."""
    for sizes, wanted in ([65_536] * 4, [1]), ([65_536] * 5, [2]), ([100], [1]), ([1 << 20, 1 << 20], [4]):
        assert [len(cut([(f"g{i}", size, "f4") for i, size in enumerate(sizes)]))] == wanted


def test_small_cuts_are_the_expected_ones() -> None:
    buckets = cut([("a", 400, "f4"), ("b", 100, "f4"), ("c", 160, "f8"), ("d", 364, "f4")], max_bytes=256)
    # a goes in two, b has no room beside its end, c is of another type
    assert [[(p.name, p.start, p.stop) for p in bucket.pieces] for bucket in buckets] == [
        [("a", 0, 64)],
        [("a", 64, 100), ("b", 0, 25)],
        [("c", 0, 20)],
        [("d", 0, 64)],
        [("d", 64, 91)],
    ]
    assert [bucket.nbytes for bucket in buckets] == [256, 244, 160, 256, 108]


@pytest.mark.parametrize("seed", range(40))
def test_cuts_keep_order_and_limits(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    gradients = []
    for i in range(random.integers(1, 30)):
        dtype = numpy.dtype(random.choice(["f4", "f4", "f4", "f8", "f2"]))
        gradients.append((f"g{i}", int(random.integers(1, 10 ** random.integers(1, 7))) * dtype.itemsize, dtype))
    buckets = cut(gradients)
    assert buckets == cut(gradients)
    total = sum(nbytes for _, nbytes, _ in gradients)
    assert all(bucket.nbytes <= min(8 << 20, max(256 << 10, total / 4)) for bucket in buckets)
    pieces = [(p.name, p.start, p.stop, bucket.dtype) for bucket in buckets for p in bucket.pieces]
    expected = iter(gradients)
    name, position, size, dtype = "", 0, 0, numpy.dtype("f4")
    for piece in pieces:  # every element once, in order
        if position == size:
            name, nbytes, dtype = next(expected)
            position, size = 0, nbytes // dtype.itemsize
        assert (piece[0], piece[1], piece[3]) == (name, position, dtype)
        position = piece[2]
    assert position == size
    assert next(expected, None) is None


# gradient buckets, on a rank whose twin holds the same gradients


class Twin(LocalCommunicator):
    """Rank 0 of two that hold equal arrays; requests complete when they are waited for."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.flying = 0
        self.most = 0
        self.sums: list[numpy.ndarray] = []

    def start_allreduce(self, array: numpy.ndarray, what: str) -> Request:
        assert isinstance(array, numpy.ndarray)
        assert array.ndim == 1
        if what == "used gradients":
            return super().start_allreduce(array, what)
        assert what == f"gradient bucket {len(self.sums)}"
        self.sums.append(array)
        self.flying += 1
        self.most = max(self.most, self.flying)
        return TwinRequest(self, array)


class TwinRequest:
    def __init__(self, owner: Twin, array: numpy.ndarray) -> None:
        self._owner, self._array = owner, array

    def test(self) -> bool:
        return False

    def wait(self) -> None:
        self._array *= 2
        self._owner.flying -= 1


def gradients_in(segment: numpy.ndarray) -> dict[str, numpy.ndarray]:
    return {f"g{i}": segment[i * 64 : (i + 1) * 64].reshape(8, 8) for i in range(len(segment) // 64)}


def test_buckets_start_in_order_whatever_is_ready_first() -> None:
    segment = numpy.ones(64 * 8, "f4")
    twin = Twin()
    buckets = GradientBuckets(twin, gradients_in(segment), [segment], max_in_flight=3, max_bytes=512)
    assert [[p.name for p in bucket.pieces] for bucket in buckets.buckets] == [
        ["g0", "g1"],
        ["g2", "g3"],
        ["g4", "g5"],
        ["g6", "g7"],
    ]
    started = []
    for name in ("g3", "g2", "g1", "g0", "g6", "g4", "g5", "g7"):
        buckets.ready(name)
        started.append(sum(what == "start" for _, what, _ in buckets.events))
    assert started == [0, 0, 0, 2, 2, 2, 3, 4]
    buckets.finish()
    assert (segment == 2).all()
    assert twin.most == 3
    assert all(array.base is segment for array in twin.sums), "gradients in a segment are not copied"
    assert [(what, i) for _, what, i in buckets.events] == [
        ("start", 0),
        ("start", 1),
        ("start", 2),
        ("done", 0),
        ("start", 3),
        ("done", 1),
        ("done", 2),
        ("done", 3),
    ]
    times = [at for at, _, _ in buckets.events]
    assert times == sorted(times)


def test_a_gradient_is_ready_once_a_step() -> None:
    segment = numpy.ones(64 * 8, "f4")
    buckets = GradientBuckets(Twin(), gradients_in(segment), [segment])
    buckets.ready("g1")
    assert refused(CollectiveError, lambda: buckets.ready("g1")) == (
        "GradientBuckets: gradient 'g1' was written twice in one step, but gradient bucket 0 may be on its way\n"
        "  call finish() after every backward, or sum with grad_req='add' and reduce once"
    )
    assert refused(UnknownNameError, lambda: buckets.ready("g11")) == (
        "GradientBuckets: no gradient is called 'g11'; did you mean 'g1'?"
    )
    assert refused(UnknownNameError, lambda: buckets.finish(used=["h"])) == (
        "GradientBuckets: no gradient is called 'h'; there are: g0, g1, g2, g3, g4, g5, g6, g7"
    )


def test_what_nobody_wrote_counts_as_zeros() -> None:
    segment = numpy.ones(64 * 8, "f4")
    buckets = GradientBuckets(LocalCommunicator(), gradients_in(segment), [segment])
    buckets.ready("g0")
    assert buckets.finish() == ["g0"]
    assert (segment[:64] == 1).all()
    assert not segment[64:].any()
    segment[...] = 1
    assert buckets.finish(used=["g7"]) == ["g7"]
    assert (segment[-64:] == 1).all()
    assert not segment[:-64].any()


def test_arrays_of_the_user_are_packed_when_small_and_summed_in_place_when_large() -> None:
    shapes = {"w0": (300, 300), "b0": (10,), "b1": (11,), "b2": (12,), "w1": (200, 200), "b3": (3,)}
    gradients = {name: numpy.full(shape, i + 1, "f4") for i, (name, shape) in enumerate(shapes.items())}
    twin = Twin()
    buckets = GradientBuckets(twin, gradients, max_bytes=130_000)
    for name in gradients:
        buckets.ready(name)
    buckets.finish()
    for i, array in enumerate(gradients.values()):
        assert (array == 2 * (i + 1)).all()
    sent = [[p.name for p in bucket.pieces] for bucket in buckets.buckets]
    assert sent == [["w0"], ["w0"], ["w0"], ["b0", "b1", "b2"], ["w1"], ["w1"], ["b3"]]
    inside = [any(numpy.shares_memory(array, own) for own in gradients.values()) for array in twin.sums]
    assert inside == [True, True, True, False, True, True, False]


def test_a_segment_in_another_order_than_backward_is_still_summed_right() -> None:
    segment = numpy.arange(64 * 8, dtype="f4")
    expected = 2 * segment
    gradients = dict(reversed(gradients_in(segment).items()))
    twin = Twin()
    buckets = GradientBuckets(twin, gradients, [segment])
    buckets.finish(used=list(gradients))
    assert (segment == expected).all()
    assert len(buckets.buckets) == 8


def test_gradients_of_a_device_travel_through_the_host() -> None:
    from arrayexec.context import asnumpy, copyto
    from tests.strict_device import strict

    device = strict(0)
    gradients = {name: device.zeros(shape, "f4", "gradient") for name, shape in (("w", (50, 50)), ("b", (7,)))}
    buckets = GradientBuckets(Twin(), gradients)
    copyto(gradients["w"], numpy.arange(2500, dtype="f4").reshape(50, 50))
    buckets.ready("w")
    buckets.finish()
    assert (asnumpy(gradients["w"]) == 2 * numpy.arange(2500).reshape(50, 50)).all()
    assert not asnumpy(gradients["b"]).any()


def test_gradients_that_cannot_be_summed_are_refused() -> None:
    fortran = numpy.zeros((3, 4), order="F")
    assert refused(CollectiveError, lambda: GradientBuckets(LocalCommunicator(), {"w": fortran})) == (
        "GradientBuckets: gradient 'w' must be C-contiguous to be summed over ranks, "
        "but it is (3, 4) with strides (8, 24)"
    )
    assert refused(CollectiveError, lambda: GradientBuckets(LocalCommunicator(), {}, max_in_flight=0)) == (
        "GradientBuckets: max_in_flight must be at least 1, but it is 0"
    )
    other = Agreeing({"gradient w": "float32 (3, 5)", "bucket 0": "w[0:15]"})
    text = refused(PlanMismatchError, lambda: GradientBuckets(other, {"w": numpy.zeros((3, 4), "f4")}))
    assert text.startswith(
        "gradient buckets: the ranks must hold the same, but 'gradient w' differs\n"
        "  found:\n"
        "    rank 0  float32 (3, 4)\n"
        "    rank 1  float32 (3, 5)\n"
    )


# the guard, on letters that are made up


class Letters:
    """A link whose other ranks say what the test wants."""

    rank = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: list[tuple[int, str, int]] = []
        self.inbox: list[tuple[int, dict[str, Any]]] = []

    def post(self, rank: int, letter: Mapping[str, Any]) -> None:
        self.sent.append((rank, letter["state"], letter["number"]))

    def collect(self) -> list[tuple[int, dict[str, Any]]]:
        letters, self.inbox = self.inbox, []
        return letters

    def hear(self, rank: int, state: str, number: int, what: str = "barrier") -> None:
        letter = {"state": state, "number": number, "started": number, "what": what, "text": what}
        self.inbox.append((rank, letter))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes when the test says so."""
    now = [1000.0]
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])
    return now


def test_a_rank_speaks_only_when_it_has_waited(clock: list[float]) -> None:
    letters = Letters(3)
    watcher = guard.Guard(letters, lambda: "")
    operation = watcher.enter("barrier", "")
    watcher.watch(operation, 0.3, 5)
    assert letters.sent == []
    watcher.watch(operation, 0.6, 5)
    watcher.watch(operation, 0.7, 5)
    assert letters.sent == [(0, "waiting", 1), (2, "waiting", 1)]
    clock[0] += 0.6
    watcher.watch(operation, 1.3, 5)
    assert len(letters.sent) == 4
    # asked for, it answers at once
    second = watcher.enter("barrier", "")
    letters.hear(0, "waiting", 2)
    watcher.watch(second, 0.0, 5)
    assert letters.sent[4:] == [(0, "waiting", 2), (2, "waiting", 2)]


def failing(watcher: guard.Guard, operation: guard.Operation, clock: list[float], waited: float) -> str:
    """The message of the failure that one more look finds, after time to gather letters."""
    with pytest.raises(CollectiveError) as caught:
        for _ in range(100):
            watcher.watch(operation, waited, 5)
            clock[0] += 0.1
    return f"{type(caught.value).__name__}: {caught.value}"


def test_several_ranks_that_left_are_named_together(clock: list[float]) -> None:
    letters = Letters(6)
    watcher = guard.Guard(letters, lambda: "")
    operation = watcher.enter("allreduce of gradient bucket 2", "step 7")
    letters.hear(3, "left", 0, "")
    letters.hear(4, "left", 0, "")
    letters.hear(0, "waiting", 1, "allreduce of gradient bucket 2")
    assert failing(watcher, operation, clock, 1.0) == (
        "PeerFailure: ranks 3-4 left (exit) while rank 1 waits for them in allreduce of gradient bucket 2 (step 7)\n"
        "  collectives:\n"
        "    rank 3 left after  no collective\n"
        "    rank 4 left after  no collective\n"
        "    rank 1 waits in    allreduce of gradient bucket 2 (step 7)\n"
        "  every rank must run the same number of steps; what ends early must end on all ranks"
    )
    assert clock[0] - 1000 >= 1.0, "rank 0 waits too and speaks first"
    assert refused(CollectiveError, lambda: watcher.enter("barrier", "")) == (
        "barrier: no collective can follow one that failed: "
        "ranks 3-4 left (exit) while rank 1 waits for them in allreduce of gradient bucket 2 (step 7)"
    )


def test_a_rank_that_left_after_its_part_is_no_failure(clock: list[float]) -> None:
    letters = Letters(2)
    watcher = guard.Guard(letters, lambda: "")
    operation = watcher.enter("allreduce", "")
    letters.hear(0, "left", 1, "allreduce")
    for _ in range(20):
        watcher.watch(operation, 2.0, 5)
        clock[0] += 0.1


@pytest.mark.parametrize(("what", "error"), [("barrier", BarrierTimeoutError), ("allreduce", CollectiveTimeoutError)])
def test_the_deadline_names_who_is_missing(clock: list[float], what: str, error: type[Exception]) -> None:
    letters = Letters(4)
    watcher = guard.Guard(letters, lambda: "")
    watcher.completed(watcher.enter("allreduce", "step 3"))
    operation = watcher.enter(what, "step 4")
    letters.hear(2, "waiting", 2, what)
    clock[0] += 0.1
    assert failing(watcher, operation, clock, 5.1) == (
        f"{error.__name__}: ranks 0, 3 are missing in {what} (step 4): rank 1 has waited for 5 s\n"
        "  collective number 2:\n"
        "    waiting              ranks 1-2\n"
        "    last seen of rank 0  in allreduce (step 3), which is complete\n"
        "    last seen of rank 3  in allreduce (step 3), which is complete\n"
        "  see what those ranks do (stopped, swapping, a slow batch); "
        "a longer deadline: comm.init(timeout=seconds) or ARRAYEXEC_TIMEOUT"
    )


def test_a_collective_that_all_have_come_to_and_that_does_not_end(clock: list[float]) -> None:
    letters = Letters(2)
    watcher = guard.Guard(letters, lambda: "")
    operation = watcher.enter("barrier", "")
    letters.hear(0, "waiting", 1)
    clock[0] += 0.1
    text = failing(watcher, operation, clock, 6.5)
    assert text.startswith("BarrierTimeoutError: barrier did not complete in 5 s, though all ranks have come to it\n")


def test_a_rank_that_was_stopped_itself_does_not_count_that_time(clock: list[float]) -> None:
    letters = Letters(2)
    watcher = guard.Guard(letters, lambda: "")
    operation = watcher.enter("barrier", "")
    watcher.watch(operation, 1.0, 5)
    clock[0] += 60  # nobody called watch in between
    watcher.watch(operation, 61.0, 5)
    clock[0] += 2
    watcher.watch(operation, 64.9, 5)
    with pytest.raises(BarrierTimeoutError):
        watcher.watch(operation, 65.1, 5)


def test_of_ranks_that_raise_the_first_one_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(guard.time, "sleep", slept.append)
    letters = Letters(3)
    watcher = guard.Guard(letters, lambda: "")
    watcher.enter("barrier", "")
    watcher._let_others_speak()
    assert letters.sent == [(0, "raised", 1), (2, "raised", 1)]
    letters.hear(2, "raised", 1)
    watcher._let_others_speak()
    assert len(letters.sent) == 2
    assert slept == [0.2, 0.2, 2.0]  # by its number; then that of the rank that speaks
