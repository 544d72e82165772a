"""What a communicator is: collectives on arrays among ranks, each with a deadline.

Every rank must start the same collectives in the same order, from one thread at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy

from .. import context
from ..errors import BackendUnavailableError, CollectiveError, PlanMismatchError, message

Array = Any
"""An array of any context: numpy.ndarray, cupy.ndarray, …"""

FIRST_STEP_FACTOR = 4


class Request(Protocol):
    """A collective that was started."""

    def test(self) -> bool:
        """Whether it is complete; never waits."""

    def wait(self) -> None:
        """Return when it is complete; raises CollectiveTimeoutError or PeerFailure where it never will be."""


class Communicator(ABC):
    """The ranks of a job as one of them sees them. Made by `arrayexec.comm.init`."""

    name: str
    rank: int
    size: int
    local_rank: int
    """Number of this rank among those of its host."""
    local_size: int

    def __init__(self, timeout: float = math.inf) -> None:
        self._timeout, self._factor = timeout, FIRST_STEP_FACTOR
        self.where = ""
        """What the program is doing (``step 12``); free text that error messages repeat."""
        self.seconds = 0.0
        """Time spent in waiting for other ranks so far."""

    @abstractmethod
    def start_allreduce(self, array: Array, what: str) -> Request:
        """Start the sum of ``array`` over all ranks, in place; ``what`` names it in messages.

        The array must not be touched before the request is complete. Raises CollectiveError for types
        that have no sum and for read-only arrays.
        """

    def start_sum(self, array: Array, what: str, transport: str | None = None, whole: bool = True) -> Request:
        """Start the sum of a flat array, as `start_allreduce`, by the way that is shortest from where it lies.

        It is in ``array`` when this request is complete and a collective that all ranks wait for after it: where
        ``array`` lies in a shared segment, each rank of a host sums its `part`, for all of them, or unless ``whole``
        for itself alone. With ``transport`` (float16 or bfloat16) float32 numbers travel between hosts in 16 bits.
        Types are not checked (see `check_summable`): called many times a step.
        """
        return self.start_allreduce(array, what)

    @abstractmethod
    def start_gather(self, array: numpy.ndarray[Any, Any], rows: numpy.ndarray[Any, Any], what: str) -> Request:
        """Start to bring the flat ``array`` of every rank into ``rows``, one a rank, of its length and type.

        Lengths are not compared: called many times a step.
        """

    def place(self, array: Array) -> tuple[int, int] | None:
        """Number of the shared segment in which ``array`` lies, and its first byte there; None elsewhere."""
        return None

    def part(self, array: Array) -> slice:
        """The elements of a flat array in a shared segment that this rank sums for its host."""
        return slice(0, array.size)

    def spread(self, array: Array) -> None:  # noqa: B027 - alone there is nobody to give it to
        """Copy an array that lies in a shared segment to the same place of all other ranks of the host."""

    @abstractmethod
    def allreduce(self, array: Array) -> None:
        """Replace ``array`` by its sum over all ranks, in its own type; the same bits on every rank."""

    @abstractmethod
    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace ``array`` by that of rank ``root``. Raises CollectiveError for a root that is no rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has come here."""

    @abstractmethod
    def allgather_object(self, obj: object, what: str = "allgather_object") -> list[Any]:
        """The small ``obj`` of every rank, by rank, as JSON carries it (a tuple arrives as a list).

        ``what`` names the call in messages. Raises CollectiveError for what JSON cannot carry.
        """

    @abstractmethod
    def shared_segment(self, nbytes: int) -> numpy.ndarray[Any, Any]:
        """``nbytes`` zeroed bytes in memory that all ranks of the host share, 64-byte aligned; collective.

        The communicator owns the memory; it is there as long as the process. Raises BackendUnavailableError on
        all ranks where shared memory has no room on one host.
        """

    def takes(self, array: Array) -> bool:
        """Whether collectives work on an array where it lies; others go through host memory, so many may go as one."""
        return isinstance(array, numpy.ndarray)

    def allocate(self, nbytes: int, role: str) -> numpy.ndarray[Any, Any] | None:
        """An allocator for `Context.set_allocator`: gradients in a shared segment where there is room for one.

        None for other roles, and without room; collective for gradients.
        """
        try:
            return self.shared_segment(nbytes) if role == "gradient" else None
        except BackendUnavailableError:  # on all ranks
            return None

    @property
    def limit(self) -> float:
        """Seconds that a rank waits in a collective before the job is ended."""
        return self._timeout * self._factor

    def set_timeout(self, seconds: float) -> None:
        """Give waits another deadline, as ``init(timeout=)`` does."""
        self._timeout = seconds

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Inside, a rank waits that long in a collective."""
        before = self._timeout, self._factor
        self._timeout, self._factor = seconds, 1
        try:
            yield
        finally:
            self._timeout, self._factor = before

    def check(self, what: str) -> None:  # noqa: B027 - alone nobody else can fail
        """Raise CollectiveError or PeerFailure if another rank is known to have failed; never waits."""

    def first_step_done(self) -> None:
        """Say that the first step is over; until then deadlines are four times as long."""
        self._factor = 1

    def agree(self, description: Mapping[str, object], what: str) -> None:
        """Check that every rank holds the same ``description``, in the same order; collective.

        Raises PlanMismatchError on all ranks, with the first difference and what each rank has there.
        """
        entries = [[str(k), text if isinstance(text, str) else repr(text)] for k, text in description.items()]
        digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
        doing = f"agreement on {what}"
        if len(set(self.allgather_object(digest, doing))) > 1:
            raise PlanMismatchError(_first_difference(self.allgather_object(entries, doing), what))


def check_summable(array: Array, doing: str) -> None:
    """Raise CollectiveError for types without a sum and for read-only arrays."""
    kind = numpy.dtype(array.dtype)
    if kind.kind not in "iufc":
        raise CollectiveError(f"{doing}: the array must hold numbers, but its type is {kind}")
    if isinstance(array, numpy.ndarray) and not array.flags.writeable:
        raise CollectiveError(f"{doing}: the array {kind} {array.shape} must be writable, but is read-only")


def to_json(obj: object, doing: str) -> bytes:
    """The JSON of control data; raises CollectiveError for what JSON cannot carry."""
    try:
        return json.dumps(obj).encode()
    except (TypeError, ValueError) as error:
        raise CollectiveError(f"{doing}: only what JSON can carry can be gathered: {error}") from error


def host_buffer(array: Array) -> numpy.ndarray[Any, Any]:
    """A C-contiguous NumPy array with the values of ``array``: itself if it is one, else a copy.

    The copy of a device array waits for what was queued before it. That path was not run on a card.
    """
    return numpy.asarray(context.asnumpy(array), order="C")


def _first_difference(ranks: Sequence[Sequence[tuple[str, str]]], what: str) -> str:
    """The message for the first entry in which the (key, value) lists of the ranks differ."""
    columns = itertools.zip_longest(*([(key, text) for key, text in entries] for entries in ranks))
    i, here = next((i, column) for i, column in enumerate(columns) if len(set(column)) > 1)
    keys = list(dict.fromkeys(entry[0] for entry in here if entry))
    held = [dict(entries) for entries in ranks]
    key = next((k for k in keys if any(k not in h for h in held)), keys[0])
    if all(k in h for k in keys for h in held) and len(keys) > 1:
        fact = f"{what}: the ranks must hold the same entries in one order, but entry {i} differs"
        texts = [entry[0] if entry else "nothing" for entry in here]
    else:
        fact = f"{what}: the ranks must hold the same, but {key!r} differs"
        texts = [h.get(key, "not there") for h in held]
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    rows = [(named(ranks), text) for text, ranks in groups.items()]
    return message(fact, rows, "found", "every rank must run the same program with the same model and options")


def ranges(ranks: Sequence[int]) -> str:
    """``0-2, 5`` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"
