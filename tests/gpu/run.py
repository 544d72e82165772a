"""The check for a machine with a GPU: operators, recorded networks, memory, streams and NCCL, both examples.

    python tests/gpu/run.py                       # in the root of the repository; at most 5 minutes
    python tests/gpu/run.py --context strict      # the same checks on the tests' own device, to try this script

Prints a table, writes one JSON file (--json PATH, default gpu-check.json) and ends with exit code 0 only if
everything passed. A section that does not fit into --seconds counts as failed: it was not run. NCCL needs the wheel
nvidia-nccl-cu12 or nvidia-nccl-cu13, and for its ranks "arrayexec[mpi]".
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from arrayexec.context import Context, asnumpy, copyto, cpu, gpu, num_gpus  # noqa: E402
from tests.gpu.compare import LIMITS, compare, examples, run_on  # noqa: E402

Row = dict[str, Any]
"""name, passed, and what else there is to say: error (the worst one), limit, text."""


def operator_rows(context: Context) -> Iterator[Row]:
    """Every operator's examples, forward in both modes and backward, against the processor."""
    for title, cls, example in examples():
        for dtype, limit in LIMITS.items():
            with failing_row(f"{title} {dtype}") as row:
                errors = compare(cls, example, context, dtype)
                worst = max(errors, key=lambda name: errors[name])
                row |= {"passed": errors[worst] <= limit, "error": errors[worst], "limit": limit, "text": worst}
            yield row


def recorded_rows(context: Context) -> Iterator[Row]:
    """Operators and networks recorded from MXNet, through the planned executor."""
    from tests.conformance.test_operators import DIFFERENT, READY, check

    run = run_on(context)
    for case in READY:
        if case["name"] not in DIFFERENT:
            with failing_row(case["name"]) as row:
                check(case, run)
                row["passed"] = True
            yield row


def memory_rows(context: Context) -> Iterator[Row]:
    """Uploads larger and smaller than the staging blocks; memory by role; a user's stream before and after."""
    random = np.random.default_rng(0)
    with failing_row("uploads of 1 byte to 40 MB come back") as row:
        good = True
        for size in (1, 3, 1 << 20, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 40_000_000):
            host = random.integers(0, 256, size, np.uint8)
            there = context.empty(host.shape, host.dtype, "input")
            copyto(there, host)
            host_now, host[:] = host.copy(), 0  # the staged copy must not see this
            good &= bool(np.array_equal(asnumpy(there), host_now))
        row["passed"] = good
    yield row
    with failing_row("a hundred uploads in a row keep their order") as row:
        there = context.zeros((100, 1 << 18), np.float32, "input")
        for i in range(100):
            copyto(there[i], np.full(1 << 18, i, np.float32))
        row["passed"] = bool((asnumpy(there) == np.arange(100, dtype=np.float32)[:, None]).all())
    yield row
    with failing_row("strided and cast copies") as row:
        there = context.zeros((64, 48), np.float16, "input")
        host = random.integers(0, 100, (48, 64))
        copyto(there.transpose(), host)
        row["passed"] = bool(np.array_equal(asnumpy(there), host.T.astype(np.float16)))
    yield row
    with failing_row("memory lies at multiples of 256 bytes") as row:
        blocks = [context.allocate(size, "arena") for size in (1, 100, 1000, 100_000)]
        row["passed"] = all(context.device.address(block) % 256 == 0 for block in blocks)
    yield row


def stream_rows(context: Context) -> Iterator[Row]:
    """Forward between writes and reads on a stream of the user's, many times (R10)."""
    if context.device_type != "gpu":
        return
    import cupy

    import arrayexec as ax

    with failing_row("300 forwards between the user's writes and reads on his own stream") as row:
        symbol = ax.sym.FullyConnected(ax.sym.Variable("data"), num_hidden=1024, no_bias=True, name="fc")
        executor = symbol.simple_bind(context, data=(1024, 1024))
        copyto(executor.arg_dict["fc_weight"], np.eye(1024))
        mine = cupy.cuda.Stream(non_blocking=True)
        sums = cupy.zeros(300)
        mine.wait_event(cupy.cuda.get_current_stream().record())
        with mine:
            for i in range(300):
                executor.arg_dict["data"].fill(i)
                (output,) = executor.forward(is_train=False)
                sums[i] = abs(output - i).max()
        wrong = int(np.count_nonzero(cupy.asnumpy(sums, stream=mine)))
        row |= {"passed": wrong == 0, "text": f"{wrong} wrong"}
    yield row


def nccl_rows(context: Context) -> Iterator[Row]:
    """NCCL over the devices of this process, one rank alone, two ranks on one GPU, and on two where there are two."""
    real = ["real"] if context.device_type == "gpu" else []
    if not real:
        from tests.parallel import fake_nccl

        fake_nccl.install(2)
    from arrayexec.comm.nccl import DeviceGroup
    from tests.parallel.mpi_helper import run_ranks

    count = num_gpus()
    for contexts in [[gpu(0)], [gpu(i) for i in range(count)]][: 1 + (count > 1)]:
        with failing_row(f"a hundred sums over {len(contexts)} GPU(s) keep their order") as row:
            group = DeviceGroup(contexts)
            arrays = [where.zeros((1 << 20,), np.float32, "gradient") for where in contexts]
            for _ in range(100):  # x → (x + 1) summed over n devices
                for where, array in zip(contexts, arrays, strict=True):
                    with where.enter():
                        array += 1
                        array *= 0.5 ** (len(contexts) > 1)
                group.allreduce(arrays)
            group.wait(60)
            n, expected = len(contexts), 0.0
            for _ in range(100):
                expected = float(np.float32((expected + 1) * 0.5 ** (n > 1) * n))
            row["passed"] = all(bool(np.allclose(asnumpy(array), expected, rtol=1e-5)) for array in arrays)
        yield row
    for ranks, arguments in ((1, ["nccl", "own"]), (2, ["auto", "one"]), (2, ["nccl", "own"]))[: 2 + (count > 1)]:
        with failing_row(f"mpirun -n {ranks} nccl_ranks.py {' '.join(arguments)}") as row:
            patient = {"PYTHONWARNINGS": "default", "ARRAYEXEC_TIMEOUT": "20"}  # kernels are compiled on first use
            run = run_ranks("nccl_ranks.py", ranks, *arguments, *real, timeout=90, env=patient)
            row |= {"passed": run.code == 0, "text": (run.out if run.code == 0 else run.err).strip()[-400:]}
        yield row


def update_rows(context: Context) -> Iterator[Row]:
    """Every optimizer, all parameters at once, against the processor; with 16 bits, too."""
    from arrayexec.executor import allocate_segment
    from arrayexec.train import optimizer

    shapes = {"a_weight": (300, 1000), "a_bias": (300,), "b_weight": (33, 7), "b_gamma": (33,), "b_beta": (33,)}
    for name in sorted(optimizer.Optimizer.opt_registry):
        for dtype, limit in (("float32", 1e-5), ("float16", 2e-3)):
            with failing_row(f"{name} {dtype}") as row:
                found: list[dict[str, Any]] = []
                for place in (cpu(), context):
                    rows = name == "groupadagrad"
                    specs = {key: (shape, dtype) for key, shape in shapes.items() if len(shape) == 2 or not rows}
                    weights, grads = (allocate_segment(place, role, specs)[1] for role in ("parameter", "gradient"))
                    options = {"multi_precision": dtype == "float16", "clip_gradient": 2.0, "wd": 0.0 if rows else 0.01}
                    updater = optimizer.get_updater(optimizer.create(name, clip_global_norm=500.0, **options))
                    random = np.random.default_rng(1)
                    for step in range(4):
                        for key, array in grads.items():
                            if step == 0:
                                copyto(weights[key], random.normal(size=array.shape))
                            copyto(array, random.normal(size=array.shape))
                        updater.update_all(list(specs), list(grads.values()), list(weights.values()))
                    found.append({key: asnumpy(array).astype(np.float64) for key, array in weights.items()})
                row["error"] = max(float(abs(found[0][key] - found[1][key]).max()) for key in found[0])
                row["passed"] = row["error"] <= limit
            yield row


def example_rows(context: Context) -> Iterator[Row]:
    """Both examples with their arrays on the device."""
    for command, good in (
        (["examples/train.py"], lambda last: last["test_accuracy"] >= 0.985),
        (["examples/train_names.py", "--seconds", "60"], lambda last: last["nats_per_char"] < last["ngram4"]),
    ):
        with failing_row(" ".join(command)) as row:
            run = subprocess.run(
                [sys.executable, *command, "--context", context.device_type],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=150,
            )
            lines = run.stdout.strip().splitlines() or [""]
            row["text"] = lines[-1] if run.returncode == 0 else run.stderr.strip()[-400:]
            last = {key: float(value) for key, _, value in (word.partition("=") for word in lines[-1].split()) if value}
            row["passed"] = run.returncode == 0 and bool(good(last))
        yield row


SECTIONS = {
    "operators": operator_rows,
    "recorded": recorded_rows,
    "memory": memory_rows,
    "updates": update_rows,
    "streams": stream_rows,
    "nccl": nccl_rows,
    "examples": example_rows,
}


@contextlib.contextmanager
def failing_row(name: str) -> Iterator[Row]:
    """A row that an exception turns into a failure with its text."""
    row: Row = {"name": name, "passed": False}
    begun = time.perf_counter()
    try:
        yield row
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        row |= {"passed": False, "text": f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"}
    row["seconds"] = round(time.perf_counter() - begun, 3)


def machine(context: Context) -> dict[str, Any]:
    """What the numbers were made with."""
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "context": str(context),
        "python": platform.python_version(),
        "system": platform.platform(),
        "numpy": np.__version__,
    }
    if context.device_type == "gpu":
        cupy = context.xp
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(context.device_id)
        found |= {
            "cupy": cupy.__version__,
            "device": properties["name"].decode(),
            "compute capability": f"{properties['major']}.{properties['minor']}",
            "memory": properties["totalGlobalMem"],
            "driver": runtime.driverGetVersion(),
            "runtime": runtime.runtimeGetVersion(),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--context", default="gpu", choices=["gpu", "strict", "cpu"])
    parser.add_argument("--json", default="gpu-check.json")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    options = parser.parse_args()
    begun = time.perf_counter()
    if options.context == "strict":
        from tests.strict_device import strict

        context = strict(0)
    else:
        context = gpu(0) if options.context == "gpu" else Context("cpu", 1)
    report: dict[str, Any] = {"machine": machine(context), "sections": {}}
    for key, value in report["machine"].items():
        print(f"{key:20s} {value}")
    for name in options.sections:
        rows, since = [], time.perf_counter()
        for row in SECTIONS[name](context):
            rows.append(row)
            if not row["passed"]:
                print(f"FAILED  {name}: {row['name']}: {row.get('text', '')} {row.get('error', '')}", flush=True)
            if time.perf_counter() - begun > options.seconds:
                rows.append({"name": "the rest", "passed": False, "text": f"not run within {options.seconds:g} s"})
                break
        report["sections"][name] = {"seconds": round(time.perf_counter() - since, 1), "rows": rows}
    report["seconds"] = round(time.perf_counter() - begun, 1)
    report["passed"] = all(row["passed"] for section in report["sections"].values() for row in section["rows"])
    print(f"\n{'section':12s} {'passed':>8s} {'failed':>8s} {'worst error':>12s} {'seconds':>8s}")
    for name, section in report["sections"].items():
        rows = section["rows"]
        good = sum(row["passed"] for row in rows)
        worst = max((row["error"] for row in rows if "error" in row), default=None)
        shown = "" if worst is None else f"{worst:.2e}"
        print(f"{name:12s} {good:8d} {len(rows) - good:8d} {shown:>12s} {section['seconds']:8.1f}")
    Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{'passed' if report['passed'] else 'FAILED'} in {report['seconds']} s; written to {options.json}")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
