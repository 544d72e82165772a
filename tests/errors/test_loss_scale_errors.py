"""Every refusal of the loss scale.

The texts stand in ``texts_loss_scale.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import arrayexec as ax
from arrayexec import sym
from arrayexec.train.loss_scale import DynamicLossScale
from tests.errors.recorder import PACKAGE, Recorder, checks_of

RECORDER = Recorder(Path(__file__).parent / "texts_loss_scale.txt", [PACKAGE / "train" / "loss_scale.py"])
cases = RECORDER.cases


cases(
    init=lambda: DynamicLossScale(init=0.5, least=1, most=2),
    endless=lambda: DynamicLossScale(most=float("inf")),
    window=lambda: DynamicLossScale(window=0),
    nothing_attached=lambda: DynamicLossScale().accepts([]),
    no_scale=lambda: DynamicLossScale().attach(sym.Variable("a").bind(ax.cpu(), {"a": np.zeros(1)})),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
