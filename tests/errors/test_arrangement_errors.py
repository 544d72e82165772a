"""Refusals of padding, order, selection, look-ups, running sums and constants: their whole texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("pad", "order", "select", "gather", "cumsum", "constant", "index", "reduce", "moments", "rnn_parameters")
RECORDER = Recorder(Path(__file__).parent / "texts_arrangement.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

Var = sym.Variable
A, B, C = Var("a"), Var("b"), Var("c")


def refused(symbol: Callable[[], Any], *, types: bool = False, **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: (symbol().infer_type if types else symbol().infer_shape)(**known)


def ran(symbol: Callable[[], Any], **arrays: Any) -> Callable[[], Any]:
    """A case: make the symbol, bind these values and run forward."""
    values = {name: np.array(value, np.float32) for name, value in arrays.items()}
    return lambda: symbol().bind(ax.cpu(), values, grad_req="null").forward()


def bound(symbol: Callable[[], Any], **dims: Any) -> Callable[[], Any]:
    """A case: make the symbol and bind arrays of these dims, which may be 0 there."""
    return lambda: symbol().bind(ax.cpu(), {name: np.zeros(shape, np.float32) for name, shape in dims.items()})


def padded(mode: str, *width: int) -> Any:
    return sym.Pad(A, mode=mode, pad_width=(0, 0, 0, 0, *width), name="n")


cases(
    pad_width=lambda: sym.Pad(A, mode="edge", pad_width=(0, 0, 1, 1), name="n"),
    pad_reflect=refused(lambda: padded("reflect", 2, 0, 0, 0), a=(1, 1, 2, 3)),
    pad_edge=bound(lambda: padded("edge", 1, 1, 0, 0), a=(1, 1, 0, 3)),
    tile_reps=lambda: sym.tile(A, reps=(2, 0), name="n"),
    tile_out=refused(lambda: sym.tile(A, reps=(2,), name="n") + B, b=(2, 3)),
    repeat_count=lambda: sym.repeat(A, repeats=0, name="n"),
    repeat_out=refused(lambda: sym.repeat(A, repeats=2, axis=1, name="n") + B, b=(2, 3)),
    reverse_axes=refused(lambda: sym.reverse(A, axis=(0, -2), name="n"), a=(2, 3)),
    stack_count=lambda: sym.stack(num_args=0, name="n"),
    stack_axis=refused(lambda: sym.stack(A, B, axis=3, num_args=2, name="n"), a=(2, 3)),
)

cases(
    index_type=lambda: sym.topk(A, dtype="bool", name="n"),
    index_range=refused(lambda: sym.argsort(A, dtype="uint8", name="n"), a=(2, 257)),
    topk_count=refused(lambda: sym.topk(A, k=4, name="n"), a=(2, 3)),
)

cases(
    slice_like_size=refused(lambda: sym.slice_like(A, B, name="n"), a=(2, 3), b=(2, 4)),
    reshape_like_size=refused(lambda: sym.reshape_like(A, B, name="n"), a=(2, 3), b=(2, 4)),
    diag_out=refused(lambda: sym.diag(A, k=3, name="n") + B, a=(0,), b=(2, 2)),
    diag_axes=refused(lambda: sym.diag(A, axis1=1, axis2=-1, name="n"), a=(2, 3)),
    diag_none=refused(lambda: sym.diag(A, k=-2, name="n"), a=(2, 3)),
    split_indices=lambda: sym._split_v2(A, indices=(1, 3), name="n"),
    split_sections=refused(lambda: sym._split_v2(A, sections=2, name="n"), a=(2, 3)),
    split_length=refused(lambda: sym._split_v2(A, indices=(0, 4), name="n"), a=(2, 3)),
    split_squeeze=refused(lambda: sym._split_v2(A, indices=(0, 2), squeeze_axis=True, name="n"), a=(2, 3)),
)

cases(
    gather_depth=refused(lambda: sym.gather_nd(A, B, name="n"), a=(2, 3), b=(3, 5)),
    gather_index=ran(lambda: sym.gather_nd(A, B, name="n"), a=[[1, 2, 3]], b=[[0, 0], [2, 3]]),
    scatter_shape=lambda: sym.scatter_nd(A, B, shape=(2, 0), name="n"),
    batch_take_dims=refused(lambda: sym.batch_take(A, B, name="n"), a=(2,)),
    fill_dims=bound(lambda: sym.fill_element_0index(A, B, C, name="n"), a=(2, 0), b=(2,), c=(2,)),
    numbers_type=refused(lambda: sym._unravel_index(A, shape=(16, 17), name="n"), types=True, a="uint8"),
    pick_nothing=bound(lambda: sym.pick(A, B, name="n"), a=(2, 0), b=(2,)),
    pick_dims=refused(lambda: sym.pick(A, B, name="n"), a=(2,)),
    take_nothing=bound(lambda: sym.take(A, B, name="n"), a=(0, 2), b=(3,)),
    take_index=ran(lambda: sym.take(A, B, mode="raise", name="n"), a=[[1, 2], [3, 4]], b=[1, 2]),
    one_hot_depth=lambda: sym.one_hot(A, depth=0, name="n"),
    one_hot_value=lambda: sym.one_hot(A, depth=3, off_value=-1, dtype="uint8", name="n"),
)

cases(
    arange_bounds=lambda: sym._arange(start=1, stop=0, name="n"),
    arange_length=refused(lambda: A + sym._arange(start=0, repeat=2, infer_range=True, name="n"), a=(3,)),
    zeros_type=lambda: sym._zeros_without_dtype(shape=(2,), dtype=9, name="n"),
    linspace_count=lambda: sym._linspace(start=0, stop=1, num=0, name="n"),
    eye_sizes=lambda: sym._eye(N=0, name="n"),
    arange_like_repeat=lambda: sym._contrib_arange_like(A, repeat=0, name="n"),
)

cases(
    parameters_share=refused(
        lambda: sym._rnn_param_concat(A, B, C, dim=0, num_args=3, name="n") + Var("d"), a=(4,), b=(0,), c=(0,), d=(9,)
    ),
    reduce_axis=refused(lambda: sym.sum(A, axis=2, name="n"), a=(2, 3)),
    reduce_nothing=bound(lambda: sym.max(A, axis=1, name="n"), a=(2, 0)),
    moments_type=refused(lambda: sym.moments(A, name="n"), types=True, a="int32"),
    argmax_type=lambda: sym.argmax(A, axis=1, name="n")
    .bind(ax.cpu(), {"a": np.zeros((1, 3000), np.float16)}, grad_req="null")
    .forward(),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
