"""What loading costs a step: a loader that waits, one that computes, one that decodes; alone and drawn ahead.

    OPENBLAS_NUM_THREADS=1 python benchmarks/loading.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/loading.py --trace loading.json

The step is forward, backward and update of 784-512-512-10 with 256 rows. ``waits`` sleeps for ``--share`` of a
step (a disk, a network); ``Python`` computes as long in a loop that holds the interpreter; ``NumPy`` computes
as long in large products that do not; ``JPEG`` decodes, cuts and mirrors images with Pillow on one thread, as
many as take about as long. ``serial`` draws the next batch after the step, ``ahead`` is `PrefetchingIter`.
``cost`` is the time of a step beside that of the step alone in the same rounds: 0.1 is 10 % more. A loader that
computes hides only behind a core that the step leaves free.

``--trace`` writes, instead, what ran when in 40 steps with the loader that waits: a file for a browser's
tracing page (chrome://tracing, Perfetto), and prints how much of the loading lies inside steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from timing import interleaved, ratio, report
from workloads import mlp

import arrayexec as ax
from arrayexec import io, recordio

BATCH = 256


class Loader(io.DataIter):
    """The same batch for ever; each takes as long as ``work`` does."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(BATCH)
        self.provide_data, self.provide_label = [io.DataDesc("data", (BATCH, 784))], []
        self.work = work
        self.batch = io.DataBatch([np.ones((BATCH, 784), np.float32)], [], 0)

    def next(self) -> io.DataBatch:
        self.work()
        return self.batch


def training_step() -> Callable[[], None]:
    """Forward, backward and a plain update."""
    workload = mlp(BATCH)
    executor = workload.symbol.simple_bind(ax.cpu(), **{name: array.shape for name, array in workload.inputs.items()})
    generator = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array[...] = workload.inputs.get(name, generator.normal(0, 0.05, array.shape))
    weights = [name for name in executor.arg_dict if name not in workload.inputs]
    scratch = {name: np.empty_like(executor.arg_dict[name]) for name in weights}

    def step() -> None:
        executor.forward(is_train=True)
        executor.backward()
        for name in weights:
            np.multiply(executor.grad_dict[name], 1e-6, out=scratch[name])
            executor.arg_dict[name] -= scratch[name]

    return step


def timed(call: Callable[[], Any], count: int = 10) -> float:
    """Median seconds of a call."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return median(found)


def repeated(once: Callable[[], Any], seconds: float) -> Callable[[], None]:
    """As many calls as take about ``seconds``."""
    count = max(1, round(seconds / timed(once)))

    def work() -> None:
        for _ in range(count):
            once()

    return work


def spin() -> int:
    """Work that holds the interpreter."""
    total = 0
    for i in range(2000):
        total += i
    return total


def images(folder: Path, seconds: float) -> io.DataIter | None:
    """Batches of JPEG images of 256 × 256 that take about ``seconds`` to decode; None without Pillow."""
    picture = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).repeat(16, 0).repeat(16, 1).astype(np.uint8)
    try:
        record = recordio.pack_img((0, 1.0, 0, 0), picture)
    except ax.BackendUnavailableError:
        return None
    with recordio.MXRecordIO(folder / "a.rec", "w") as file:
        for _ in range(256):
            file.write(record)

    def made(batch: int) -> io.ImageRecordIter:
        return io.ImageRecordIter(
            folder / "a.rec", (3, 224, 224), batch, rand_crop=True, rand_mirror=True, mean_r=123, prefetch_buffer=0,
            preprocess_threads=1,
        )  # fmt: skip

    few = made(8)
    return io.ResizeIter(made(max(1, round(8 * seconds / timed(few.next)))), 1 << 40)


def trace(path: str, step: Callable[[], None], seconds: float) -> None:
    """Run 40 steps with a loader that waits ``seconds``, and write when each ran."""
    spans: list[tuple[str, int, float, float]] = []

    def span(name: str, call: Callable[[], Any]) -> None:
        start = time.perf_counter()
        call()
        spans.append((name, threading.get_ident(), start, time.perf_counter()))

    drawn = io.PrefetchingIter(Loader(lambda: span("load", lambda: time.sleep(seconds))))
    for _ in range(40):
        span("next", drawn.next)
        span("step", step)
    drawn.reset()
    steps = [(start, end) for name, _, start, end in spans if name == "step"]
    loads = [(start, end) for name, _, start, end in spans if name == "load"]
    inside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in loads for b in steps)
    total = sum(end - start for start, end in loads)
    counts = f"{len(loads)} loads of {1e3 * seconds:.1f} ms, {len(steps)} steps"
    print(f"{counts}: {inside / total:.0%} of loading ran during steps")
    threads = sorted({thread for _, thread, _, _ in spans})
    events = [
        {"name": name, "ph": "X", "pid": 0, "tid": threads.index(thread), "ts": 1e6 * start, "dur": 1e6 * (end - start)}
        for name, thread, start, end in spans
    ]
    Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--share", type=float, default=0.8, help="what loading takes of a step")
    arguments.add_argument("--seconds", type=float, default=0.5)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--trace", help="the file to write a trace to, instead")
    options = arguments.parse_args()
    step = training_step()
    alone = timed(step, 30)
    loading = options.share * alone
    if options.trace:
        trace(options.trace, step, loading)
        return
    square = np.ones((256, 256), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, Callable[[], io.DataIter | None]] = {
            "waits": lambda: Loader(lambda: time.sleep(loading)),
            "Python": lambda: Loader(repeated(spin, loading)),
            "NumPy": lambda: Loader(repeated(lambda: square @ square, loading)),
            "JPEG": lambda: images(Path(folder), loading),
        }
        contenders: dict[str, Callable[[], Any]] = {"step alone": step}
        for name, make in made.items():
            for way in ("serial", "ahead"):
                source = make()
                if source is None:
                    continue
                drawn = io.PrefetchingIter(source) if way == "ahead" else source

                def both(drawn: io.DataIter = drawn) -> None:
                    drawn.next()
                    step()

                contenders[f"{name}, {way}"] = both
        found = interleaved(contenders, options.seconds, options.rounds)
    rows = [
        {"loader": name, "ms a step": 1e3 * median(times), "cost": ratio(found, name, "step alone") - 1}
        for name, times in found.items()
    ]
    report(f"Loading takes {options.share:.0%} of a step", rows, options.json)


if __name__ == "__main__":
    main()
