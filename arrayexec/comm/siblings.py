"""What launchers do not see to: a rank that ends before it has come to MPI, and a host that is lost.

Launchers may take the first for an ordinary end.

MPICH's does whatever the exit code, Open MPI's if that is 0. MPI starts when all ranks start it, and in there a rank
cannot look around. So a small process beside it does: it runs this file, sees to it that the other ranks of the host
are still there, and kills its rank if one is not, which makes the launcher end the job on all hosts.

Open MPI's launcher waits for the answer of a host that is lost, for ever, when it is told to end a job. It ends one by
itself, with an error, when it loses the daemon that started the ranks of a host: so that is killed.
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
_RELAYED = 2.5  # seconds until Open MPI has passed it on to another host; after 1 a third of the reports was lost
_SHARED = "/dev/shm/mpich_shm_"  # memory that MPICH leaves behind when a rank is killed
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
# What starts the ranks of a host, by its name in /proc: where it tells them their rank, how many there are, and here
_LAUNCHERS: dict[str, tuple[str, ...]] = {
    "hydra_pmi_proxy": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"), "prterun": _OPEN_MPI, "prted": _OPEN_MPI,
}  # fmt: skip


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Watch the other ranks of this host while MPI starts; does nothing under launchers that it does not know."""
    launcher = os.getppid()
    names = _LAUNCHERS.get(_read(f"/proc/{launcher}/comm").strip(), ())
    told = [os.environ.get(name, "") for name in names]
    if not all(told) or told[2:] in ([], ["1"]):
        yield
        return
    command = [sys.executable, "-IS", __file__, str(launcher), names[0], *told]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def leave_launcher(code: int) -> None:
    """End this process where Open MPI started it, and what started it, which makes the launcher end the job."""
    launcher = os.getppid()
    if _LAUNCHERS.get(_read(f"/proc/{launcher}/comm").strip()) is _OPEN_MPI:
        time.sleep(_RELAYED)  # what this rank said has to go to another host
        with contextlib.suppress(OSError):
            os.kill(launcher, signal.SIGKILL)
        os._exit(code)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _alive(launcher: str, name: str) -> set[int]:
    """The ranks of this host that run; ``name`` is the variable that tells them which they are."""
    ranks = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{launcher}/task"):
            for pid in _read(f"/proc/{launcher}/task/{thread}/children").split():
                if _read(f"/proc/{pid}/stat").rpartition(")")[2][1:2] != "Z":
                    entries = _read(f"/proc/{pid}/environ").split("\0")
                    ranks |= {int(entry.partition("=")[2]) for entry in entries if entry.startswith(f"{name}=")}
    return ranks


def _watch(launcher: str, name: str, rank: int, size: int, here: int) -> None:
    process, missed = os.getppid(), False
    while not select.select([0], [], [], _EVERY)[0]:  # the rank closes the pipe, at the latest by its own end
        alive = _alive(launcher, name)
        missing = rank in alive and len(alive) < here  # without itself there /proc does not tell
        if missing and missed:
            if rank == min(alive):  # one speaks, and ends the job when that was heard
                gone = ", ".join(str(other) for other in range(size) if other not in alive)
                which = f"rank {gone}" if size == here else f"a rank of {os.uname().nodename}"
                sys.stderr.write(f"arrayexec: {which} ended before comm.init()\n")
            time.sleep(_HEARD if rank == min(alive) else 10 * _HEARD)
            for path in {line.split()[-1] for line in _read(f"/proc/{process}/maps").splitlines() if _SHARED in line}:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            os.kill(process, signal.SIGKILL)
            return
        missed = missing


if __name__ == "__main__":
    _watch(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
