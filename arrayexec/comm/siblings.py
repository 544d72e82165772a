"""A rank of MPICH that ends before it has come to MPI: its launcher takes that for an ordinary end.

MPI starts when all ranks start it, and in there a rank cannot look around. So a small process beside it does: it
runs this file, sees to it that the other ranks of the host are still there, and kills its rank if one is not, which
makes the launcher end the job on all hosts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

_EVERY = 0.25  # seconds between two looks; a rank must be missing in two
_HEARD = 0.1  # seconds until the launcher has read a line
_LAUNCHER = "hydra_pmi_proxy"  # starts the ranks of a host


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Watch the other ranks of this host while MPI starts; does nothing under other launchers than MPICH's."""
    number, count = os.environ.get("MPI_LOCALRANKID"), os.environ.get("MPI_LOCALNRANKS")
    launcher = os.getppid()
    if number is None or count in (None, "1") or _read(f"/proc/{launcher}/comm").strip() != _LAUNCHER:
        yield
        return
    command = [sys.executable, "-IS", __file__, str(launcher), number, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _alive(launcher: int) -> set[int]:
    """The numbers that the ranks of this host have on it, of those that run."""
    numbers = set()
    for pid in _read(f"/proc/{launcher}/task/{launcher}/children").split():
        if _read(f"/proc/{pid}/stat").rpartition(")")[2][1:2] != "Z":
            for entry in _read(f"/proc/{pid}/environ").split("\0"):
                if entry.startswith("MPI_LOCALRANKID="):
                    numbers.add(int(entry.partition("=")[2]))
    return numbers


def _watch(launcher: int, number: int, count: int) -> None:
    rank, missing_before = os.getppid(), set[int]()
    while not select.select([0], [], [], _EVERY)[0]:  # the rank closes the pipe, at the latest by its own end
        alive = _alive(launcher)
        missing = set(range(count)) - alive if number in alive else set()  # else /proc does not tell
        if missing & missing_before:
            if number == min(alive):  # one speaks, and ends the job when that was heard
                who = ", ".join(map(str, sorted(missing)))
                sys.stderr.write(f"arrayexec: process {who} of {count} on this host ended before comm.init()\n")
            time.sleep(_HEARD if number == min(alive) else 10 * _HEARD)
            os.kill(rank, signal.SIGKILL)
            return
        missing_before = missing


if __name__ == "__main__":
    _watch(*map(int, sys.argv[1:]))
