"""Save checkpoints in children that are killed, or whose file operations fail, and look at what is left.

Arguments: a folder, ``kills`` (how many children are killed at random times), ``every`` (of the operations of one save,
every so manieth is the last one of a child, and fails in another). Prints counts as JSON.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

from arrayexec.module.checkpoint import Checkpoints
from tests.module.resuming import Training

OPERATIONS = ("open", "fsync", "chmod", "replace", "unlink", "listdir", "makedirs", "close")
LARGE = 300_000  # numbers beside the model's: a file takes some time to write



class Counter:
    """Counts file operations, and ends the process, or raises, at one of them."""

    def __init__(self, last: int, kills: bool) -> None:
        self.count, self.last, self.kills = 0, last, kills
        self.names: list[str] = []

    def tick(self, name: str, before: Callable[[], object] = lambda: None) -> None:
        self.names.append(name)
        self.count += 1
        if self.count == self.last:
            before()
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, "No space left on device")

    def install(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self.counted(name, getattr(os, name)))
        counter = self

        class File(io.FileIO):
            """Unbuffered, so that each write is one; the last one writes half."""

            def write(self, data: Any) -> int:
                whole = memoryview(data).cast("B")
                counter.tick("write", lambda: io.FileIO.write(self, whole[: len(whole) // 2]))
                return io.FileIO.write(self, whole)

        os.fdopen = lambda handle, mode: File(handle, mode)  # type: ignore[assignment, misc]

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            self.tick(name)
            return function(*given, **options)

        return call


def state(training: Training, number: int) -> dict[str, Any]:
    """Give every array of a training the number."""
    for array in training.model.stores[0].parameters.values():
        array[...] = number
    return {"number": np.full(LARGE, number)}


def save(training: Training, keeper: Checkpoints, number: int) -> None:
    keeper.save(training.model, training.updater, epoch=number, extra=state(training, number))


def resumed(training: Training, keeper: Checkpoints) -> int:
    """The number of the newest whole checkpoint; all that is in it must have that number. 0: there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing damaged ever has the name of a checkpoint
        position = keeper.resume(training.model, training.updater)
    if position is None:
        return 0
    assert (position.extra["number"] == position.epoch).all()
    for name, array in training.model.stores[0].parameters.items():
        assert (array == position.epoch).all(), name
    return position.epoch


def child(run: Callable[[], object]) -> int:
    """Fork; the child runs, tells nothing and ends. Its process id."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        run()
        code = 0
    except OSError as error:
        code = 3 if error.errno == errno.ENOSPC else 71
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """How a child ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed_at_random(folder: Path, kills: int) -> dict[str, int]:
    keeper, look = Checkpoints(folder, keep=2), Training("manager", "dropout", "adam")
    rng, last, between, new = random.Random(kills), 0, 0, 0
    for _ in range(kills):
        reading, writing = os.pipe()

        def forever(number: int, pipe: int) -> None:
            training = Training("manager", "dropout", "adam")
            while True:
                number += 1
                save(training, keeper, number)
                os.write(pipe, number.to_bytes(8, "little"))

        process = child(functools.partial(forever, last, writing))
        os.close(writing)
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(process, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        with os.fdopen(reading, "rb") as told:
            numbers = told.read()
        done = int.from_bytes(numbers[-8:], "little") if numbers else last
        between += bool(list(folder.glob(".checkpoint-*.tmp")))
        found = resumed(look, keeper)
        assert found in (done, done + 1), (found, done)  # what save has returned for is there
        new += found - last
        last = found
    save(look, keeper, last + 1)
    assert sorted(map(str, folder.iterdir())) == keeper.paths() and len(keeper.paths()) == 2
    return {"kills": kills, "half-written files": between, "checkpoints": new}


def ended_at_operations(folder: Path, operations: int, every: int, kills: bool) -> dict[str, int]:
    look = Training("manager", "dropout", "adam")
    training = Training("manager", "dropout", "adam")
    counts = {"ended": 0, "old": 0, "new": 0}
    for last in range(1, operations + 1, every):
        place = folder / f"{last}"
        keeper = Checkpoints(place, keep=1)
        save(training, keeper, 1)

        def once(number: int, keeper: Checkpoints) -> None:
            Counter(number, kills).install()
            save(training, keeper, 2)

        code = ended(child(functools.partial(once, last, keeper)))
        found = resumed(look, keeper)
        assert code == (-signal.SIGKILL if kills else 3), (code, last)
        assert found in (1, 2), found
        counts["ended"] += 1
        counts["new" if found == 2 else "old"] += 1
        if not kills and found == 1:
            assert not list(place.glob(".*")), "a save that failed leaves nothing"
        save(training, keeper, 3)
        assert resumed(look, keeper) == 3 and [p.name for p in place.iterdir()] == [Path(keeper.paths()[0]).name]
    return counts


def operations(folder: Path) -> list[str]:
    """The names of the operations of one save into a folder that has a file already, in their order."""
    training, keeper = Training("manager", "dropout", "adam"), Checkpoints(folder, keep=1)
    counter = Counter(0, False)
    save(training, keeper, 1)
    reading, writing = os.pipe()

    def once() -> None:
        counter.install()
        save(training, keeper, 2)
        os.write(writing, json.dumps(counter.names).encode())

    assert ended(child(once)) == 0
    names: list[str] = json.loads(os.read(reading, 1 << 16))
    return names


if __name__ == "__main__":
    where, kills, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    names = operations(where / "one")
    found = {
        "order": [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]],
        "random": killed_at_random(where / "random", kills),
        "killed": ended_at_operations(where / "killed", len(names), every, True),
        "failed": ended_at_operations(where / "failed", len(names), every, False),
    }
    print(json.dumps(found))
