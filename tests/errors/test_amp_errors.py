"""Every refusal of the operators of mixed precision, and of numbers along an axis.

The texts stand in ``texts_amp.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from pathlib import Path

from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("amp",)
RECORDER = Recorder(Path(__file__).parent / "texts_amp.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

A = sym.Variable("a")


cases(
    cast_type=lambda: sym.amp_cast(A, dtype="narrow", name="n"),
    scale_type=lambda: sym._scale_gradient(A, name="n").infer_type(a="int32"),
    no_outputs=lambda: sym.amp_multicast(num_outputs=0, name="n"),
    no_arrays=lambda: sym.multi_all_finite(num_arrays=0, name="n"),
    arange_like_repeat=lambda: sym._contrib_arange_like(A, repeat=0, name="n"),
    arange_like_axis=lambda: sym._contrib_arange_like(A, axis=2, name="n").infer_shape(a=(2, 3)),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
