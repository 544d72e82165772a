"""Every refusal of the normalisations of rows, of vectors and of neighbouring channels.

The texts stand in ``texts_norm.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

FILES = ("group_norm", "local_norm")
RECORDER = Recorder(Path(__file__).parent / "texts_norm.txt", [PACKAGE / "ops" / f"{name}.py" for name in FILES])
cases = RECORDER.cases

Var = sym.Variable
A = Var("a")


def refused(symbol: Callable[[], Any], **known: Any) -> Callable[[], Any]:
    """A case: make the symbol, then say what is known of its variables."""
    return lambda: symbol().infer_shape(**known)


cases(
    layer_norm_axis=refused(lambda: sym.LayerNorm(A, axis=2, name="n"), a=(2, 3)),
    layer_norm_word=lambda: sym.LayerNorm(A, epsilon=1, name="n"),
    layer_norm_type=lambda: sym.LayerNorm(A, name="n").infer_type(a="int32"),
    instance_norm_rank=refused(lambda: sym.InstanceNorm(A, name="n"), a=(2, 3)),
    group_norm_groups=lambda: sym.GroupNorm(A, num_groups=0, name="n"),
    group_norm_rank=refused(lambda: sym.GroupNorm(A, num_groups=2, name="n"), a=(2, 4)),
    group_norm_channels=refused(lambda: sym.GroupNorm(A, num_groups=2, name="n"), a=(2, 3, 4)),
    l2_normalization_mode=lambda: sym.L2Normalization(A, mode="chanel", name="n"),
    l2_normalization_rank=refused(lambda: sym.L2Normalization(A, mode="spatial", name="n"), a=(2, 3)),
    lrn_nsize=lambda: sym.LRN(A, nsize=4, name="n"),
    lrn_without_nsize=lambda: sym.LRN(A, name="n"),
    lrn_rank=refused(lambda: sym.LRN(A, nsize=3, name="n"), a=(2,)),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
