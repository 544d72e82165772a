"""Checks of an operator's bodies: numbers, gradients, memory. Each yields one line a fault."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import ArrayExecError
from .naive import Array, NaiveRun, poisoned
from .trial import Trial

STEP = 1e-5  # of the central difference; not exact in float32, so that a sum that runs in float32 shows
PROBES = 16  # elements of one input that are moved
SCRATCH = 256 << 10  # bytes a body may allocate: NumPy's own casting buffers and per-channel arrays stay below
LARGE = 4 << 20  # bytes of the largest value in the example that is enlarged to see what a body allocates


def modes(trial: Trial) -> tuple[bool, ...]:
    """Training and inference where they can differ."""
    form = trial.cls.form
    bodies = (form.forward, form.backward, form.update)
    names = {name for body in bodies if body is not None for name in body.parameters}
    return (True, False) if names & {"is_train", "rng"} or form.update else (True,)


def mode_name(is_train: bool) -> str:
    """The mode in words."""
    return "training" if is_train else "inference"


def unequal(got: Mapping[str, Array], want: Mapping[str, Array], rtol: float = 0.0, atol: float = 0.0) -> str:
    """Which array differs first and by how much; empty if none. Exact to the bit without tolerances."""
    for name, expected in want.items():
        found = got.get(name)
        if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
            shown = "missing" if found is None else f"{found.dtype} {found.shape}"
            return f"{name} is {shown} instead of {expected.dtype} {expected.shape}"
        if rtol == atol == 0.0:
            same = found.tobytes() == expected.tobytes() or np.array_equal(
                found, expected, equal_nan=found.dtype.kind == "f"
            )
        else:
            same = np.allclose(found, expected, rtol, atol, equal_nan=True)
        if not same:
            with np.errstate(all="ignore"):
                gap = np.abs(found.astype(np.float64) - expected.astype(np.float64))
            place = np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
            where = ", ".join(str(int(i)) for i in place)
            return f"{name}[{where}] is {found[place]} instead of {expected[place]}"
    return ""


def check_written(trial: Trial) -> Iterator[str]:
    """Outputs, hidden outputs and gradients are written completely, whatever was in their memory; always the same."""
    for is_train in modes(trial):
        first = trial.outcome(is_train=is_train).named()
        text = unequal(trial.outcome(is_train=is_train, fill=3.0).named(), first)
        if text:
            yield f"what memory held before shows in the result ({mode_name(is_train)}): {text}"


def check_gradient(trial: Trial) -> Iterator[str]:
    """Gradients against central differences in float64, with random head gradients."""
    numbers = {trial.type(name).kind for name in trial.signature.outputs}
    if not trial.signature.head_gradient or numbers != {"f"}:
        return
    random, heads, arriving = np.random.default_rng(2), trial.heads(), set[int]()
    for kind, place in trial.signature.backward or ():
        if kind == "doutput":  # an output whose gradient backward does not read passes none on, such as a statistic
            arriving.update(place if isinstance(place, tuple) else (place,))
    for is_train in modes(trial):
        arrays = trial.arrays()
        run = trial.start(arrays, is_train)
        moved = {name: array.copy() for name, array in run.aux.items()}
        run.forward()
        found = run.backward(heads)

        def value(run: NaiveRun, moved: Mapping[str, Array]) -> float:
            run.aux.update({name: array.copy() for name, array in moved.items()})
            pairs = enumerate(zip(heads, run.forward(), strict=True))
            return sum(float(np.vdot(head, out)) for i, (head, out) in pairs if i in arriving)

        for name in trial.differentiable():
            array = arrays[name]
            places = random.permutation(array.size)[:PROBES]
            gradient = found[f"v_{name}"].reshape(-1)
            scale = 1.0 + float(np.abs(gradient).max(initial=0.0))
            for place in places:
                at = np.unravel_index(int(place), array.shape)
                here = array[at]
                array[at] = here + STEP
                above = value(run, moved)
                array[at] = here - STEP
                below = value(run, moved)
                array[at] = here
                numeric = (above - below) / (2 * STEP)
                if not abs(gradient[place] - numeric) <= 1e-5 * abs(numeric) + 2e-7 * scale:
                    where = ", ".join(str(int(i)) for i in at)
                    yield (
                        f"gradient of {name}[{where}] is {gradient[place]:.9g}, numerically {numeric:.9g} "
                        f"({mode_name(is_train)})"
                    )
                    break


def check_wants(trial: Trial) -> Iterator[str]:
    """Asking for one gradient alone, or for none, gives the same numbers as asking for all."""
    names = trial.differentiable()
    for is_train in modes(trial):
        everything = trial.outcome(is_train=is_train)
        for name in names:
            alone = trial.outcome(is_train=is_train, wants={name: "write"}).gradients
            text = unequal(alone, {name: everything.gradients[name]})
            if text:
                yield f"d{name} asked for alone differs: {text}"


class _Bound:
    """Backward of a trial bound by hand: names of its parameters beside what they are bound to."""

    def __init__(self, trial: Trial, is_train: bool, want: frozenset[str]) -> None:
        self.trial, self.run = trial, trial.start(is_train=is_train)
        self.run.forward()
        inputs, signature = trial.signature.inputs, trial.signature
        self.leaving: list[Any] = [
            poisoned(trial.shape(name), trial.type(name)) if name in want else None for name in inputs
        ]
        self.arriving = trial.heads()
        self.arguments = self.run.bind(trial.number, "backward", self.arriving, self.leaving)
        self.parameters = trial.cls.form.backward.parameters if trial.cls.form.backward else ()
        self.kinds = [kind for kind, _ in signature.backward or ()]

    def call(self) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            self.trial.op.backward(*self.arguments)
        pairs = zip(self.trial.signature.inputs, self.leaving, strict=True)
        return {f"gradient of {name}": array for name, array in pairs if array is not None}


def check_keeps(trial: Trial) -> Iterator[str]:
    """Backward reads nothing that ``keeps`` does not name, for each gradient alone and for all together."""
    names = trial.differentiable()
    for want in {frozenset([name]) for name in names} | ({frozenset(names)} if names else set()):
        for is_train in modes(trial):
            kept = set(trial.op.keeps(want))
            full = _Bound(trial, is_train, want)
            bare = _Bound(trial, is_train, want)
            for i, (name, kind) in enumerate(zip(bare.parameters, bare.kinds, strict=True)):
                if kind in ("input", "output", "hidden", "aux") and name not in kept:
                    bare.arguments[i] = None
            try:
                text = unequal(bare.call(), full.call())
            except Exception as error:
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
            if text:
                yield f"keeps({', '.join(sorted(want))}) leaves out what backward reads: {text}"


def check_inplace(trial: Trial) -> Iterator[str]:
    """Overwriting what ``inplace`` names gives the same numbers."""
    form, signature, names = trial.cls.form, trial.signature, frozenset(trial.differentiable())
    for is_train in modes(trial):
        for target, source in trial.op.inplace.items():
            if target in signature.outputs:
                run = trial.start(is_train=is_train)
                want = {target: run.forward()[signature.outputs.index(target)]}
                bound = run.bind(trial.number, "forward")
                got = {target: _laid_over(bound, form.forward.parameters, target, source)}
                if got[target] is None:
                    continue
                with np.errstate(all="ignore"):
                    trial.op.forward(*bound)
            elif target[1:] in names:
                want, over = _Bound(trial, is_train, names).call(), _Bound(trial, is_train, names)
                shared = _laid_over(over.arguments, over.parameters, target, source)
                if shared is None:
                    continue
                over.leaving[signature.inputs.index(target[1:])] = shared
                got = over.call()
            else:
                continue
            text = unequal(got, want)
            if text:
                yield f"inplace {target} over {source} is not safe ({mode_name(is_train)}): {text}"


def _laid_over(bound: list[Any], parameters: tuple[str, ...], target: str, source: str) -> Array | None:
    """Bind ``target`` to the bytes of ``source``; None where they are not as many, or one is absent."""
    if target not in parameters or source not in parameters:
        return None
    written, read = bound[parameters.index(target)], bound[parameters.index(source)]
    if written is None or read is None or written.nbytes != read.nbytes:
        return None
    bound[parameters.index(source)] = read = read.copy()
    bound[parameters.index(target)] = read.reshape(-1).view(written.dtype).reshape(written.shape)
    return bound[parameters.index(target)]


def check_view(trial: Trial) -> Iterator[str]:
    """Where ``is_view`` says so, the output is the first input's bytes and the gradient is the head gradient's."""
    for is_train in (True, False):
        if not trial.op.is_view(is_train):
            continue
        arrays, heads, name = trial.arrays(), trial.heads(), trial.signature.inputs[0]
        result = trial.outcome(arrays, is_train)
        if len(result.outputs) != 1 or result.outputs[0].tobytes() != arrays[name].tobytes():
            yield f"is_view({is_train}) holds, but the output is not the bytes of {name}"
        if name in trial.differentiable() and result.gradients[name].tobytes() != heads[0].tobytes():
            yield f"is_view({is_train}) holds, but the gradient of {name} is not the bytes of the head gradient"


def check_layout(trial: Trial) -> Iterator[str]:
    """Inputs that are not C-contiguous give the same numbers up to the order of sums."""
    arrays = trial.arrays()
    want = trial.outcome(arrays).named()
    strided = {name: np.repeat(array[..., None], 2, axis=-1)[..., 0] for name, array in arrays.items()}
    turned = {name: np.asfortranarray(array) for name, array in arrays.items()}
    for title, changed in (("strided", strided), ("Fortran-ordered", turned)):
        text = unequal(trial.outcome(changed).named(), want, 1e-12, 1e-13)
        if text:
            yield f"{title} inputs give other numbers: {text}"


def check_twice(trial: Trial) -> Iterator[str]:
    """One variable bound to two inputs has the sum of their gradients."""
    names = trial.differentiable()
    pairs = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if trial.shape(a) == trial.shape(b) and trial.type(a) == trial.type(b)
    ]
    for first, second in pairs[:3]:
        arrays = trial.arrays()
        arrays[second] = arrays[first]
        apart = trial.outcome(arrays).gradients
        together = Trial(trial.cls, trial.example, trial.dtype, twice=(first, second))
        found = together.outcome(arrays).gradients
        text = unequal(found, {first: apart[first] + apart[second]})
        if text:
            yield f"one variable as {first} and {second}: {text}"


def check_empty(trial: Trial) -> Iterator[str]:
    """A batch of zero rows, and an input whose dim is 0, work or are refused by an error of the engine."""
    stated = {name: tuple(sample.shape) for name, sample in trial.samples.items()}
    axes = [(name, shape, axis) for name, shape in stated.items() for axis in range(len(shape))]
    for given in (None, *({name: (*shape[:axis], 0, *shape[axis + 1 :])} for name, shape, axis in axes)):
        try:
            small = with_rows(trial, 0) if given is None else Trial(trial.cls, trial.example, trial.dtype, given)
            if small is not None:
                small.outcome()
        except ArrayExecError:
            pass
        except Exception as error:
            fact = f"{type(error).__name__}: {error}".partition("\n")[0]
            yield f"{'a batch of zero rows' if given is None else given}: {fact}"


def with_rows(trial: Trial, rows: int, dtype: Any = None) -> Trial | None:
    """The example with another number of rows in its first input (and in the inputs that must follow)."""
    axis = trial.op.batch_axis
    if not trial.signature.inputs or not trial.samples or len(trial.shape(trial.signature.inputs[0])) <= axis:
        return None
    first = next(name for name in trial.signature.inputs if name in trial.samples)
    length = trial.shape(first)[axis]
    stated = {name: tuple(sample.shape) for name, sample in trial.samples.items()}
    places = {  # where an input has the rows: on that axis or in front; None where they do not show
        name: next((i for i in (axis, 0) if i < len(shape) and shape[i] == length), None)
        for name, shape in stated.items()
    }

    def other(name: str, place: int, dim: Any) -> tuple[Any, ...]:
        return (*stated[name][:place], dim, *stated[name][place + 1 :])

    alike = {name: other(name, place, rows) for name, place in places.items() if place is not None}
    free = {name: other(name, 0, UNKNOWN) for name in stated if axis and name not in alike and stated[name]}
    for shapes in ({first: alike[first]}, alike, {**alike, **free}):
        try:
            changed = Trial(trial.cls, trial.example, dtype or trial.dtype, shapes)
            for name in (*changed.signature.arguments, *changed.signature.outputs, *changed.signature.hidden):
                changed.shape(name)
            return changed
        except ArrayExecError:
            continue
    return None


def batch_inputs(trial: Trial) -> set[str] | None:
    """Inputs that carry the rows of the first output: those whose first dim follows it. None if nothing follows."""
    rows = trial.shape(trial.signature.outputs[0])[:1]
    if not trial.signature.inputs:
        return None
    other = with_rows(trial, trial.shape(trial.signature.inputs[0])[trial.op.batch_axis] + 1)
    if other is None or not rows:
        return None
    return {
        name
        for name in trial.signature.inputs
        if trial.shape(name)[:1] != other.shape(name)[:1] and trial.shape(name)[:1] == rows
    }


def check_rows(trial: Trial) -> Iterator[str]:
    """``rows``: the batch run in two parts gives the same rows; gradients of other inputs are sums over the parts."""
    if trial.op.rows is None:
        return
    batch = batch_inputs(trial)
    total = trial.shape(trial.signature.outputs[0])[0]
    if not batch or total < 2:
        return
    arrays, heads = trial.arrays(), trial.heads()
    for is_train in modes(trial):
        whole = trial.outcome(arrays, is_train)
        for name in trial.differentiable():
            if trial.op.rows == "parallel" and name not in batch and whole.gradients[name].any():
                yield f"rows = 'parallel', but the gradient of {name} is a sum over the rows; say rows = 'sum'"
                return
        cuts, parts = ((0, total // 2), (total // 2, total)), []
        for start, stop in cuts:
            shapes = {name: (stop - start, *trial.shape(name)[1:]) for name in batch}
            part = Trial(trial.cls, trial.example, trial.dtype, shapes)
            piece = {name: array[start:stop] if name in batch else array for name, array in arrays.items()}
            parts.append(part.outcome(piece, is_train, None, [head[start:stop] for head in heads], first_row=start))
        joined = {f"output {i}": np.concatenate([part.outputs[i] for part in parts]) for i in range(len(whole.outputs))}
        for name in trial.differentiable():
            pieces = [part.gradients[name] for part in parts]
            joined[f"gradient of {name}"] = np.concatenate(pieces) if name in batch else pieces[0] + pieces[1]
        want = {name: array for name, array in whole.named().items() if name in joined}
        text = unequal(joined, want, 1e-10, 1e-12)
        if text:
            yield f"rows = '{trial.op.rows}' does not hold ({mode_name(is_train)}): {text}"


def check_scratch(trial: Trial) -> Iterator[str]:
    """The bodies allocate no memory that grows with the batch: it is bound, as outputs, hidden outputs or Temp."""
    names = (*trial.signature.arguments, *trial.signature.outputs, *trial.signature.hidden)
    if not trial.samples:
        return
    largest = max(int(np.prod(trial.shape(name))) * 4 for name in names)
    first = next(name for name in trial.signature.inputs if name in trial.samples)
    factor = -(-LARGE // max(largest, 1))
    axis = trial.op.batch_axis
    large = with_rows(trial, (*trial.shape(first), 1)[axis] * factor, np.float32)
    if large is None:
        return
    for is_train in modes(trial):
        run = large.start(is_train=is_train)
        run.forward()
        calls = [("forward", large.op.forward, run.bind(large.number, "forward"))]
        if large.signature.update is not None and is_train:
            calls.append(("update", large.op.update, run.bind(large.number, "update")))
        want = frozenset(large.differentiable())
        if large.signature.backward is not None and want:
            calls.append(("backward", large.op.backward, _Bound(large, is_train, want).arguments))
        for title, body, bound in calls:
            used = _allocated(body, bound)
            if used > SCRATCH:
                limit = f"at most {SCRATCH >> 10} KiB may be made on the way, whatever the batch"
                cure = "bind it as Temp and write it with out=, or go over the rows in blocks"
                yield f"{title} allocates {used >> 10} KiB of its own ({mode_name(is_train)}); {limit}: {cure}"


def _allocated(body: Any, bound: list[Any]) -> int:
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        with np.errstate(all="ignore"):
            body(*bound)  # once unmeasured: what is made on first use is not the body's
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            body(*bound)
            return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
