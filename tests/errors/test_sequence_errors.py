"""Every refusal of the operators on sequences.

The texts stand in ``texts_sequence.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import arrayexec as ax
from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("sequence",)
RECORDER = Recorder(Path(__file__).parent / "texts_sequence.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

A, B = sym.Variable("a"), sym.Variable("b")


cases(
    mask_rank=lambda: sym.SequenceMask(A, name="n").infer_shape(a=(3,)),
    last_rank=lambda: sym.SequenceLast(A, name="n").infer_shape(a=(3,)),
    mask_axis=lambda: sym.SequenceMask(A, axis=2, name="n"),
    reverse_lengths=lambda: sym.SequenceReverse(A, B, use_sequence_length=True, name="n").infer_shape(a=(3, 4), b=(3,)),
    last_of_nothing=lambda: sym.SequenceLast(A, name="n").bind(ax.cpu(), {"a": np.zeros((0, 3))}),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
