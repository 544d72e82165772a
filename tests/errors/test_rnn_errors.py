"""Every refusal of the fused recurrent operator.

The texts stand in ``texts_rnn.txt``; how they are recorded: ``recorder.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arrayexec import sym
from tests.errors.recorder import PACKAGE, Recorder, checks_of

RECORDER = Recorder(Path(__file__).parent / "texts_rnn.txt", [PACKAGE / "ops" / f"{name}.py" for name in ("rnn", "rnn_cells")])


def made(**attributes: Any) -> Any:
    """The operator named 'n' of one layer of 4."""
    return sym.RNN(sym.Variable("a"), name="n", **({"state_size": 4, "num_layers": 1, "mode": "lstm"} | attributes))


RECORDER.cases(
    state_size=lambda: made(state_size=0),
    num_layers=lambda: made(num_layers=-1),
    mode=lambda: made(mode="lstn"),
    dropout=lambda: made(p=1.5),
    projection=lambda: made(projection_size=0),
    projection_without_lstm=lambda: made(mode="gru", projection_size=2),
    clip_without_lstm=lambda: made(mode="rnn_tanh", lstm_state_clip_max=2),
    clip_one_side=lambda: made(lstm_state_clip_max=2),
    clip_other_side=lambda: made(lstm_state_clip_min=2),
    clip_crossed=lambda: made(lstm_state_clip_min=2, lstm_state_clip_max=1),
    data_rank=lambda: made().infer_shape(a=(3, 4)),
    parameters=lambda: made().infer_shape(n_parameters=(113,)),
    parameters_of_no_feature=lambda: made().infer_shape(n_parameters=(96,)),
    parameters_of_other_features=lambda: made().infer_shape(a=(5, 2, 3), n_parameters=(112,)),
    state_of_one=lambda: made().infer_shape(a=(5, 2, 3), n_state=(1, 1, 4)),
    cell_of_other_layers=lambda: made().infer_shape(a=(5, 2, 3), n_state_cell=(2, 2, 4)),
    lengths=lambda: made(use_sequence_length=True).infer_shape(a=(5, 2, 3), n_sequence_length=(3,)),
    data_type=lambda: made().infer_type(a="int32"),
)

(
    found, test_text, test_no_text_is_left_over, test_every_refusal_is_reached,
    test_what_is_held_elsewhere_is_there,
) = checks_of(RECORDER)  # fmt: skip
