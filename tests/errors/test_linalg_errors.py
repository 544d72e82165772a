"""Every refusal of matrix products, factors and random numbers.

The texts stand in ``texts_linalg.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("linalg", "linalg_factor", "random_draw", "random_number", "random_sample")
RECORDER = Recorder(Path(__file__).parent / "texts_linalg.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

Var = sym.Variable
A, B = Var("a"), Var("b")


def refused(symbol: Callable[[], Any], *, types: bool = False, **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: (symbol().infer_type if types else symbol().infer_shape)(**known)


def ran(symbol: Callable[[], Any], **values: Any) -> Callable[[], Any]:
    """A case: run the symbol on these arrays."""
    arrays = {name: np.array(value, np.float32) for name, value in values.items()}
    return lambda: symbol().bind(ax.cpu(), arrays).forward()


cases(
    syrk_dims=refused(lambda: sym.linalg.syrk(A, name="n"), a=(3,)),
    gemm_axis=refused(lambda: sym.linalg.gemm2(A, B, axis=2, name="n"), a=(2, 3, 4)),
    gemm_inner=refused(lambda: sym.linalg.gemm2(A, B, name="n"), a=(2, 3), b=(4, 5)),
    khatri_rao_dims=refused(lambda: sym.khatri_rao(A, B, num_args=2, name="n"), a=(2, 3, 4)),
    khatri_rao_rows=refused(lambda: sym.khatri_rao(A, B, num_args=2, name="n") + Var("c"), a=(2, 3), c=(5, 3)),
    extractdiag_offset=refused(lambda: sym.linalg.extractdiag(A, offset=3, name="n"), a=(3, 3)),
    extractdiag_square=refused(lambda: sym.linalg.extractdiag(A, name="n"), a=(3, 4)),
    maketrian_count=refused(lambda: sym.linalg.maketrian(A, name="n"), a=(2, 4)),
    extracttrian_offset=refused(lambda: sym.linalg.extracttrian(A, offset=-3, name="n"), a=(3, 3)),
    potrf_type=refused(lambda: sym.linalg.potrf(A, name="n"), types=True, a="float16"),
    gelqf_shape=refused(lambda: sym.linalg.gelqf(A, name="n"), a=(4, 3)),
    potrf_values=ran(lambda: sym.linalg.potrf(A, name="n"), a=[[[1, 0], [0, 1]], [[1, 2], [2, 1]]]),
    inverse_values=ran(lambda: sym.linalg.inverse(A, name="n"), a=[[1, 1], [1, 1]]),
    random_scale=lambda: sym.random.normal(scale=-1, shape=(2,), name="n"),
    random_p=lambda: sym.random.negative_binomial(k=1, p=1.5, shape=(2,), name="n"),
    random_type=lambda: sym.random.uniform(shape=(2,), dtype="int32", name="n").infer_type(),
    randint_range=lambda: sym.random.randint(low=3, high=300, dtype="int8", shape=(2,), name="n"),
    sample_dims=refused(lambda: sym.random.poisson(A, shape=(2,), name="n") + B, b=(3,)),
    multinomial_nothing=ran(lambda: sym.random.multinomial(A, name="n"), a=[[], []]),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
