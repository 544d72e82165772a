"""The rooms have space for what comes: fusion, layouts, shards and shared windows pass through the plan as it is.

One proof each, by a rewrite of the draft (or an allocator) that lives in this file: nothing here is shipped as speed.
"""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import arrayexec as ax
from arrayexec import sym
from arrayexec.executor import bind
from arrayexec.ops.expression import Pointwise
from arrayexec.plan import Draft, Step
from arrayexec.plan.rewrite import operator_step
from arrayexec.registry import Op, make_op


def bound(
    symbol: Any, shapes: dict[str, tuple[int, ...]], grad_req: str = "null", seed: int = 0, **options: Any
) -> Any:
    """An executor on random arguments, the same for the same seed."""
    rng = np.random.default_rng(seed)
    arguments, _, aux = symbol.infer_shape(**shapes)
    args = {
        n: rng.uniform(-1, 1, s).astype(np.float32) for n, s in zip(symbol.list_arguments(), arguments, strict=True)
    }
    states = {
        n: rng.uniform(0.5, 1, s).astype(np.float32) for n, s in zip(symbol.list_auxiliary_states(), aux, strict=True)
    }
    grads = {n: np.zeros_like(a) for n, a in args.items()}
    return bind(symbol, ax.cpu(), args, grads, grad_req, states, **options)


# --- 1. an elementwise chain in one compiled loop ------------------------------------------------------------------


def compiled_chain(steps: list[Step]) -> Any:
    """One numba loop for a chain of elementwise steps, written from the operators' parsed formulas."""
    numba = pytest.importorskip("numba", reason="numba is not installed: the fused chain cannot be compiled")
    expression = "x"
    for step in steps:
        op: Any = step.op
        attributes = {name: repr(getattr(op, name)) for name in op.form.attributes}

        class Put(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name, text: str = expression, known: Any = attributes) -> ast.AST:
                return ast.parse(known.get(node.id, text if node.id == "data" else f"np.{node.id}"), mode="eval").body

        expression = f"({ast.unparse(Put().visit(ast.parse(ast.unparse(op.expression.forward), mode='eval').body))})"
    source = (
        f"def fused(data, out):\n    for i in range(data.size):\n        x = data[i]\n        out[i] = {expression}\n"
    )
    space: dict[str, Any] = {"np": np}
    exec(source, space)
    return numba.njit(space["fused"])


class FusedStep(Op):
    """Stands where an operator stands in a step: its body runs the compiled loop."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.form = make_op("tanh", {}).form

    def forward(self, data: Any, out: Any) -> None:
        self.loop(data.reshape(-1), out.reshape(-1))


def fuse_chain(draft: Draft) -> Draft:
    """Put a run of elementwise steps, each reading only the last one's result, into one step."""
    run = [s for s in draft.steps if isinstance(s.op, Pointwise) and len(s.reads) == 1]
    first, last = draft.steps.index(run[0]), draft.steps.index(run[-1])
    assert draft.steps[first : last + 1] == run
    source, target = run[0].reads[0], run[-1].bindings[run[-1].op.form.forward.parameters.index("out")]  # type: ignore[union-attr]
    op = FusedStep(compiled_chain(run))
    fused = Step("forward", "forward", "fused chain", op, (source, target), (source,), (target,))  # type: ignore[arg-type]
    draft.steps[first : last + 1] = [fused]
    return draft


def test_elementwise_chain_fused_by_numba() -> None:
    net = sym.tanh(sym.Variable("data") * 3.0 + 0.5) * 2.0
    plain = bound(net, {"data": (7, 33)})
    fused = bound(net, {"data": (7, 33)}, rewrites=[fuse_chain])
    want, got = plain.forward()[0], fused.forward()[0]
    assert [s.name for s in fused.plan("inference").steps] == ["fused chain"]
    assert len(plain.plan("inference").steps) > 3
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert fused.plan("inference").arena_bytes <= plain.plan("inference").arena_bytes


# --- 2. a convolution block in NHWC, NCHW at the border ------------------------------------------------------------


def to_nhwc(draft: Draft) -> Draft:
    """Plan convolution, norm and activation on NHWC values; transposes stand at the border, weights included."""
    steps: list[Step] = []
    moved: dict[int, int] = {}

    def transposed(value: int, axes: tuple[int, ...], back: int | None = None) -> int:
        old = draft.values[value]
        target = draft.add(f"{old.name} nhwc", tuple(old.shape[a] for a in axes), old.dtype) if back is None else back
        op = make_op("transpose", {"axes": axes})
        steps.append(operator_step(draft, op, "forward", {"data": value, "out": target}, f"layout of {old.name}"))
        return target

    block = [s for s in draft.steps if s.op is not None]
    for step in block:
        op: Any = step.op
        values: dict[str, Any] = dict(zip(op.form.forward.parameters, step.bindings, strict=True))
        data, out = values["data"], values["out"]
        if data not in moved:
            moved[data] = transposed(data, (0, 2, 3, 1))
        n, c, h, w = draft.values[out].shape
        moved[out] = draft.add(f"{draft.values[out].name} nhwc", (n, h, w, c), draft.values[out].dtype)
        if op.form.name == "Convolution":
            op = replace(op, layout="NHWC")
            values["weight"] = transposed(values["weight"], (0, 2, 3, 1))
        elif op.form.name == "BatchNorm":
            op = replace(op, axis=3)
        values |= {"data": moved[data], "out": moved[out]}
        steps.append(operator_step(draft, op, "forward", values, step.name, node=step.node))
    transposed(moved[out], (0, 3, 1, 2), back=out)
    draft.steps = steps
    return draft


def test_convolution_block_planned_in_nhwc() -> None:
    net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=6, name="conv")
    net = sym.Activation(sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="relu", name="relu")
    shapes = {"data": (2, 3, 8, 9)}
    plain, other = bound(net, shapes), bound(net, shapes, rewrites=[to_nhwc])
    want, got = plain.forward()[0], other.forward()[0]
    assert got.shape == want.shape == (2, 6, 8, 9)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    inner = [v for v in other.plan("inference").values if v.name.endswith("nhwc")]
    assert [v.shape[-1] for v in inner] == [3, 6, 3, 6, 6]


# --- 3. two row shards that meet at a batch norm ---------------------------------------------------------------------

SHARDS = 2


def shard_rows(draft: Draft) -> Draft:
    """Cut steps of row-wise operators in two lanes; others, such as batch norm, see whole values between them.

    Gradients that sum over rows go to a slot a shard and are added in slot order.
    """
    batch = draft.values[draft.arguments["data"]].shape[0]
    steps: list[Step] = []
    views: dict[tuple[int, int], int] = {}

    def part(value: int, shard: int) -> int:
        whole = draft.values[value]
        if (value, shard) not in views:
            rows = batch // SHARDS
            shape = (rows, *whole.shape[1:])
            offset = shard * rows * (whole.nbytes // batch)
            views[value, shard] = draft.add(f"{whole.name} rows {shard}", shape, whole.dtype, base=value, offset=offset)
        return views[value, shard]

    for step in draft.steps:
        op: Any = step.op
        if op is None or op.rows is None or step.kind == "update":
            steps.append(step)
            continue
        parameters = getattr(op.form, step.kind).parameters
        values = dict(zip(parameters, step.bindings, strict=True))
        slots: dict[str, list[int]] = {}
        lanes: list[Step] = []
        for shard in range(SHARDS):
            mine: dict[str, Any] = {}
            for name, value in values.items():
                if not isinstance(value, int) or name in getattr(op.form, step.kind).temps:
                    continue
                shape = draft.values[value].shape
                by_rows = name in ("data", "out", "label") or name in ("ddata", "dout")
                if by_rows and shape[0] == batch:
                    mine[name] = part(value, shard)
                elif value in step.writes:
                    slot = draft.add(f"{draft.values[value].name} slot {shard}", shape, draft.values[value].dtype)
                    slots.setdefault(name, []).append(slot)
                    mine[name] = slot
                else:
                    mine[name] = value
            lanes.append(
                operator_step(draft, op, step.kind, mine, step.name, phase=step.phase, node=step.node, lane=shard)
            )
        steps += lanes
        for name, numbers in slots.items():
            target: Any = values[name]
            for place, slot in enumerate(numbers):
                kind = "copy" if place == 0 else "add"
                steps.append(Step(kind, step.phase, f"sum of {name}", None, (target, slot), (slot,), (target,)))
    draft.steps = steps
    return draft


def test_two_row_shards_meet_at_a_batch_norm() -> None:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=16, name="fc1")
    net = sym.Activation(sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="tanh", name="act")
    net = sym.FullyConnected(net, num_hidden=5, name="fc2")
    head = np.random.default_rng(1).uniform(-1, 1, (12, 5)).astype(np.float32)

    def run(**options: Any) -> tuple[np.ndarray, dict[str, np.ndarray], Any]:
        executor = bound(net, {"data": (12, 7)}, "write", **options)
        output = executor.forward(True)[0].copy()
        executor.backward(head)
        return output, {n: g.copy() for n, g in executor.grad_dict.items()}, executor

    whole, whole_gradients, _ = run()
    serial, serial_gradients, executor = run(rewrites=[shard_rows])
    both = threading.Barrier(2, timeout=20)  # neither thread works before the other is there, too
    started: list[int] = []
    with ThreadPoolExecutor(2, initializer=lambda: started.append(both.wait())) as threads:
        threaded, threaded_gradients, _ = run(rewrites=[shard_rows], threads=threads)
    assert sorted(started) == [0, 1]
    lanes = {s.lane for s in executor.plan().steps if s.op is not None and s.op.form.name == "FullyConnected"}
    assert lanes == {0, 1}
    assert {s.lane for s in executor.plan().steps if s.op is not None and s.op.form.name == "BatchNorm"} == {-1}
    assert np.array_equal(serial, threaded)
    np.testing.assert_allclose(serial, whole, rtol=1e-5, atol=1e-6)
    for name, gradient in serial_gradients.items():
        assert np.array_equal(gradient, threaded_gradients[name]), name
        np.testing.assert_allclose(gradient, whole_gradients[name], rtol=1e-4, atol=1e-5)
