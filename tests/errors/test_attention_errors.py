"""Every refusal of the products of attention.

The texts stand in ``texts_attention.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from pathlib import Path

from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("attention",)
RECORDER = Recorder(Path(__file__).parent / "texts_attention.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

A, B = sym.Variable("a"), sym.Variable("b")
SCORES, VALUES = sym._contrib_interleaved_matmul_selfatt_qk, sym._contrib_interleaved_matmul_encdec_valatt


cases(
    no_heads=lambda: SCORES(A, heads=0, name="n"),
    heads_unsaid=lambda: SCORES(A, name="n"),
    heads_that_do_not_fit=lambda: SCORES(A, heads=4, name="n").infer_shape(a=(5, 2, 18)),
    wrong_scores=lambda: VALUES(A, B, heads=2, name="n").infer_shape(a=(5, 2, 12), b=(4, 3, 6)),
    wrong_type=lambda: sym._contrib_div_sqrt_dim(A, name="n").infer_type(a="int32"),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
