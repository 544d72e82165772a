"""Every refusal of SVMOutput, IdentityAttachKLSparseReg and CTCLoss.

The texts stand in ``texts_heads.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import arrayexec as ax
from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("heads", "ctc")
RECORDER = Recorder(Path(__file__).parent / "texts_heads.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

Var = sym.Variable
A, B = Var("a"), Var("b")


def refused(symbol: Callable[[], Any], **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: symbol().infer_shape(**known)


cases(
    svm_rank=refused(lambda: sym.SVMOutput(A, B, name="n"), a=(2,)),
    svm_label=refused(lambda: sym.SVMOutput(A, B, name="n"), a=(2, 3), b=(4,)),
    svm_type=lambda: sym.SVMOutput(A, B, name="n").infer_type(a="int32"),
    sparse_rank=refused(lambda: sym.IdentityAttachKLSparseReg(A, name="n"), a=(2,)),
    ctc_blank=lambda: sym.CTCLoss(A, B, blank_label="middle", name="n"),
    ctc_rank=refused(lambda: sym.CTCLoss(A, B, name="n"), a=(2, 3)),
    ctc_rows=refused(lambda: sym.CTCLoss(A, B, name="n"), a=(5, 2, 3), b=(4, 2)),
    ctc_lengths=refused(lambda: sym.CTCLoss(A, B, Var("c"), use_data_lengths=True, name="n"), a=(5, 2, 3), c=(4,)),
    ctc_classes=lambda: sym.CTCLoss(A, B, name="n").bind(ax.cpu(), {"a": np.zeros((5, 2, 0)), "b": np.zeros((2, 2))}),
    ctc_type=lambda: sym.CTCLoss(A, B, name="n").infer_type(a="int32"),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
