"""What keeps a job of several ranks from hanging: who waits for whom, and how the job ends.

A rank that has waited for a while tells all others which collective it waits in, again and again
(nothing is sent while things go well). A thread of a rank that computes, or waits for something else, answers with the
line of the program that it is at. So a rank that waits knows who is there, who left, who is in another collective
and, at the deadline, who is late. One rank then raises, and the hooks installed here print the traceback and end
the job on all ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Protocol

from ..errors import BarrierTimeoutError, CollectiveError, CollectiveTimeoutError, PeerFailure, message
from .base import named

EXIT_ERROR, EXIT_TIMEOUT, EXIT_PEER_LEFT = 1, 86, 87

_ANNOUNCE_AFTER = 0.5  # seconds of waiting before the other ranks are told, and between repetitions
_SILENT_AFTER = 2.5  # a rank that waits, but was not heard for so long, is not running
_GATHER = 0.1  # between the first sign of a failure and the report, so that all signs are in
_GIVE_WAY = 1.0  # a lower rank that waits too reports in the meantime
_STAGGER = 0.2  # a rank that raised prints after that times its number: one traceback if all raise
_LOOK_EVERY = 0.2  # between two looks into the letters while a rank does not wait
_ANSWER_EVERY = 0.02  # the same while others wait for it: a first message takes several looks to get through
_HOLD = 2.0  # a rank that raised after another one gives that one so long to end the job


@dataclass(frozen=True)
class Operation:
    """One collective of a rank. All ranks number theirs alike."""

    number: int
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


class Link(Protocol):
    """How the guards of the ranks reach each other; nothing in it waits."""

    rank: int
    size: int

    threaded: bool
    """Whether any thread may use it, one at a time."""

    def post(self, rank: int, letter: Mapping[str, Any]) -> None:
        """Send a letter."""

    def collect(self) -> list[tuple[int, dict[str, Any]]]:
        """The letters that have arrived, each with its sender."""

    def begin_exit(self) -> Callable[[], bool]:
        """Tell that this rank is at its end; the result says whether all ranks are."""

    def abort(self, code: int, host_lost: bool) -> NoReturn:
        """End the job on all ranks, also where a host cannot be reached."""


class Guard:
    """Watches the collectives of one rank. ``whole``: the guard of all ranks, if these are some of them."""

    def __init__(
        self, link: Link, where: Callable[[], str], limit: Callable[[], float] = lambda: math.inf,
        whole: Guard | None = None,
    ) -> None:  # fmt: skip
        self._link, self._where, self._limit = link, where, limit
        self._whole = whole or self
        self._groups: list[Guard] = []  # of some of the ranks; this one ends the job for them
        self._recent = self  # the one of them all whose collective came last
        self._last = Operation(0, "", "")
        self._met = self._last  # the last one to which all ranks are known to have come
        self._heard: dict[int, dict[str, Any]] = {}  # the last letter of each rank, and when it came
        self._announced = (0, 0.0)  # number of the collective, when
        self._suspect = (0, 0.0)  # number of the collective with a sign of failure, since when
        self._watched = (0, 0.0)  # number of the collective, when it was last watched
        self._stopped = 0.0  # seconds of its wait in which this rank itself did not run
        self._failure: CollectiveError | None = None
        self._host_lost = False
        self._silent = False  # in a forked child, and at the end of the program
        self._forked = False
        self._lock = threading.RLock()  # of the link
        self._answering: threading.Thread | None = None
        self.hosts: Sequence[str] = ()
        """The host of each rank, once that is known."""

    def check(self, what: str) -> None:
        """Raise CollectiveError after a failure and in a forked child, where no collective may start."""
        if self._forked:
            raise CollectiveError(
                f"{what}: this process was forked from rank {self._link.rank} "
                "and must not use its communicator\n"
                "  start workers with the 'spawn' or 'forkserver' method, or before comm.init()"
            )
        if self._failure is not None:
            raise CollectiveError(
                f"{what}: no collective can follow one that failed: {_first_line(self._failure)}"
            ) from self._failure

    def look(self, what: str) -> None:
        """As `check`; PeerFailure if a rank has said that it raised, or that it left before a collective of this."""
        self.check(what)
        self._hear()
        gone = self._ranks(lambda said: said["state"] == "raised") or self._left(self._last)
        if gone:
            verb = "raised" if self._heard[gone[0]]["state"] == "raised" else "left"
            after = self._heard[gone[0]]["text"] or "no collective"
            here = f"rank {self._link.rank} is in {self._last}"
            self.fail(PeerFailure(f"{what}: {named(gone)} {verb} after {after}; {here}"))

    def enter(self, what: str, where: str) -> Operation:
        """Number a collective that is about to start; raises as `check`."""
        self.check(what)
        self._whole._recent = self
        self._last = Operation(self._last.number + 1, what, where)
        if self._last.number % 32 == 0:
            self._hear()  # letters of ranks that had to wait for this one must not pile up
        return self._last

    def watch(self, operation: Operation, waited: float, limit: float) -> None:
        """Called again and again by a rank that waits; raises when waiting is of no use any more."""
        self._hear()
        now = time.monotonic()
        ahead = any(letter["number"] >= operation.number for letter in self._heard.values())
        if self._watched[0] != operation.number:
            self._stopped = 0.0
        elif now - self._watched[1] > _SILENT_AFTER:
            self._stopped += now - self._watched[1]  # then nobody else is late: what they say is still to be heard
        self._watched = (operation.number, now)
        number, when = self._announced
        told = number == operation.number
        if now - when > _ANNOUNCE_AFTER if told else ahead or waited > _ANNOUNCE_AFTER:
            self._announced = (operation.number, now)
            self._tell("waiting", operation)
        if self._left(operation) or self._elsewhere(operation):
            if self._suspect[0] != operation.number:
                self._suspect = (operation.number, now)
            if now - self._suspect[1] > _GATHER + self._give_way(operation):
                self.fail(self._peer_failure(operation))
        if waited - self._stopped > limit + self._give_way(operation):
            self.fail(self._timeout(operation, limit))

    def completed(self, operation: Operation) -> None:
        """A collective that no rank completes alone is complete: all have come to it."""
        self._met = operation

    def fail(self, error: CollectiveError) -> NoReturn:
        """Raise ``error``; nothing else can be done with this communicator but to end the job."""
        self._failure = self._whole._failure = error
        raise error

    def _hear(self) -> None:
        with self._lock:
            for rank, letter in self._link.collect():
                self._heard[rank] = {**letter, "when": time.monotonic()}

    def _tell(self, state: str, operation: Operation) -> None:
        letter = self._letter(state, operation)
        with self._lock:
            for rank in range(self._link.size):
                if rank != self._link.rank:
                    self._link.post(rank, letter)

    def _answer(self) -> None:
        """Tell ranks that wait for this one, which does not, where it is; in a thread."""
        main = threading.main_thread().ident or 0
        answered: dict[int, float] = {}
        asking: list[int] = []
        while True:
            time.sleep(_ANSWER_EVERY if asking else _LOOK_EVERY)
            with self._lock:
                if self._silent:
                    return
                self._hear()
                asking = self._ranks(self._asks)
                for rank in asking:
                    if answered.get(rank) != self._heard[rank]["when"]:
                        answered[rank] = self._heard[rank]["when"]
                        code, line = sys._current_frames()[main].f_code, sys._current_frames()[main].f_lineno
                        at = f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}"
                        self._link.post(rank, {**self._letter("busy", self._last), "at": at, "where": self._where()})

    def _letter(self, state: str, operation: Operation) -> dict[str, Any]:
        return {
            "state": state,
            "number": operation.number,  # the collective in question
            "started": self._last.number,  # the last one that this rank has started
            "what": operation.what,
            "text": str(operation),
        }

    def _ranks(self, fits: Callable[[dict[str, Any]], bool]) -> list[int]:
        """The other ranks whose last letter fits."""
        return [rank for rank, letter in sorted(self._heard.items()) if fits(letter)]

    def _asks(self, letter: dict[str, Any]) -> bool:
        """Whether a rank wants to hear from this one: it waits in a later collective, or at its end."""
        return letter["state"] == "left" or bool(letter["state"] == "waiting" and letter["number"] > self._last.number)

    def _left(self, operation: Operation) -> list[int]:
        return self._ranks(lambda said: said["state"] == "left" and said["started"] < operation.number)

    def _elsewhere(self, operation: Operation) -> list[int]:
        waiting = ("waiting", operation.number)
        return self._ranks(lambda said: (said["state"], said["number"]) == waiting and said["what"] != operation.what)

    def _give_way(self, operation: Operation) -> float:
        lower = [rank for rank in self._waiting(operation) if rank < self._link.rank]
        return _GIVE_WAY * min(len(lower), 3)

    def _waiting(self, operation: Operation) -> list[int]:
        """The other ranks that have come to ``operation`` and were heard lately."""
        since = time.monotonic() - _SILENT_AFTER
        here = self._ranks(lambda said: said["state"] == "waiting" and said["started"] >= operation.number)
        return [rank for rank in here if self._heard[rank]["when"] > since]

    def _peer_failure(self, operation: Operation) -> CollectiveError:
        left, me = self._left(operation), self._link.rank
        if not left:
            rows = [(f"rank {rank}", self._heard[rank]["text"]) for rank in self._elsewhere(operation)]
            other, text = rows[0]
            fact = f"the ranks are in different collectives: rank {me} waits in {operation}, {other} in {text}"
            rows.insert(0, (f"rank {me}", str(operation)))
            hint = "every rank must run the same number of steps and the same calls in the same order"
            return CollectiveError(message(fact, rows, f"collective number {operation.number}", hint))
        them = "it" if len(left) == 1 else "them"
        fact = f"{named(left)} left (exit) while rank {me} waits for {them} in {operation}"
        rows = [(f"rank {rank} left after", self._heard[rank]["text"] or "no collective") for rank in left]
        rows.append((f"rank {me} waits in", str(operation)))
        hint = "every rank must run the same number of steps; what ends early must end on all ranks"
        return PeerFailure(message(fact, rows, "collectives", hint))

    def _timeout(self, operation: Operation, limit: float) -> CollectiveError:
        me, now = self._link.rank, time.monotonic()
        here = sorted([me, *self._waiting(operation)])
        late = [rank for rank in range(self._link.size) if rank not in here]
        lost = self._whole_hosts(late)
        if late:
            missing = f"{named(late)}{lost} {'is' if len(late) == 1 else 'are'} missing"
            fact = f"{missing} in {operation}: rank {me} has waited for {limit:g} s"
        else:
            fact = f"{operation} did not complete in {limit:g} s, though all ranks have come to it"
        rows = [("waiting", named(here))]
        for rank in late:
            said = self._heard.get(rank, {"number": 0, "state": ""})
            if said["state"] == "busy":
                text = f"at {said['at']} ({said['where']}) after {said['text'] or 'no collective'}"
            elif said["number"] > self._met.number:
                text = f"waiting in {said['text']}"
            else:
                text = f"in {self._met}, which is complete" if self._met.number else "nothing"
            if said["state"]:
                text += f", {now - said['when']:.0f} s ago"
            rows.append((f"last seen of rank {rank}", text))
        error = BarrierTimeoutError if operation.what.startswith("barrier") else CollectiveTimeoutError
        who = "that rank does" if len(late) == 1 else "those ranks do"
        hint = f"see what {who} (stopped, swapping, a slow batch)" if late else "see whether the hosts reach each other"
        if lost:
            hint = "see whether that host runs and can be reached"
        hint += "; a longer deadline: comm.init(timeout=seconds) or ARRAYEXEC_TIMEOUT"
        return error(message(fact, rows, f"collective number {operation.number}", hint))

    def _whole_hosts(self, late: Sequence[int]) -> str:
        """Note and tell which of several hosts have no rank that is not late."""
        hosts = dict.fromkeys(self.hosts[rank] for rank in late) if len(set(self.hosts)) > 1 else {}
        lost = [host for host in hosts if all(rank in late for rank, name in enumerate(self.hosts) if name == host)]
        self._whole._host_lost = bool(lost)
        return f" (all of host{'s' * (len(lost) > 1)} {', '.join(lost)})" if lost else ""

    # How a rank ends

    def install(self) -> None:
        """From now on an uncaught exception ends the job, and ranks that wait for this one see its exit."""
        before, before_thread = sys.excepthook, threading.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._die(error, lambda: before(kind, error, trace))

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_type is SystemExit:
                before_thread(args)
            else:
                self._die(args.exc_value, lambda: before_thread(args))

        sys.excepthook, threading.excepthook = hook, thread_hook
        atexit.register(self._leave)
        os.register_at_fork(after_in_child=self._in_child)
        at_once = os._exit

        def leave_at_once(status: int) -> NoReturn:
            if status == 0 and not self._silent:  # MPICH's launcher kills the others then, and calls that a success
                self._leave()
            at_once(status)

        os._exit = leave_at_once
        self._begin_answers()

    def install_in(self) -> None:
        """As `install`, for a group of ranks: the guard of all ranks does it with its own hooks."""
        self._whole._groups.append(self)
        self._begin_answers()

    def _begin_answers(self) -> None:
        if self._link.threaded:
            self._answering = threading.Thread(target=self._answer, name="arrayexec answers", daemon=True)
            self._answering.start()

    def _in_child(self) -> None:
        for guard in (self, *self._groups):
            guard._forked = guard._silent = True

    def _die(self, error: BaseException | None, show: Callable[[], object]) -> None:
        if self._forked:
            show()
            return
        if error is not self._failure:
            self._let_others_speak()
        recent = self._recent
        where = f" in {recent._where()}" if recent._where() else ""
        last = str(recent._last) if recent._last.number else "none"
        _print(f"arrayexec: rank {self._link.rank} of {self._link.size} failed{where}; last collective: {last}")
        show()
        self._abort(_exit_code(error))

    def _let_others_speak(self) -> None:
        """Where several ranks raise, one of them speaks: the first, else the lowest."""
        time.sleep(_STAGGER * min(self._link.rank, 10))
        if threading.current_thread() is not threading.main_thread():
            return  # the main thread may be inside MPI
        with contextlib.suppress(Exception):  # where MPI itself has failed, the traceback must still be seen
            self._hear()
            if self._ranks(lambda said: said["state"] == "raised"):
                time.sleep(_HOLD)  # its end of the job comes in between
            else:
                self._tell("raised", self._last)

    def _leave(self) -> None:
        """The end of the program: wait for the other ranks, and answer those that wait for this one.

        Others may have much to do still, but they answer; one that does not for a whole deadline is lost.
        """
        if self._forked:
            return
        guards = (self, *self._groups)
        for guard in guards:
            with guard._lock:
                guard._silent = True
        if self._failure is not None:
            _print(f"arrayexec: rank {self._link.rank} ends the job: {_first_line(self._failure)}")
            self._abort(_exit_code(self._failure))
        all_at_exit = self._link.begin_exit()
        pause = 1e-4
        clock = asked = 0.0  # seconds that this rank has waited, without those in which it was stopped
        silent = {rank: 0.0 for rank in range(self._link.size) if rank != self._link.rank}  # when each was last heard
        while not all_at_exit():
            before = time.monotonic()
            silent |= dict.fromkeys(self._part(), clock)
            for guard in self._groups:
                guard._part()
            if self._link.threaded and clock - asked > self._limit() / 8:
                asked = clock
                self._tell("left", self._last)
                # as in collectives, one of several ranks speaks
                patience = self._limit() + _GIVE_WAY * min(self._link.rank, 3)
                lost = [rank for rank, when in silent.items() if clock - when > patience]
                if lost:
                    them = named(lost) + self._whole_hosts(lost)
                    _print(f"arrayexec: rank {self._link.rank} is done, but ends the job: no answer from {them}")
                    self._abort(EXIT_TIMEOUT)
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
            clock += min(time.monotonic() - before, _SILENT_AFTER)

    def _part(self) -> list[int]:
        """Tell those that wait for this rank that it is at its end; who has written."""
        letters = self._link.collect()
        for rank, letter in letters:
            if letter["state"] == "waiting" and letter["number"] > self._last.number:
                self._link.post(rank, self._letter("left", self._last))
        return [rank for rank, _ in letters]

    def _abort(self, code: int) -> NoReturn:
        with contextlib.suppress(Exception):  # streams may be closed or replaced
            sys.stdout.flush()
            sys.stderr.flush()
        time.sleep(0.05)  # the launcher reads our last lines before it kills
        self._link.abort(code, self._host_lost)


def _exit_code(error: BaseException | None) -> int:
    if isinstance(error, CollectiveTimeoutError):
        return EXIT_TIMEOUT
    return EXIT_PEER_LEFT if isinstance(error, PeerFailure) else EXIT_ERROR


def _print(line: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(line + "\n")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
