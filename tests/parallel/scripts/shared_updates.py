"""Updates in parts (ZeRO-1), local steps and sums in 16 bits without shared memory, against plain NumPy."""

import numpy

import arrayexec as ax
from arrayexec import comm
from arrayexec.comm import GradientBuckets
from arrayexec.comm.stages import narrow, widen
from arrayexec.errors import CollectiveError
from arrayexec.executor import allocate_segment
from arrayexec.parallel.gradient_sync import LocalSteps, ShardedUpdate
from arrayexec.train import optimizer
from tests.parallel.refused import refused

ranks = comm.init()
rank, size = ranks.rank, ranks.size
shapes = {"fc2_bias": (11,), "fc2_weight": (11, 300), "fc1_bias": (300,), "fc1_weight": (300, 170)}
specs = {name: (shape, "f4") for name, shape in shapes.items()}


def value(name: str, step: int, of: int) -> numpy.ndarray:
    return numpy.random.default_rng([step, of, *name.encode()]).standard_normal(shapes[name]).astype("f4")


def rule() -> optimizer.Optimizer:
    """Weight decay is of weights alone, so a piece must know whose it is."""
    return optimizer.create("adam", learning_rate=0.01, wd=0.1, rescale_grad=1 / size)


def segment(role: str) -> tuple[numpy.ndarray, dict[str, numpy.ndarray]]:
    with ax.cpu().allocator(lambda nbytes, _: ranks.allocate(nbytes, role)):
        block, arrays = allocate_segment(ax.cpu(), role, specs)
    return block.view("f4"), arrays


def train(sharded: bool) -> tuple[dict[str, numpy.ndarray], int]:
    block, gradients = segment("gradient")
    _, parameters = segment("gradient")
    for name, array in parameters.items():
        array[...] = value(name, 99, 0)
    buckets = GradientBuckets(ranks, gradients, [block], sharded=sharded)
    if sharded:
        update = ShardedUpdate(ranks, buckets, gradients, parameters, rule())
        states = update._updater.states
    else:
        updater = optimizer.get_updater(rule())
        states = updater.states
    for step in range(4):
        for name, array in gradients.items():
            if step == 2 and name == "fc2_bias":  # nobody uses it: neither momentum nor decay moves it
                continue
            array[...] = value(name, step, rank)
            buckets.ready(name)
        used = buckets.finish()
        assert ("fc2_bias" in used) == (step != 2)
        if sharded:
            update(used)
        else:
            for name in used:
                updater(name, gradients[name], parameters[name])
    held = sum(array.nbytes for state in states.values() for array in state.values())
    return {name: array.copy() for name, array in parameters.items()}, held


whole, bytes_whole = train(False)
parts, bytes_parts = train(True)
for name in shapes:
    assert whole[name].tobytes() == parts[name].tobytes(), name
total = sum(ranks.allgather_object(bytes_parts)[: ranks.local_size])
assert total == bytes_whole, (total, bytes_whole)
assert bytes_parts < 0.6 * bytes_whole

# parameters of each rank's own memory cannot be given to others
block, gradients = segment("gradient")
buckets = GradientBuckets(ranks, gradients, [block], sharded=True)
said = refused(CollectiveError, ShardedUpdate, ranks, buckets, gradients, whole, rule())
assert said == "ShardedUpdate: parameter 'fc2_bias' must lie in a shared segment, but it does not", said

# what needs lengths of whole parameters, or gradients, cannot be done in parts
for other in (optimizer.create("lars"), optimizer.create("sgd", clip_global_norm=1.0)):
    parameters = segment("gradient")[1]
    said = refused(CollectiveError, ShardedUpdate, ranks, buckets, gradients, parameters, other)
    assert said == (
        "ShardedUpdate: the optimizer must move each element by its own gradient, but "
        f"{type(other).__name__} needs lengths of whole parameters or gradients"
    ), said

# local steps: means every third step, and a hook that sees them
block, parameters = segment("gradient")
for name, array in parameters.items():
    array[...] = value(name, 7, rank)
seen = []
local = LocalSteps(ranks, parameters, [block], 3, lambda name, mean: seen.append((name, float(mean.ravel()[0]))))
assert [local.step() for _ in range(3)] == [False, False, True]
for name, array in parameters.items():
    exact = sum(value(name, 7, r).astype("f8") for r in range(size)) / size
    assert numpy.abs(array - exact).max() < 1e-6
assert [name for name, _ in seen] == list(shapes)
assert all(other == [list(pair) for pair in seen] for other in ranks.allgather_object(seen))

# 16 bits on the way, 32 in the sum, and no shared memory; several on their way at once
for kind in ("float16", "bfloat16"):
    gradients = {name: value(name, 3, rank) for name in shapes}
    buckets = GradientBuckets(ranks, gradients, transport=kind)
    assert all(place is None for place in map(ranks.place, gradients.values()))
    for name in gradients:
        buckets.ready(name)
    buckets.finish()
    for name, array in gradients.items():
        total = widen(narrow(value(name, 3, 0).ravel(), kind), kind)
        for r in range(1, size):
            total += widen(narrow(value(name, 3, r).ravel(), kind), kind)
        assert array.ravel().tobytes() == widen(narrow(total, kind), kind).tobytes(), (kind, name)

# rounding to nearest, ties to even; what is no number, or too large
numbers = numpy.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, numpy.nan, numpy.inf, -numpy.inf, -0.0, 3.4e38], "f4")
numpy.testing.assert_array_equal(
    widen(narrow(numbers, "bfloat16"), "bfloat16"),
    numpy.array([1.0, 1.0, 1 + 2**-6, numpy.nan, numpy.inf, -numpy.inf, -0.0, numpy.inf], "f4"),
)
every = numpy.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], numpy.uint32).view("f4")
assert numpy.isnan(widen(narrow(every, "bfloat16"), "bfloat16")).all()
if rank == 0:
    print("all the same")
